"""Every operator of the required ONNX subset is one call, and records what ONNX's own schema allows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import opsets, types
from bb_edge.ir.opsets import onnx as catalog
from bb_host import Graph, Output
from bb_host.dsl.onnx_namespace import OnnxOps
from bb_host.ir.program import Program

CALLS: dict[str, Callable[[Any, Output, Output], Any]] = {
    "Add": lambda o, x, i: o.add(x, x),
    "Sub": lambda o, x, i: o.sub(x, 1),
    "Mul": lambda o, x, i: o.mul(2, x),
    "Div": lambda o, x, i: o.div(x, x),
    "Pow": lambda o, x, i: o.pow(x, 2),
    "Neg": lambda o, x, i: o.neg(x),
    "Abs": lambda o, x, i: o.abs(x),
    "Sqrt": lambda o, x, i: o.sqrt(x),
    "Exp": lambda o, x, i: o.exp(x),
    "Log": lambda o, x, i: o.log(x),
    "Relu": lambda o, x, i: o.relu(x),
    "Sigmoid": lambda o, x, i: o.sigmoid(x),
    "Tanh": lambda o, x, i: o.tanh(x),
    "Identity": lambda o, x, i: o.identity(x),
    "MatMul": lambda o, x, i: o.matmul(x, x),
    "Gemm": lambda o, x, i: o.gemm(o.ones((2, 3)), o.ones((4, 3)), o.ones((4,)), alpha=0.5, trans_b=True),
    "Softmax": lambda o, x, i: o.softmax(x, axis=1),
    "LeakyRelu": lambda o, x, i: o.leaky_relu(x, alpha=0.2),
    "Gelu": lambda o, x, i: o.gelu(x, approximate="tanh"),
    "Reshape": lambda o, x, i: o.reshape(x, [-1, 4], allowzero=True),
    "Transpose": lambda o, x, i: o.transpose(x, [0, 1, 3, 2]),
    "Concat": lambda o, x, i: o.concat(x, x, axis=0),
    "Split": lambda o, x, i: o.split(x, num_outputs=2, axis=2),
    "Slice": lambda o, x, i: o.slice(x, [0], [1], [2], [1]),
    "Squeeze": lambda o, x, i: o.squeeze(x, [0]),
    "Unsqueeze": lambda o, x, i: o.unsqueeze(x, [0]),
    "Cast": lambda o, x, i: o.cast(x, "I32"),
    "ReduceSum": lambda o, x, i: o.reduce_sum(x, [1], noop=True),
    "ReduceMean": lambda o, x, i: o.reduce_mean(x, [1], keepdims=False),
    "ReduceMax": lambda o, x, i: o.reduce_max(x),
    "ReduceMin": lambda o, x, i: o.reduce_min(x, i),
    "Equal": lambda o, x, i: o.equal(x, 1),
    "Greater": lambda o, x, i: o.greater(x, x),
    "Less": lambda o, x, i: o.less(1.5, x),
    "Where": lambda o, x, i: o.where(x > 0, x, 0),
    "BatchNormalization": lambda o, x, i: o.batch_normalization(x, *(o.ones((3,)),) * 4, epsilon=1e-3),
    "LayerNormalization": lambda o, x, i: o.layer_normalization(x, o.ones((4,)), axis=-1),
    "Conv": lambda o, x, i: o.conv(x, o.ones((2, 3, 1, 1)), kernel_shape=[1, 1], pads=[0, 0, 0, 0]),
    "MaxPool": lambda o, x, i: o.max_pool(x, (2, 2), strides=[2, 2]),
    "AveragePool": lambda o, x, i: o.average_pool(x, (2, 2), count_include_pad=1),
    "GlobalAveragePool": lambda o, x, i: o.global_average_pool(x),
    "Constant": lambda o, x, i: o.constant(np.arange(3)),
    "Gather": lambda o, x, i: o.gather(x, i, axis=1),
    "Scatter": lambda o, x, i: o.scatter(x, [[[[0]]]], [[[[1.0]]]], axis=3),
    "If": lambda o, x, i: o.if_(o.constant(True), lambda g: x, lambda g: g.onnx.neg(x)),
    "Loop": lambda o, x, i: o.loop(3, True, x, body=lambda g, n, go, v: (go, v * 2)),
}


def test_the_calls_cover_the_catalog() -> None:
    table = opsets.opset("")
    assert table is not None
    assert set(CALLS) == set(table.ops)
    assert len(CALLS) == 46


@pytest.mark.parametrize("op", CALLS)
def test_it_records(record: Callable[..., Program], op: str) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (1, 3, 4, 4))
        i = g.input("i", "I64", (2,))
        found = CALLS[op](g.onnx, x, i)
        for value in found if isinstance(found, tuple) else (found,):
            assert types.is_subtype(value.node, types.TENSOR)

    program = record(body)
    assert program.functions[0].opsets[""] == catalog.VERSION
    recorded = [o.op_type for o in program.functions[0].ops]
    assert {"Scatter": "ScatterElements"}.get(op, op) in recorded


def test_each_has_a_signature_of_its_own_for_editors() -> None:
    from bb_host.dsl.names import snake

    for op in CALLS:
        name = {"MatMul": "matmul", "If": "if_"}.get(op, snake(op))
        method = inspect.getattr_static(OnnxOps, name)
        assert inspect.signature(method).return_annotation, op
