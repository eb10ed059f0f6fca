"""The walk of one request through a device does not get longer."""

from __future__ import annotations

import pytest

from benchmarks.walk import Call, Walk, walk

MOST_CALLS = 115
MOST_FILES = 20
MOST_CHANGES = 62
"""What `python benchmarks/walk.py` says today. Lower them with it."""


@pytest.fixture(scope="module")
def request_walk() -> Walk:
    return walk()


def test_a_request_takes_no_more_calls_files_and_changes_of_file(request_walk: Walk) -> None:
    assert len(request_walk.calls) <= MOST_CALLS
    assert request_walk.files <= MOST_FILES
    assert request_walk.changes <= MOST_CHANGES


def test_the_walk_goes_from_the_door_through_the_op_to_the_reply(request_walk: Walk) -> None:
    calls = request_walk.calls
    door, poll = (calls.index(Call("bb_edge/node.py", name)) for name in ("deliver_inbound", "poll"))
    decoded = calls.index(Call("bb_edge/wire/envelope.py", "decode"))
    added = calls.index(Call("bb_edge/backends/single_kernel.py", "call"))
    encoded = calls.index(Call("bb_edge/wire/envelope.py", "encode"))
    assert 0 == door < poll < decoded < added < encoded


def test_the_walk_is_the_same_each_time(request_walk: Walk) -> None:
    assert walk() == request_walk


def test_a_walk_is_counted_and_printed_by_file() -> None:
    calls = [Call("a.py", "f"), Call("a.py", "g"), Call("a.py", "g"), Call("b.py", "f"), Call("a.py", "f")]
    one = Walk(tuple(calls))
    assert (one.files, one.changes) == (2, 2)
    assert str(one) == "5 calls, 2 files, 2 changes of file\n  1 a.py: f, g ×2\n  2 b.py: f\n  3 a.py: f"
