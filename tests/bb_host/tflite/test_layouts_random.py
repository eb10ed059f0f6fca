"""Random float graphs of images and series: what computes channels last, what follows, and what does not.

`BB_GRAPHS=3000` runs so many of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.errors import NothingToQuantizeError
from bb_host.passes.device.quantize.qdq import WEIGHTED

FOUND = (962, 1191, 1398, 2244, 2784)
"""Graphs whose memories an interpreter has confused."""
SEEDS = (*range(int(os.environ.get("BB_GRAPHS", "60"))), *FOUND)
N_OPS = 12
LARGEST = 400
"""Elements of a value, without its batch."""

Shape = tuple[int, ...]


class Drawn:
    """A graph over values of three and four dimensions; `shapes` are without the batch."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 9])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        rank = self.number(3, 4)
        self.shapes: dict[str, Shape] = {
            "x": (self.number(1, 5), *(self.number(4, 8) for _ in range(rank - 2)))
        }
        kinds: list[Callable[[str, Shape], None]] = [
            self.unary, self.with_constant, self.with_another, self.conv, self.depthwise, self.pool,
            self.concat, self.split, self.cut, self.pad, self.transpose, self.reduce, self.softmax,
            self.instances, self.reshape, self.layer, self.batch,
        ]  # fmt: skip
        for _ in range(N_OPS):
            images = [name for name, shape in self.shapes.items() if len(shape) in (2, 3)]
            name = images[-1 - min(len(images) - 1, int(self.rng.exponential(1.5)))]
            kinds[self.number(0, len(kinds) - 1)](name, self.shapes[name])
        read = {name for node in self.nodes for name in node.input}
        self.outputs = [name for name in self.shapes if name not in read]

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def constant(self, array: object) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.5).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, inputs: Sequence[str], *shapes: Sequence[int], **attributes: object) -> None:
        names = [f"v{len(self.nodes)}_{i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        self.shapes.update((name, tuple(shape)) for name, shape in zip(names, shapes, strict=True))

    # --- kinds of ops

    def unary(self, x: str, shape: Shape) -> None:
        self.add(str(self.rng.choice(["Relu", "Tanh", "Neg", "LeakyRelu", "Softplus"])), [x], shape)

    def with_constant(self, x: str, shape: Shape) -> None:
        whole = (1, *shape)
        ending = whole[self.number(0, len(whole)) :]
        inputs = [x, self.normal(*(n if self.rng.random() < 0.6 else 1 for n in ending))]
        self.add(str(self.rng.choice(["Add", "Mul", "Sub"])), inputs[:: self.rng.choice([1, -1])], shape)

    def with_another(self, x: str, shape: Shape) -> None:
        alike = [name for name, other in self.shapes.items() if other == shape]
        other = alike[self.number(0, len(alike) - 1)]
        self.add(str(self.rng.choice(["Add", "Mul", "Max", "Sum"])), [x, other], shape)

    def conv(self, x: str, shape: Shape) -> None:
        after, kernel = self.number(1, 6), [self.number(1, min(3, n)) for n in shape[1:]]
        strides, pads = [self.number(1, 2) for _ in kernel], [self.number(0, k - 1) for k in kernel]
        size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(shape[1:], pads, kernel, strides, strict=True)]
        inputs = [x, self.normal(after, shape[0], *kernel), self.normal(after)]
        self.add("Conv", inputs, (after, *size), strides=strides, pads=pads * 2)

    def depthwise(self, x: str, shape: Shape) -> None:
        kernel = [self.number(1, min(3, n)) for n in shape[1:]]
        size = [n - k + 1 for n, k in zip(shape[1:], kernel, strict=True)]
        self.add("Conv", [x, self.normal(shape[0], 1, *kernel)], (shape[0], *size), group=shape[0])

    def pool(self, x: str, shape: Shape) -> None:
        if self.rng.random() < 0.3:
            self.add("GlobalAveragePool", [x], (shape[0], *[1] * (len(shape) - 1)))
            return
        kernel = [self.number(1, min(2, n)) for n in shape[1:]]
        size = [n // k for n, k in zip(shape[1:], kernel, strict=True)]
        kind = str(self.rng.choice(["MaxPool", "AveragePool"]))
        self.add(kind, [x], (shape[0], *size), kernel_shape=kernel, strides=kernel)

    def concat(self, x: str, shape: Shape) -> None:
        axis = self.number(0, len(shape) - 1)

        def rest(other: Shape) -> Shape:
            return (len(other), *other[:axis], *other[axis + 1 :])

        alike = [name for name, other in self.shapes.items() if rest(other) == rest(shape)]
        other = alike[self.number(0, len(alike) - 1)]
        joined = (*shape[:axis], shape[axis] + self.shapes[other][axis], *shape[axis + 1 :])
        if np.prod(joined) <= LARGEST:
            self.add("Concat", [x, other], joined, axis=axis + 1)

    def split(self, x: str, shape: Shape) -> None:
        axis = self.number(0, len(shape) - 1)
        if shape[axis] > 1:
            first = self.number(1, shape[axis] - 1)
            parts = (first, shape[axis] - first)
            shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in parts]
            self.add("Split", [x, self.ints(*parts)], *shapes, axis=axis + 1)

    def cut(self, x: str, shape: Shape) -> None:
        axis = self.number(0, len(shape) - 1)
        begin, step = self.number(0, shape[axis] - 1), self.number(1, 2)
        end = self.number(begin + 1, shape[axis])
        size = (*shape[:axis], -(-(end - begin) // step), *shape[axis + 1 :])
        self.add("Slice", [x, *(self.ints(n) for n in (begin, end, axis + 1, step))], size)

    def pad(self, x: str, shape: Shape) -> None:
        before, after = ([self.number(0, 1) for _ in shape] for _ in range(2))
        size = [n + a + b for n, a, b in zip(shape, before, after, strict=True)]
        if np.prod(size) <= LARGEST:
            self.add("Pad", [x, self.ints(0, *before, 0, *after), self.constant(np.float32(0.5))], size)

    def transpose(self, x: str, shape: Shape) -> None:
        order = [int(axis) for axis in self.rng.permutation(len(shape))]
        self.add("Transpose", [x], [shape[axis] for axis in order], perm=[0, *(axis + 1 for axis in order)])

    def reduce(self, x: str, shape: Shape) -> None:
        axes = sorted({self.number(0, len(shape) - 1) for _ in range(2)})
        keep = self.number(0, 1)
        size = [1 if axis in axes else n for axis, n in enumerate(shape) if keep or axis not in axes]
        if size:
            kind = str(self.rng.choice(["ReduceMean", "ReduceMax", "ReduceL2"]))
            self.add(kind, [x], size, axes=[axis + 1 for axis in axes], keepdims=keep)

    def softmax(self, x: str, shape: Shape) -> None:
        self.add("Softmax", [x], shape, axis=self.number(1, len(shape)))

    def instances(self, x: str, shape: Shape) -> None:
        gains = [self.normal(shape[0]), self.normal(shape[0])]
        self.add("InstanceNormalization", [x, *gains], shape, epsilon=0.1)

    def reshape(self, x: str, shape: Shape) -> None:
        sizes = [n for n in range(1, 21) if np.prod(shape) % n == 0]
        channels = int(self.rng.choice(sizes))
        rest = int(np.prod(shape)) // channels
        height = int(self.rng.choice([n for n in range(1, rest + 1) if rest % n == 0]))
        to = (channels, rest) if self.rng.random() < 0.4 else (channels, height, rest // height)
        self.add("Reshape", [x, self.ints(0, *to)], to)

    def layer(self, x: str, shape: Shape) -> None:
        self.add("LayerNormalization", [x, self.normal(shape[-1])], shape, epsilon=0.1)

    def batch(self, x: str, shape: Shape) -> None:
        gains = [self.normal(shape[0]) for _ in range(3)]
        variance = self.constant(self.rng.random(shape[0], np.float32) + np.float32(0.5))
        self.add("BatchNormalization", [x, *gains, variance], shape)

    def model(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        batch = self.rng.choice([2, "N"])
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [value("x", TensorProto.FLOAT, [batch if batch == "N" else 2, *self.shapes["x"]])],
            [value(name, TensorProto.FLOAT, None) for name in self.outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_agrees(seed, compiled, run_lowered, plain_reference):
    drawn = Drawn(seed)
    model = drawn.model()
    found = compiled(model)
    assert not found.lowering.kept, found.lowering.explain()
    feeds = {"x": drawn.rng.standard_normal((2, *drawn.shapes["x"])).astype(np.float32)}
    for got, want in zip(run_lowered(found, feeds), plain_reference(model, feeds), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_in_int8_is_what_devices_take(seed, compiled, run_lowered):
    """As in QDQ form on the kernels, but for rounding; and nothing that the device's check refuses."""
    drawn = Drawn(seed)
    model = drawn.model()
    x = drawn.rng.standard_normal((16, *drawn.shapes["x"])).astype(np.float32)
    try:
        found = compiled(model, "tflite", {"x": x})
    except NothingToQuantizeError:
        assert not any(node.op_type in WEIGHTED for node in model.graph.node)
        return
    assert not found.lowering.kept, found.lowering.explain()
    pairs, feeds = compiled(model, "numpy", {"x": x}), {"x": x[:2]}
    for got, want in zip(run_lowered(found, feeds), run_lowered(pairs, feeds), strict=True):
        assert got.shape == want.shape
        # Some outputs are a step of what they come from.
        assert np.abs(got - want).mean() <= 0.05 * max(float(np.abs(want).max()), 0.2)


def test_a_chain_of_reshapes_is_read_at_both_ends(compiled, run_lowered, reference):
    """tflite-runtime 2.14 would compute in place what is still to be read."""
    node, value = helper.make_node, helper.make_tensor_value_info
    shapes = {"first": [0, 1, 10], "second": [0, 10, 1, 1], "third": [0, 2, 5]}
    sizes = {"begin": [0], "end": [4], "axis": [2]}
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in {**shapes, **sizes}.items()]
    weights.append(numpy_helper.from_array(np.float32(3), "three"))
    nodes = [
        node("Neg", ["x"], ["n"]),
        node("Reshape", ["n", "first"], ["a"]),
        node("Reshape", ["a", "second"], ["b"]),
        node("Reshape", ["b", "third"], ["c"]),
        node("Mul", ["c", "three"], ["m"]),
        node("Add", ["m", "three"], ["y"]),
        node("Slice", ["a", "begin", "end", "axis"], ["z"]),
    ]
    outputs = [value("y", TensorProto.FLOAT, None), value("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "chain", [value("x", TensorProto.FLOAT, ["N", 5, 2])], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.arange(30, dtype=np.float32).reshape(3, 5, 2)}
    found = compiled(model)
    for got, want in zip(run_lowered(found, feeds), reference(model, feeds), strict=True):
        np.testing.assert_array_equal(got, want)
