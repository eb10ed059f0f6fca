from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]


def mlp_model(seed: int = 0, opset: int = 17) -> onnx.ModelProto:
    """x[N, 16] → Gemm+Relu → MatMul+Add → Softmax; names of layers: a, h, m, z, y."""
    r = np.random.default_rng(seed)
    values = {
        "w1": r.normal(size=(32, 16)) * 0.3,
        "b1": r.normal(size=32),
        "w2": r.normal(size=(32, 10)) * 0.3,
        "b2": r.normal(size=10),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    return _model("mlp", nodes, values, ["N", 16], ["N", 10], opset)


def cnn_model(seed: int = 0) -> onnx.ModelProto:
    """Residual: Conv+Relu, depthwise Conv+Clip, pointwise Conv, Add, MaxPool, Pad, Concat, mean, Gemm."""
    r = np.random.default_rng(seed)
    width, size = int(r.integers(4, 9)), int(r.integers(9, 15))
    values = {
        "w1": r.normal(size=(width, 3, 3, 3)) * 0.3,
        "b1": r.normal(size=width) * 0.3,
        "w2": r.normal(size=(width, 1, 3, 3)) * 0.4,
        "b2": r.normal(size=width) * 0.3,
        "w3": r.normal(size=(width, width, 1, 1)) * 0.4,
        "w4": r.normal(size=(2 * width, 10)) * 0.8,
        "b4": r.normal(size=10),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4, group=width),
        node("Clip", ["c2", "low", "high"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"]),
        node("Add", ["c3", "r1"], ["s"]),
        node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Sigmoid", ["p"], ["g"]),
        node("Concat", ["p", "g"], ["k"], axis=1),
        node("GlobalAveragePool", ["k"], ["q"]),
        node("Flatten", ["q"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"]),
    ]
    return _model("cnn", nodes, values, ["N", 3, size, size], ["N", 10], 17)


def _model(
    name: str, nodes: list[Any], values: dict[str, Any], x: list[Any], y: list[Any], opset: int
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        name,
        [info("x", TensorProto.FLOAT, x)],
        [info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="session")
def mlp() -> Callable[..., onnx.ModelProto]:
    return mlp_model


@pytest.fixture(scope="session")
def cnn() -> Callable[..., onnx.ModelProto]:
    return cnn_model


@pytest.fixture(scope="session")
def samples() -> Callable[..., Array]:
    """samples(model, n, seed): inputs of a model's `x`."""

    def make(model: onnx.ModelProto, n: int = 48, seed: int = 1) -> Array:
        dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
        return np.random.default_rng(seed).normal(size=(n, *dims)).astype(np.float32)

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[[onnx.ModelProto, Array], Array]:
    """What onnxruntime makes of a model, node by node.

    Its optimizations would fuse quantizers into integer kernels, whose sums overflow on processors that
    have no VNNI.
    """

    def run(model: onnx.ModelProto, x: Array) -> Array:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        (y,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
        return np.asarray(y)

    return run
