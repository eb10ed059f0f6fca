"""A bootstrap decides by its table: without any row of it, this fails."""

from __future__ import annotations

from typing import Any

import pytest
from times import S

from bb_edge.engine.entries.bootstrap import LIFE, Bootstrap, BootstrapStatus
from bb_edge.ir.transitions import TransitionError
from tests.aids.transitions import assert_decides_by

NOTHING: Any = None


def bootstrap() -> Bootstrap:
    return Bootstrap("Main", "", (0,), None, lambda execution, inputs: None)


def statuses(one: Bootstrap, *moves: str) -> list[str]:
    """What each move leads to."""
    acts = {
        "ask": lambda: one.ask({}),
        "begin": lambda: one.begin(NOTHING),
        "succeed": one.succeed,
        "fail": lambda: one.fail("no camera"),
        "forget": lambda: one.restore(one.status.value, False, ["d"], True),
    }
    found = []
    for move in moves:
        acts[move]()
        found.append(one.status.value)
    return found


def test_its_life_is_the_table() -> None:
    def walk() -> None:
        once = (
            "ask",
            "begin",
            "succeed",
            "ask",
            "begin",
            "fail",
            "fail",
            "ask",
            "begin",
            "succeed",
            "forget",
        )
        assert statuses(bootstrap(), *once) == [
            *("queued", "running", "done", "queued", "running", "failed", "failed", "queued", "running"),
            *("done", "ready"),
        ]

    assert_decides_by(LIFE, walk)


def test_one_that_is_under_way_cannot_be_asked_for() -> None:
    one = bootstrap()
    assert not one.underway
    one.ask({})
    assert one.underway
    with pytest.raises(TransitionError):
        one.ask({})
    one.begin(NOTHING)
    assert one.underway
    one.succeed()
    assert not one.underway and one.status is BootstrapStatus.DONE


def test_each_wait_is_twice_the_last_one_up_to_a_minute_and_success_ends_it() -> None:
    one = bootstrap()
    assert [one.put_off(S) - S for _ in range(8)] == [n * S for n in (1, 2, 4, 8, 16, 32, 60, 60)]
    statuses(one, "ask", "begin", "succeed")
    assert one.put_off(S) == 2 * S


def test_the_first_failed_op_is_the_reason_until_it_begins_again() -> None:
    one = bootstrap()
    statuses(one, "ask", "begin", "fail")
    assert one.state.reason == "no camera"
    statuses(one, "ask")
    assert one.state.reason == "no camera"
    statuses(one, "begin")
    assert one.state.reason == ""
