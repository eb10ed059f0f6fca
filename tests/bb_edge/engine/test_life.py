"""The life of an execution: the code decides by its table, and what holds it open is counted by kind."""

from __future__ import annotations

import pytest
from arrays import f32

from bb_edge.engine.run.frames import Execution, FreeFrames
from bb_edge.engine.run.life import LIFE, Hold
from bb_edge.roles import TRIGGER
from tests.aids.transitions import assert_decides_by

QUEUE_AND_GATE = """
program Demo {module=Demo}
function program.Main(put: F32, take: Trigger, a: F32, open: Trigger) -> () {entry=1, partition=self}
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(put)
  syscall.AppNotify<name="put">(done)
  out: F32 = syscall.Serialize.Dequeue<queue="q">(take)
  syscall.AppEmit<name="out">(out)
  x: F32 = syscall.Gate<across=1>(a, open)
  syscall.AppEmit<name="x">(x)
"""


def test_an_execution_lives_by_its_table(bench):
    def live() -> None:
        b = bench(QUEUE_AND_GATE)
        taker = b.node.invoke("Main", {"take": TRIGGER})
        b.settle()
        (waiting,) = b.node.inspect().executions
        assert waiting["id"] == taker and waiting["state"] == "waiting" and waiting["holds"] == {"permit": 1}
        b.node.invoke("Main", {"put": f32(1)})
        b.node.invoke("Main", {"a": f32(2)})
        b.node.invoke("Main", {"open": TRIGGER})  # at its end the gate lets the value through: it goes on
        b.settle()
        assert [float(value[0]) for value in (*b.events("out"), *b.events("x"))] == [1.0, 2.0]
        assert b.node.inspect().executions == []
        taken = b.node.invoke("Main", {"take": TRIGGER})
        b.settle()
        assert [row["id"] for row in b.node.inspect().executions] == [taken]

    assert_decides_by(LIFE, live)


def test_holds_are_counted_by_kind():
    execution = Execution(FreeFrames())
    execution.hold(Hold.PARKED)
    execution.hold(Hold.PARKED)
    execution.hold(Hold.CHILD)
    execution.let_go(Hold.PARKED)
    assert execution.held == {Hold.PARKED: 1, Hold.CHILD: 1}
    execution.let_go(Hold.PARKED)
    execution.let_go(Hold.CHILD)
    assert not execution.held
    with pytest.raises(KeyError):
        execution.let_go(Hold.CHILD)
