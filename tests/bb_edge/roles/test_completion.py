"""Answers that come later: once, from any thread, and never silently too late."""

from __future__ import annotations

import threading

from bb_edge.roles import CompletionHandle, Later


class Sink:
    def __init__(self) -> None:
        self.outcomes: list[tuple[int, object, BaseException | None]] = []
        self.late_ones: list[int] = []

    def deliver(self, token: int, result: object, error: BaseException | None) -> None:
        self.outcomes.append((token, result, error))

    def late(self, token: int) -> None:
        self.late_ones.append(token)


def test_the_first_outcome_counts_and_the_second_is_told() -> None:
    sink = Sink()
    later = Later(CompletionHandle(sink, 7))
    assert not later.handle.settled
    assert later.complete("result")
    assert later.handle.settled
    assert not later.fail(ValueError())
    assert not later.complete("again")
    assert sink.outcomes == [(7, "result", None)]
    assert sink.late_ones == [7, 7]


def test_a_failure_carries_its_error() -> None:
    sink = Sink()
    error = ValueError("no")
    assert Later(CompletionHandle(sink, 1)).fail(error)
    assert sink.outcomes == [(1, None, error)]


def test_after_the_deadline_an_outcome_is_late() -> None:
    sink = Sink()
    handle = CompletionHandle(sink, 3)
    assert handle.revoke()
    assert not handle.revoke()
    assert not handle.complete()
    assert (sink.outcomes, sink.late_ones) == ([], [3])


def test_of_many_threads_one_wins() -> None:
    sink = Sink()
    handle = CompletionHandle(sink, 1)
    gate = threading.Barrier(8)
    won: list[bool] = []

    def race(number: int) -> None:
        gate.wait()
        won.append(handle.complete(number))

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1
    assert len(sink.outcomes) == 1
    assert len(sink.late_ones) == 7
