"""Random graphs in QDQ form: pairs here and there, values read by several, on grids that differ."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SEEDS = range(24)
SHAPE = (2, 4, 6, 6)


class Drawn:
    """A graph of `n` ops over values of one shape; each result may get a pair, and may be an output."""

    def __init__(self, seed: int, n: int = 14) -> None:
        self.rng = np.random.default_rng([seed, 5])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.dtype = str(self.rng.choice(["int8", "uint8"]))
        self.fresh = 0
        self.values = [self.pair("x")]
        for _ in range(n):
            made = self.op()
            if self.rng.random() < 0.85:
                made = self.pair(made)
            self.values.append(made)
        read = {name for node in self.nodes for name in node.input}
        self.outputs = [v for v in self.values if v not in read or self.rng.random() < 0.1]

    def constant(self, array: object) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.fresh += 1
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{self.fresh}"], **attributes))
        return f"v{self.fresh}"

    def pair(self, value: str) -> str:
        scale = np.float32(self.rng.choice([0.0203, 0.0251, 0.0297]))
        zero = int(self.rng.choice([-5, 0, 12])) + (128 if self.dtype == "uint8" else 0)
        known = [self.constant(scale), self.constant(np.array(zero, self.dtype))]
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *known), *known)

    def pick(self) -> str:
        return self.values[max(0, len(self.values) - 1 - int(self.rng.integers(0, 4)))]

    def op(self) -> str:
        a, b = self.pick(), self.pick()
        kind = int(self.rng.integers(0, 13))
        if kind == 0:
            stored = self.rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
            scales, zeros = np.full(4, 0.0008, np.float32), np.zeros(4, np.int8)
            w = self.node("DequantizeLinear", *map(self.constant, (stored, scales, zeros)), axis=0)
            y = self.node("Conv", a, w, pads=[1] * 4)
            return self.node("Relu", y) if self.rng.random() < 0.5 else y
        if kind == 1:
            return self.node("Add", a, b)
        if kind == 2:
            return self.node("Sub", a, b)
        if kind == 3:
            return self.node("Mul", a, b)
        if kind == 4:
            both = self.node("Concat", a, b, axis=1)
            begin = int(self.rng.integers(0, 5))
            bounds = [self.constant(np.array([v])) for v in (begin, begin + 4, 1)]
            return self.node("Slice", both, *bounds)
        if kind == 5:
            flat = self.node("Reshape", a, self.constant(np.array([0, 36, 4])))
            flat = self.pair(flat) if self.rng.random() < 0.5 else flat
            return self.node("Reshape", flat, self.constant(np.array(SHAPE)))
        if kind == 6:
            return self.node("MaxPool", a, kernel_shape=[3, 3], pads=[1] * 4)
        if kind == 7:
            return self.node("Transpose", a, perm=[0, 1, 3, 2])
        if kind == 8:
            return self.node("Relu", a)
        if kind == 9:
            return self.node("Clip", a, self.constant(np.float32(-0.7)), self.constant(np.float32(1.1)))
        if kind == 10:
            return self.node("Max", a, b)
        if kind == 11:
            return self.node("Tanh", a)
        half = self.node("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2])
        half = self.pair(half) if self.rng.random() < 0.5 else half
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return self.node("Resize", half, "", scales, mode="nearest")

    def model(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [value("x", TensorProto.FLOAT, SHAPE)],
            [value(name, TensorProto.FLOAT, SHAPE) for name in self.outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_agrees(seed, compiled, run_lowered, plain_reference):
    made = Drawn(seed).model()
    found = compiled(made)
    assert len(found.models) == 1
    feeds = {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}
    for got, want in zip(run_lowered(found, feeds), plain_reference(made, feeds), strict=True):
        away = np.abs(got - want)
        assert away.max() < 0.25  # some steps of 0.03, one after the other
        assert away.mean() < 0.03  # the older interpreter rounds twice where the newer rounds once
