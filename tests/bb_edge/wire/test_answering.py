"""Whether peers answer: counts, the table, trials, bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from times import MS, S

from bb_edge.ir.ids import PeerId
from bb_edge.wire.answering import ANSWERING, PeerAnswers
from tests.aids.peers import numbered
from tests.aids.transitions import assert_decides_by

A, B, C = (numbered(n) for n in range(3))


def leave(answers: PeerAnswers, peer: PeerId, times: int, now_ns: int = 0) -> list[bool]:
    return [answers.left_unanswered(peer, now_ns) for _ in range(times)]


def test_a_peer_answers_by_its_table() -> None:
    def walk() -> None:
        answers = PeerAnswers(3)
        assert not answers.accepted(A) and not answers.late(A) and not answers.is_failing(A)
        assert leave(answers, A, 2) == [False, False]
        assert not answers.accepted(A) and answers.unanswered(A) == 2
        assert leave(answers, A, 3) == [True, False, False]
        assert answers.is_failing(A) and answers.any_failing
        assert answers.on_trial(A) and answers.late(A) and not answers.late(A)
        assert not answers.on_trial(A) and answers.may_ask(A, 0), "the next request waits for it"
        assert answers.is_failing(A) and answers.any_failing and answers.unanswered(A) == 3
        assert leave(answers, A, 1) == [False] and answers.on_trial(A) and answers.is_failing(A)
        assert answers.late(A) and answers.accepted(A) and not answers.is_failing(A)
        assert leave(answers, A, 1) == [True], "it has to answer for a while"
        assert [answers.accepted(A) for _ in range(10)] == [True, *[False] * 9]
        assert not answers.any_unanswered and leave(answers, A, 2) == [False, False]

    assert_decides_by(ANSWERING, walk)


def test_a_failing_peer_is_tried_less_and_less_often() -> None:
    answers = PeerAnswers(1)
    leave(answers, A, 1)
    tries, now = [], 0
    while len(tries) < 16:
        if answers.may_ask(A, now):
            answers.tried(A, now)
            tries.append(now)
        now += 10 * MS
    gaps = [(b - a) // MS for a, b in pairwise(tries)]
    assert gaps == sorted(gaps) and gaps[0] <= 20 and gaps[-1] == 60_000
    assert not answers.may_ask(A, tries[-1])
    answers.restarted(A)
    assert answers.may_ask(A, tries[-1]) and answers.is_failing(A)


@pytest.mark.parametrize(
    ("answered", "asked"), [(0, 1), (1, 5), (1, 2), (3, 5), (2, 3), (3, 4), (4, 5), (9, 10)]
)
def test_who_leaves_five_of_sixteen_is_failing_and_costs_five_deadlines(answered: int, asked: int) -> None:
    answers, deadlines = PeerAnswers(5), 0
    for number in range(200):
        if not answers.is_failing(A):
            if number % asked < answered:
                answers.accepted(A)
            else:
                leave(answers, A, 1)
                deadlines += 1
    often = answered <= asked * 2 / 3
    assert answers.is_failing(A) is often
    assert deadlines == 5 if often else deadlines > 5


def test_requests_of_long_ago_do_not_count() -> None:
    answers = PeerAnswers(2)
    leave(answers, A, 1)
    assert [answers.accepted(A) for _ in range(6)] == [False] * 6 and answers.unanswered(A) == 1
    answers.accepted(A)
    assert not answers.any_unanswered and leave(answers, A, 1) == [False]


def test_who_fails_again_soon_waits_on() -> None:
    """One that answers each trial, and nothing else, is tried ever more seldom."""
    answers, now, trials = PeerAnswers(2), 0, 0
    leave(answers, A, 2, now)
    while now < 600 * S:
        if not answers.is_failing(A):
            leave(answers, A, 1, now)
        elif answers.may_ask(A, now):
            answers.tried(A, now)
            answers.accepted(A)
            trials += 1
        now += 10 * MS
    assert 10 < trials < 30


def test_late_answers_that_do_not_count_do_not_shorten_the_back_off() -> None:
    answers = PeerAnswers(1)
    leave(answers, A, 1)
    tries, now = [], 0
    while len(tries) < 12:
        if answers.may_ask(A, now):
            answers.tried(A, now)
            tries.append(now)
            assert answers.late(A)
            leave(answers, A, 1, now)
        now += 10 * MS
    assert (tries[-1] - tries[-2]) // MS == 60_000


def test_the_table_is_bounded() -> None:
    answers = PeerAnswers(1, capacity=2)
    for peer in (A, B, C):
        leave(answers, peer, 1)
    assert [answers.is_failing(peer) for peer in (A, B, C)] == [False, True, True]
    assert answers.forgotten == 1
    leave(answers, B, 3)
    assert answers.forgotten == 1


def test_what_is_saved_comes_back() -> None:
    answers = PeerAnswers(3)
    leave(answers, A, 3, 5 * MS)
    leave(answers, B, 1)
    leave(answers, C, 3)
    answers.late(C)
    again = PeerAnswers(3)
    again.restore(answers.snapshot(7 * MS), 100 * MS)
    assert [again.unanswered(peer) for peer in (A, B, C)] == [3, 1, 3]
    assert not again.may_ask(A, 107 * MS) and again.may_ask(A, 108 * MS)
    assert again.is_failing(C) and again.may_ask(C, 100 * MS)
    small = PeerAnswers(3, capacity=1)
    small.restore(answers.snapshot(0), 0)
    assert [small.unanswered(peer) for peer in (A, B, C)] == [0, 0, 3]


def test_counts_that_were_saved_once_are_histories() -> None:
    answers = PeerAnswers(3)
    rows = [[A.to_bytes(), 2], [B.to_bytes(), 3], [C.to_bytes(), -1]]
    answers.restore([rows, answers.snapshot(0)["trials"]], 0)
    assert [answers.unanswered(peer) for peer in (A, B, C)] == [2, 3, 3]
    assert [answers.on_trial(peer) for peer in (A, B, C)] == [False, True, False]
