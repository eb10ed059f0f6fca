"""If and Loop: branches over values of the graph around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_host import Graph
from bb_host.errors import ArityError, ForeignValueError, PortNameError, RoundsError
from bb_host.ir.program import Program, Subgraph
from bb_host.ir.proto import to_proto

Record = Callable[..., Program]


def run(program: Program, **inputs: Any) -> list[Any]:
    reference = pytest.importorskip("onnx.reference")
    evaluator = reference.ReferenceEvaluator(to_proto(program).functions[0])
    found = evaluator.run(None, inputs, attributes={})
    return list(found)


def test_branches_see_the_values_around_them(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        doubled = x * 2
        y = g.onnx.if_(g.input("up", "BOOL", ()), lambda h: doubled + 1, lambda h: -doubled)
        assert y.type == ValueType(types.TENSOR_F32, (2,))
        g.output("doubled", doubled)
        g.output("y", y)

    program = record(body)
    x = np.array([1, 2], np.float32)
    for up, expected in ((True, [3, 5]), (False, [-2, -4])):
        doubled, y = run(program, x=x, up=np.array(up))
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(doubled, [2, 4])


def test_a_branch_may_yield_a_value_from_outside(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        a, b = g.onnx.if_(g.input("up", "BOOL", ()), lambda h: (x, x), lambda h: [h.onnx.relu(x), 0.5])
        assert a.type == ValueType(types.TENSOR_F32, (2,))
        assert b.type == ValueType(types.TENSOR_F32)
        g.output("a", a)
        g.output("b", b)

    program = record(body)
    x = np.array([-1, 2], np.float32)
    np.testing.assert_array_equal(run(program, x=x, up=np.array(True))[1], x)
    np.testing.assert_array_equal(run(program, x=x, up=np.array(False))[0], [0, 2])
    branch = next(op for op in program.functions[0].ops if op.op_type == "If").attrs["then_branch"]
    assert isinstance(branch, Subgraph)
    assert [op.op_type for op in branch.ops] == ["Identity", "Identity"]


def test_a_loop_carries_and_scans(record: Record) -> None:
    def step(h: Graph, i: Any, go: Any, total: Any) -> Any:
        new = total + h.onnx.cast(i, "F32")
        return go, new, new * 10

    def body(g: Graph) -> None:
        last, scanned = g.onnx.loop(4, True, 0.0, body=step)
        assert last.node is scanned.node is types.TENSOR_F32
        g.output("last", last)
        g.output("scanned", scanned)

    last, scanned = run(record(body))
    assert last == 6
    np.testing.assert_array_equal(np.ravel(scanned), [0, 10, 30, 60])


def test_branches_nest(record: Record) -> None:
    def body(g: Graph) -> None:
        x, c = g.input("x", "F32", ()), g.input("c", "BOOL", ())
        y = g.onnx.if_(
            c,
            lambda h: h.onnx.if_(x > 0, lambda k: x + 1, lambda k: x - 1),
            lambda h: h.onnx.identity(x),
        )
        g.output("y", y)

    program = record(body)
    assert run(program, x=np.float32(2), c=np.array(True)) == [3]
    assert run(program, x=np.float32(-2), c=np.array(True)) == [-3]
    assert run(program, x=np.float32(2), c=np.array(False)) == [2]


def test_refusals(module: Callable[..., Any]) -> None:
    def uneven(g: Graph) -> None:
        g.onnx.if_(g.input("c", "BOOL"), lambda h: (1.0, 2.0), lambda h: 1.0)

    def escapes(g: Graph) -> None:
        kept: list[Any] = []
        g.onnx.if_(g.input("c", "BOOL"), lambda h: kept.append(h.onnx.constant(1.0)) or 1.0, lambda h: 1.0)
        g.onnx.relu(kept[0])

    def leak(g: Graph, read_in_the_other: bool = False) -> tuple[Any, Any]:
        x, kept = g.input("x", "F32", ()), []

        def then(h: Graph) -> Any:
            kept.append(h.onnx.neg(x))
            return kept[0]

        g.onnx.if_(g.input("c", "BOOL"), then, lambda h: h.onnx.abs(kept[0] if read_in_the_other else x))
        return x, kept[0]

    def read_beside(g: Graph) -> None:
        x, inner = leak(g)
        g.output("y", x + inner)

    def read_first(g: Graph) -> None:
        _, inner = leak(g)
        g.output("y", inner * 2.0)

    def emitted(g: Graph) -> None:
        g.app_emit("y", leak(g)[1])

    def read_in_the_other(g: Graph) -> None:
        leak(g, True)

    def read_behind_a_loop(g: Graph) -> None:
        kept: list[Any] = []
        g.onnx.loop(3, None, 1.0, body=lambda h, i, go, x: (go, kept.append(h.onnx.neg(x)) or x))
        g.output("y", kept[0] + 1.0)

    def loop_without_values(g: Graph) -> None:
        g.onnx.loop(3, None, body=lambda h, i, go: go)

    def loop_drops_a_value(g: Graph) -> None:
        g.onnx.loop(3, None, 1.0, body=lambda h, i, go, x: go)

    def port_in_a_branch(g: Graph) -> None:
        g.onnx.if_(g.input("c", "BOOL"), lambda h: h.input("x"), lambda h: 1.0)

    def rounds_in_a_branch(g: Graph) -> None:
        g.onnx.if_(g.input("c", "BOOL"), lambda h: h.rounds(3).__enter__().round, lambda h: 1.0)

    for kind, body, what in (
        (ArityError, uneven, "then yields 2 values, else 1"),
        (ForeignValueError, escapes, "<const: Tensor<F32>[]> of a branch of Main"),
        (ForeignValueError, read_beside, "<neg: Tensor<F32>[]> of a branch of Main"),
        (ForeignValueError, read_beside, "return it from both branches: y = g.onnx.if_("),
        (ForeignValueError, read_first, "Mul reads <neg: Tensor<F32>[]> of a branch of Main"),
        (ForeignValueError, emitted, "return it from both branches: y = g.onnx.if_("),
        (ForeignValueError, read_in_the_other, "return it from both branches: y = g.onnx.if_("),
        (ForeignValueError, read_behind_a_loop, "return it from the body: behind the condition"),
        (ArityError, loop_without_values, "nothing but its condition"),
        (ArityError, loop_drops_a_value, "yields 1 values, not 2"),
        (PortNameError, port_in_a_branch, "input 'x' stands in a branch"),
        (RoundsError, rounds_in_a_branch, "stand in a branch"),
    ):
        with pytest.raises(kind) as caught:
            module(body).record()
        assert what in str(caught.value)
