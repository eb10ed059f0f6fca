"""A server of a thousand clients hears them all, within the bounds of a small board."""

from __future__ import annotations

from benchmarks.load import run

KIB, MIB = 1024, 1 << 20


def test_a_thousand_answers_count_where_some_hundreds_fit_at_once() -> None:
    """Ten megabytes of answers and as many of requests, through two megabytes for each."""
    found = run(1000, 10 * KIB, 2 * MIB, at_once=100 * MIB)
    assert (found.counted, found.dropped) == (1000, 0)
    assert found.most_outbound < 10 * KIB + 1000 * 150, "the parameters once, and a tail for each client"
    assert 1 * MIB < found.most_ingress <= 2 * MIB


def test_one_answer_at_a_time_is_enough_room() -> None:
    found = run(50, 256 * KIB, 300 * KIB)
    assert (found.counted, found.dropped) == (50, 0)
