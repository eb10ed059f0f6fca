"""If and Loop as bare ONNX ops of a main, with values captured from around them."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import numpy as np
from arrays import f32

from bb_edge.engine import steps
from bb_edge.roles import TRIGGER


def test_branches_capture_values_that_come_at_different_times(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(yes: BOOL[], x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  late: Trigger = syscall.Sleep<duration_ns=50>(go)
  w: F32[2] = syscall.GateDispatch(x, late)
  c: F32[2] = Constant<value=F32[2]{10, 10}>()
  y: F32[2] = If<then_branch=graph then() -> (a) { a: F32[2] = Add(w, c) }, else_branch=graph other() -> (b) { b: F32[2] = Mul(x, x) }>(yes)
  syscall.AppEmit<name="y">(y)
"""
    )
    for yes in (True, False):
        b.node.invoke("Main", {"yes": np.asarray(yes), "x": f32(2, 3), "go": TRIGGER})
    b.poll()
    assert b.events("y") == [], "either branch may be taken: all that they capture is waited for"
    b.settle()
    assert [v.tolist() for v in b.events("y")] == [[12, 13], [4, 9]]
    b.node.invoke("Main", {"yes": np.asarray(False), "x": f32(2, 3)})
    b.settle()
    assert len(b.of(steps.ExecutionStarved)) == 1


def test_a_loop_carries_and_captures(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(n: I64[], x: F32[1], step: F32[1]) -> () {entry=1, partition=self}
  yes: BOOL[] = Constant<value=BOOL[]{1}>()
  last: F32[1], all: F32 = Loop<body=graph body(i: I64[], go: BOOL[], v: F32[1]) -> (go_on, next, kept) {
    go_on: BOOL[] = Identity(go)
    next: F32[1] = Add(v, step)
    kept: F32[1] = Mul(next, next)
  }>(n, yes, x)
  syscall.AppEmit<name="last">(last)
  syscall.AppEmit<name="all">(all)
"""
    )
    for n in (3, 1):
        b.node.invoke("Main", {"n": np.asarray(n, np.int64), "x": f32(1), "step": f32(2)})
    b.settle()
    assert [v.tolist() for v in b.events("last")] == [[7], [3]]
    assert [v.ravel().tolist() for v in b.events("all")] == [[9, 25, 49], [9]]
    assert b.of(steps.OpFailed) == []


def test_an_if_captures_what_its_execution_was_asked_for(bench):
    """A captured source is pulled when the condition is there."""
    b = bench(
        """
program Demo {module=Demo, binding.Main.d="aggregator|bb.FedAvg|1"}
function program.Main(yes: BOOL[]) -> () {entry=1, partition=self}
  slot d: aggregator
  now: F32 = role.aggregator.CurrentTensor() {slot=d}
  y: F32 = If<then_branch=graph then() -> (a) { a: F32 = Identity(now) }, else_branch=graph other() -> (b) { b: F32 = Neg(now) }>(yes)
  syscall.AppEmit<name="y">(y)
"""
    )
    b.node.invoke("Main", {"yes": np.asarray(True)})
    b.settle()
    assert [v.shape for v in b.events("y")] == [(0,)]
