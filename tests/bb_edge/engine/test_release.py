"""A value goes as soon as its only reader has run, and stays while anybody may still want it."""

from __future__ import annotations

import weakref

import numpy as np


def test_a_value_goes_with_its_only_reader(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(x: F32[4]) -> () {entry=1, partition=self}
  a: F32[4] = Neg(x)
  c: F32[4] = Neg(a)
  t: Trigger = syscall.OnTrigger(c)
  slept: Trigger = syscall.Sleep<duration_ns=100>(t)
  late: Trigger = syscall.GateDispatch(slept, c)
  syscall.AppNotify<name="late">(late)
"""
    )
    graph = b.node._graphs[0]
    sites = {name: i for i, name in enumerate(graph.slot.sites)}
    b.node.invoke("Main", {"x": np.ones(4, np.float32)})
    b.poll()
    (execution,) = b.node._engine.pool.active.values()
    values = execution.frames[0].values
    assert values[sites["x"]] is None and values[sites["a"]] is None
    assert values[sites["c"]] is not None, "a second reader still waits"
    kept = weakref.ref(values[sites["c"]])
    b.settle()
    assert len(b.events("late")) == 1
    assert kept() is None
