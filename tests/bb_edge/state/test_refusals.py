"""When a disk that refused what is written has recovered."""

from __future__ import annotations

from times import S

from bb_edge.state.refusals import CALM_NS, GIVEN_UP_NS, Refusals


def test_it_is_over_five_seconds_after_the_last_refusal_where_something_was_written() -> None:
    disk = Refusals()
    disk.written([1])
    assert disk.end(100 * S) is None, "it has refused nothing"
    disk.refused([], 10 * S)
    disk.refused([], 13 * S)
    assert disk.end(13 * S + CALM_NS) is None, "nothing was written since"
    disk.written([2])
    assert disk.end(13 * S + CALM_NS - 1) is None
    assert disk.end(13 * S + CALM_NS) == (2, 3 * S)
    assert disk.end(100 * S) is None, "it is told once"
    disk.refused([], 200 * S)
    assert disk.end(200 * S + CALM_NS) is None
    disk.written([])
    assert disk.end(200 * S + CALM_NS) == (1, 0)


def test_what_is_asked_for_again_is_waited_for_until_it_is_given_up() -> None:
    disk = Refusals()
    disk.refused([1, 2], 10 * S)
    disk.written([1])
    assert disk.end(10 * S + GIVEN_UP_NS - 1) is None
    assert disk.end(10 * S + GIVEN_UP_NS) == (1, 0)
    disk.refused([3, 4], 200 * S)
    disk.written([4, 3])
    assert disk.end(200 * S + CALM_NS) == (1, 0)


def test_a_snapshot_that_was_refused_is_waited_for() -> None:
    disk = Refusals()
    disk.snapshot_refused(10 * S)
    disk.written([1])
    assert disk.end(10 * S + 2 * GIVEN_UP_NS) is None
    disk.snapshot_written()
    assert disk.end(10 * S + 2 * GIVEN_UP_NS) == (1, 0)
