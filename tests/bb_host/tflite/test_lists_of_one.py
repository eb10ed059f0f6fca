"""A plain number where ONNX wants a list of one: axes, sizes, places. Both backends compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_edge import open_model
from bb_host import Compiler, Graph, Module
from bb_host.build import build_edge
from bb_host.errors import ValueTypeError
from bb_host.ir.operator_kinds import LISTS
from bb_host.tflite import table

A = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)

CALLS: dict[str, tuple[Callable[[Graph, Any], Any], Any]] = {
    "reduce_sum": (lambda g, a: g.onnx.reduce_sum(a, 1), A.sum(1, keepdims=True)),
    "reduce_max": (lambda g, a: g.onnx.reduce_max(a, -1, keepdims=False), A.max(1)),
    "reduce_l2": (lambda g, a: g.onnx.reduce_l2(a, 0), np.linalg.norm(A, axis=0, keepdims=True)),
    "g.constant": (lambda g, a: g.onnx.reduce_min(a, g.constant(0)), A.min(0, keepdims=True)),
    "slice": (lambda g, a: g.onnx.slice(a, 0, 2, 0), A[:2]),
    "slice with a step": (lambda g, a: g.onnx.slice(a, 1, 4, 1, 2), A[:, 1:4:2]),
    "tile": (lambda g, a: g.onnx.tile(g.onnx.reshape(a, 12), 2), np.tile(A.reshape(12), 2)),
    "pad": (lambda g, a: g.onnx.pad(a, [1, 2], axes=1), np.pad(A, ((0, 0), (1, 2)))),
    "expand": (lambda g, a: g.onnx.expand(a[0, 0], 4), np.full(4, A[0, 0])),
    "constant_of_shape": (lambda g, a: g.onnx.constant_of_shape(4) + a, A),
    "top_k": (lambda g, a: g.onnx.top_k(a, 1)[0], A.max(1, keepdims=True)),
    "split": (lambda g, a: g.onnx.split(a, 3)[0] + a, A + A),
    "unsqueeze": (lambda g, a: g.onnx.unsqueeze(a, 0), A[None]),
    "squeeze": (lambda g, a: g.onnx.squeeze(g.onnx.unsqueeze(a, 0), 0) + a, A + A),
}


@pytest.mark.parametrize("backend", ["numpy", "tflite", "auto"])
@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_a_list_of_one(call, backend):
    record, expected = CALLS[call]

    class Numbers(Module):
        home = "D"

        def body(self, g: Graph) -> None:
            g.output("y", record(g, g.input("a", "F32", (3, 4))))

    (artifact,) = build_edge(Numbers(), Compiler(), backend=backend).artifacts
    found = open_model(artifact.data).run({"a": A})["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g, a: g.onnx.pad(a, [[1, 1], [2, 2]]), "Pad: pads is a list of numbers, .*all begins, then"),
        (lambda g, a: g.onnx.reduce_sum(a, [[1]]), r"ReduceSum: axes is a list of numbers, got \[\[1\]\]"),
        (lambda g, a: g.onnx.tile(a, 2), r"Tile: repeats \[2\] do not fit shape \(3, 4\)"),
    ],
)
def test_other_shapes_are_refused_at_the_line(call, said):
    class Rows(Module):
        home = "D"

        def body(self, g: Graph) -> None:
            g.output("y", call(g, g.input("a", "F32", (3, 4))))

    with pytest.raises(ValueTypeError, match=said) as caught:
        build_edge(Rows(), Compiler())
    assert "test_lists_of_one.py" in caught.value.where


def _file(axes: np.ndarray) -> onnx.ModelProto:
    node = helper.make_node("ReduceSum", ["x", "axes"], ["s"])
    square = helper.make_node("Mul", ["s", "s"], ["y"])
    graph = helper.make_graph(
        [node, square],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 1])],
        [numpy_helper.from_array(axes, "axes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_file_with_a_number_for_axes_is_lowered(compiled, run_lowered):
    found = compiled(_file(np.array(1, np.int64)))
    assert not found.lowering.kept
    np.testing.assert_allclose(*run_lowered(found, {"x": A}), A.sum(1, keepdims=True) ** 2, rtol=1e-5)


def test_a_rule_that_fails_leaves_its_op_on_numpy(monkeypatch, compiled, run_lowered):
    def failing(region, op):
        raise TypeError("'int' object is not iterable")

    monkeypatch.setitem(table.RULES, "ReduceSum", failing)
    with pytest.warns(RuntimeWarning, match="lowering of ReduceSum failed, .* not iterable .*report this"):
        found = compiled(_file(np.array([1], np.int64)))
    assert [op.op_type for op in found.body.ops if op.op_type in ("ReduceSum", "Model")] == [
        "ReduceSum",
        "Model",
    ]
    (kept,) = found.lowering.kept
    assert "TypeError: 'int' object is not iterable" in kept.reason
    np.testing.assert_allclose(*run_lowered(found, {"x": A}), A.sum(1, keepdims=True) ** 2, rtol=1e-5)


def test_what_fails_behind_the_rules_leaves_the_region_on_numpy(monkeypatch, compiled, run_lowered):
    def failing(region, op):
        region.give(op.outputs[0], 99)  # a tensor that is not there, as writing finds out

    monkeypatch.setitem(table.RULES, "ReduceSum", failing)
    with pytest.warns(RuntimeWarning, match="lowering of ReduceSum, Mul failed"):
        found = compiled(_file(np.array([1], np.int64)))
    assert not found.models
    np.testing.assert_allclose(*run_lowered(found, {"x": A}), A.sum(1, keepdims=True) ** 2, rtol=1e-5)


def test_the_table_has_the_operators_with_axes():
    """Of all operators that take axes as an input; the other inputs of the table are only there."""
    for op, positions in LISTS.items():
        assert max(positions) < len(onnx.defs.get_schema(op, 21).inputs), op
    told = {
        s.name
        for s in onnx.defs.get_all_schemas()
        if s.domain == "" and any(i.name == "axes" for i in s.inputs)
    }
    assert told and told <= set(LISTS)
