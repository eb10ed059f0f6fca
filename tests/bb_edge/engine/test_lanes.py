"""The short way of plain operators through the loop: nothing shows but the time that it saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig

# A diamond, a chain, a value that is read three times, a called function, and one that fails for odd sizes.
TEXT = """program Demo {module=Demo}
function program.Main(x: F32, b: F32, bad: F32) -> () {entry=1, partition=self}
  a: F32 = Add(x, b)
  c: F32 = Neg(a)
  d: F32 = Exp(a)
  e: F32 = Mul(c, d)
  f: F32 = Sub(e, a)
  syscall.AppEmit<name="f">(f)
  syscall.AppEmit<name="a">(a)
  g: F32 = module.Twice(f)
  h: F32 = Abs(g)
  syscall.AppEmit<name="h">(h)
  i: F32 = Add(h, bad)
  j: F32 = Neg(i)
  syscall.AppEmit<name="j">(j)
function module.Twice(v: F32) -> (w) {}
  u: F32 = Add(v, v)
  w: F32 = Neg(u)
"""


def lanes(node: Any) -> list[str]:
    return [op.spec.op_type for graph in node._engine.graphs for op in graph.ops if op.lane is not None]


def told(b: Any) -> list[Any]:
    return [(s.topic, np.asarray(s.value).tolist()) for s in b.said if isinstance(s, steps.AppEvent)]


def run(b: Any, size: int = 3) -> Any:
    x, bias = np.linspace(-1, 1, 3, dtype=np.float32), np.full(3, 0.5, np.float32)
    b.node.invoke("Main", {"x": x, "b": bias, "bad": np.ones(size, np.float32)})
    b.settle()
    return told(b)


@pytest.mark.parametrize("budget", [1, 2, 3, 1000])
def test_with_and_without_it_the_same_is_told_in_the_same_order(bench, budget):
    config = NodeConfig(cycle_op_budget=budget)
    short, long = bench(TEXT, config=config), bench(TEXT, config=config)
    long.node.observe_ops(lambda op: op.run)
    assert len(lanes(short.node)) == 9 and lanes(long.node) == []
    assert run(short) == run(long)
    assert [type(s) for s in short.said] == [type(s) for s in long.said], "polls end at the same places"
    assert {t for t, _ in told(short)} == {"a", "f", "h", "j"}


def test_traced_nodes_go_the_long_way(bench):
    b = bench(TEXT, config=NodeConfig(trace=True))
    assert lanes(b.node) == []
    assert run(b) == run(bench(TEXT))
    assert len(b.of(steps.OpCompleted)) >= 10


def test_an_op_that_fails_is_named_and_its_branch_ends(bench):
    b = bench(TEXT)
    run(b, size=2)
    (failed,) = b.of(steps.OpFailed)
    assert failed.op.startswith("Add") and failed.target == "Main"
    assert [t for t, _ in told(b)].count("j") == 0 and len(told(b)) == 3
    assert [s.failed for s in b.of(steps.ExecutionEnded)] == [True]
    assert b.node.counters["executions.active"] == 0


def test_observers_see_every_op(bench):
    b, seen = bench(TEXT), []

    def wrap(op: Any) -> Any:
        inner = op.run

        def call(ctx: Any, *inputs: Any) -> Any:
            seen.append(op.spec.op_type)
            return inner(ctx, *inputs)

        return call

    b.node.observe_ops(wrap)
    run(b)
    assert sorted(s for s in seen if s in ("Add", "Neg", "Exp", "Mul", "Sub", "Abs")) == sorted(
        ["Add", "Neg", "Exp", "Mul", "Sub", "Add", "Neg", "Abs", "Add", "Neg"]
    )


def test_results_belong_to_whoever_holds_them(bench):
    """Nothing that was handed out is written to by later runs."""
    b = bench(TEXT)
    first = [
        (s.topic, s.value, np.array(s.value))
        for _ in [run(b)]
        for s in b.said
        if isinstance(s, steps.AppEvent)
    ]
    for _ in range(5):
        run(b)
    for topic, value, was in first:
        np.testing.assert_array_equal(value, was, err_msg=topic)
