"""`bb.OncePerRound`: one request of a round is let through, the others are declined or fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.components import OncePerRound
from bb_edge.engine import steps
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import ComponentError, ComponentStateError, RequestDeclined

CTX: Any = None
PROGRAM = """program Demo {module=Demo, binding.Main.once="protocol|bb.OncePerRound|1"}
function program.Main(round: I64[]) -> () {entry=1, partition=self}
  slot once: protocol
  first: Trigger = "bb.OncePerRound"::First(round) {slot=once}
  syscall.AppNotify<name="first">(first)
"""


def number(value: int) -> Any:
    return np.array(value, np.int64)


def test_a_round_is_let_through_once_and_an_older_one_as_well() -> None:
    once = OncePerRound()
    assert once.first(CTX, number(7)) is TRIGGER
    with pytest.raises(RequestDeclined, match="round 7 has been answered here"):
        once.first(CTX, number(7))
    assert once.first(CTX, number(8)) is TRIGGER
    assert once.first(CTX, number(1)) is TRIGGER, "the server has begun anew"


def test_the_round_is_in_its_state() -> None:
    once, restored, new = OncePerRound(), OncePerRound(), OncePerRound()
    new.restore(once.serialize())
    assert new.first(CTX, number(3)) is TRIGGER
    once.first(CTX, number(3))
    restored.restore(once.serialize())
    with pytest.raises(RequestDeclined):
        restored.first(CTX, number(3))
    with pytest.raises(ComponentStateError):
        restored.restore(b"\xff")


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ComponentError, match="a round is one number"):
        OncePerRound().first(CTX, np.arange(2))


def test_where_nobody_asks_a_second_round_is_a_failure_like_others(bench: Any) -> None:
    b = bench(PROGRAM)
    for _ in range(2):
        b.node.invoke("Main", {"round": number(1)})
        b.poll()
    assert len(b.events("first")) == 1
    (failed,) = [step for step in b.said if isinstance(step, steps.OpFailed)]
    assert isinstance(failed.error, RequestDeclined)
