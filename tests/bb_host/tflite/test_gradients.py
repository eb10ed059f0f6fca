"""Gradients operator by operator: lowered in full, taken by XNNPACK, equal to float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.models import Net

spec = importlib.util.spec_from_file_location(
    "training_steps", Path(__file__).resolve().parent / "training_steps.py"
)
assert spec is not None and spec.loader is not None
steps = importlib.util.module_from_spec(spec)
spec.loader.exec_module(steps)

IMAGE = (3, 6, 9, 8)
SERIES = (3, 6, 13)
VECTOR = (3, 6)

Body = Callable[[Net, str], str]


def net(shape: tuple[int, ...], body: Body) -> onnx.ModelProto:
    """A body between a trained gain per channel and a trained bias: gradients go in and out of it."""
    made = Net("case", shape)
    few = (shape[1], *[1] * (len(shape) - 2))
    gain = made.weight(np.random.default_rng(5).uniform(0.5, 1.5, few).astype(np.float32))
    y = body(made, str(made.op("Mul", "x", gain)))
    result = helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(made.nodes, "case", [made.x], [result], made.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def conv(*weight: int, bias: bool = True, **attributes: Any) -> Body:
    def body(made: Net, x: str) -> str:
        wide = weight[0] if "out" not in attributes else attributes["out"]
        given = [made.normal(*weight, scale=0.3), *([made.normal(wide, scale=0.1)] if bias else [])]
        return str(made.op("Conv", x, *given, **attributes))

    return body


def transposed(*weight: int, **attributes: Any) -> Body:
    def body(made: Net, x: str) -> str:
        wide = weight[1] * attributes.get("group", 1)
        given = [made.normal(*weight, scale=0.3), made.normal(wide, scale=0.1)]
        return str(made.op("ConvTranspose", x, *given, **attributes))

    return body


def unary(kind: str, *constants: Any, **attributes: Any) -> Body:
    def body(made: Net, x: str) -> str:
        given = [made.weight(np.asarray(c)) if c is not None else "" for c in constants]
        return str(made.op(kind, x, *given, **attributes))

    return body


def with_parameter(kind: str, *shape: int, **attributes: Any) -> Body:
    return lambda made, x: str(made.op(kind, x, made.normal(*shape), **attributes))


def layer_norm(made: Net, x: str) -> str:
    bent = made.op("Tanh", x)  # what scales whole rows would be undone, and have no gradient but rounding
    return str(made.op("LayerNormalization", bent, made.normal(13), made.normal(13), axis=-1))


def batch_norm(made: Net, x: str) -> str:
    return made.norm(x, 6)


def split(made: Net, x: str) -> str:
    a, b = made.op("Split", x, made.ints(2, 4), outputs=2, axis=1)
    return str(made.op("Concat", made.op("Tanh", b), made.op("Mul", a, a), axis=1))


def gelu_in_parts(made: Net, x: str) -> str:
    bent = made.op("Erf", made.op("Div", x, made.weight(np.float32(2**0.5))))
    bent = made.op("Mul", x, made.op("Add", bent, made.weight(np.float32(1))))
    return str(made.op("Mul", bent, made.weight(np.float32(0.5))))


CASES: dict[str, tuple[tuple[int, ...], Body]] = {
    "conv": (IMAGE, conv(5, 6, 3, 3, pads=[1] * 4)),
    "conv without bias, uneven": (IMAGE, conv(5, 6, 2, 3, bias=False, pads=[1, 0, 0, 2])),
    "conv of points": (IMAGE, conv(5, 6, 1, 1)),
    "conv of points, strided": (IMAGE, conv(5, 6, 1, 1, strides=[2, 3])),
    "conv strided": (IMAGE, conv(5, 6, 3, 3, strides=[2, 2], pads=[1] * 4)),
    "conv strided beyond its window": (IMAGE, conv(5, 6, 2, 1, strides=[3, 3])),
    "conv dilated": (IMAGE, conv(5, 6, 3, 2, dilations=[2, 3], pads=[2, 1, 1, 2])),
    "conv strided and dilated": (IMAGE, conv(5, 6, 3, 2, dilations=[2, 2], strides=[3, 2])),
    "conv wide": (IMAGE, conv(5, 6, 5, 7, pads=[2, 3, 2, 3])),
    "conv SAME": (IMAGE, conv(5, 6, 4, 3, auto_pad="SAME_UPPER", strides=[2, 2])),
    "conv to many channels": (IMAGE, conv(24, 6, 3, 3, pads=[1] * 4)),
    "conv of all lines at once": (IMAGE, conv(5, 6, 9, 3)),
    "conv beyond the image": (IMAGE, conv(5, 6, 3, 3, pads=[3, 1, 4, 1])),
    "conv, rows that see padding alone": (IMAGE, conv(5, 6, 3, 3, pads=[9, 1, 9, 1], dilations=[9, 1])),
    "conv grouped": (IMAGE, conv(4, 3, 3, 3, group=2, pads=[1] * 4)),
    "conv multiplied": (IMAGE, conv(12, 1, 3, 3, group=6, pads=[1] * 4)),
    "conv depthwise": (IMAGE, conv(6, 1, 3, 3, group=6, pads=[1] * 4)),
    "conv depthwise, strided": (IMAGE, conv(6, 1, 3, 3, group=6, pads=[1] * 4, strides=[2, 2])),
    "conv depthwise, dilated": (IMAGE, conv(6, 1, 3, 2, group=6, dilations=[2, 2])),
    "conv of a series": (SERIES, conv(5, 6, 3, pads=[1, 1], strides=[2])),
    "conv of a series, depthwise": (SERIES, conv(6, 1, 5, group=6, pads=[2, 2])),
    "transposed": (IMAGE, transposed(6, 4, 3, 3, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])),
    "transposed, line by line": (IMAGE, transposed(6, 4, 3, 3, strides=[1, 2], pads=[1] * 4)),
    "transposed, blocks": (IMAGE, transposed(6, 4, 2, 2, strides=[2, 2])),
    "transposed, gaps": (IMAGE, transposed(6, 4, 1, 2, strides=[3, 2])),
    "transposed, grouped": (IMAGE, transposed(6, 2, 3, 2, group=2, strides=[1, 2])),
    "transposed, depthwise": (IMAGE, transposed(6, 1, 3, 3, group=6, strides=[2, 1])),
    "transposed series": (SERIES, transposed(6, 4, 4, strides=[3], dilations=[2])),
    "max": (IMAGE, unary("MaxPool", kernel_shape=[2, 2], strides=[2, 2])),
    "max overlapping": (IMAGE, unary("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)),
    "max uneven": (IMAGE, unary("MaxPool", kernel_shape=[2, 3], strides=[1, 3])),
    "max of a series": (SERIES, unary("MaxPool", kernel_shape=[3], strides=[3], ceil_mode=1)),
    "average": (IMAGE, unary("AveragePool", kernel_shape=[2, 2], strides=[2, 2])),
    "average overlapping": (
        IMAGE,
        unary("AveragePool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    ),
    "global average": (IMAGE, unary("GlobalAveragePool")),
    "batch norm": (IMAGE, batch_norm),
    "batch norm of a series": (SERIES, batch_norm),
    "batch norm of vectors": (VECTOR, batch_norm),
    "layer norm": (SERIES, layer_norm),
    "dense": (VECTOR, with_parameter("MatMul", 6, 4)),
    "dense of a series": (SERIES, with_parameter("MatMul", 13, 4)),
    "gemm": (
        VECTOR,
        lambda made, x: str(made.op("Gemm", x, made.normal(6, 4), made.normal(4), alpha=0.5, beta=2.0)),
    ),
    "gemm turned": (VECTOR, with_parameter("Gemm", 4, 6, transB=1)),
    "relu": (IMAGE, unary("Relu")),
    "relu6": (
        IMAGE,
        lambda made, x: str(
            made.op(
                "Clip",
                made.op("Mul", x, made.weight(np.float32(5))),
                made.weight(np.float32(0)),
                made.weight(np.float32(6)),
            )
        ),
    ),
    "clip": (IMAGE, unary("Clip", np.float32(-0.5), np.float32(0.75))),
    "leaky": (IMAGE, unary("LeakyRelu", alpha=0.2)),
    "elu": (IMAGE, unary("Elu", alpha=0.7)),
    "prelu": (IMAGE, with_parameter("PRelu", 6, 1, 1)),
    "hard sigmoid": (IMAGE, unary("HardSigmoid")),
    "hard swish": (
        IMAGE,
        lambda made, x: str(made.op("HardSwish", made.op("Mul", x, made.weight(np.float32(3))))),
    ),
    "sigmoid": (IMAGE, unary("Sigmoid")),
    "softplus": (IMAGE, unary("Softplus")),
    "gelu": (IMAGE, unary("Gelu")),
    "gelu by tanh": (IMAGE, unary("Gelu", approximate="tanh")),
    "gelu in parts": (IMAGE, gelu_in_parts),
    "abs": (IMAGE, unary("Abs")),
    "maximum": (IMAGE, with_parameter("Max", 6, 1, 1)),
    "softmax": (SERIES, unary("Softmax", axis=-1)),
    "log softmax": (VECTOR, unary("LogSoftmax", axis=-1)),
    "largest": (IMAGE, unary("ReduceMax", np.array([2, 3]), keepdims=1)),
    "mean": (IMAGE, unary("ReduceMean", np.array([1]), keepdims=1)),
    "sum of all but channels": (IMAGE, unary("ReduceSum", np.array([2, 3]), keepdims=0)),
    "bias per row": (IMAGE, with_parameter("Add", 9, 1)),
    "pad": (IMAGE, unary("Pad", np.array([0, 0, 1, 2, 0, 0, 2, 0]))),
    "slice": (IMAGE, unary("Slice", np.array([1, 2]), np.array([5, 7]), np.array([1, 3]))),
    "split": (IMAGE, split),
    "power": (IMAGE, unary("Pow", np.float32(3))),
}


@pytest.fixture(scope="module")
def step():
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = steps.Step(net(*CASES[name]), CASES[name][0][0], "mse", train=["w0"])
        return made[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_that_of_float64(name, step, interpret):
    found = step(name)
    assert not found.report.kept, found.report.explain()
    (model,) = found.lowered.ops
    feeds = found.feeds()
    results = interpret(model.attrs["model"], [feeds[v] for v in model.inputs])
    named = dict(zip(model.outputs, results, strict=True))
    got, want = [named[v] for v in found.function.outputs], steps.in_double(found.function, feeds)
    assert [x.shape for x in got] == [x.shape for x in want]
    assert steps.worst(got, want) < steps.LARGEST


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_one_delegate(name, step):
    (model,) = step(name).models
    assert steps.outside(model.attrs["model"]) == []


@pytest.mark.parametrize("name", ["conv", "conv to many channels", "conv wide", "transposed"])
def test_a_convolution_and_its_gradients_are_a_product_each(name, step):
    (model,) = step(name).models
    assert steps.operators(model.attrs["model"]).count("BATCH_MATMUL") == 3
