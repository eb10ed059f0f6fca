"""Bias correction: results of layers in int8 are on average what they are in float."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import bb_edge
from bb_host.build import build_edge
from bb_host.passes.device.quantize import Quantization

Array = np.ndarray[Any, np.dtype[Any]]
make = onnx.helper.make_node
IMAGE = (8, 9, 11)
AT = np.linspace(0.3, 2.7, 7)
"""What an input's channels are about: rounding them to a coarse grid shifts each all in one direction. The
last channel makes the grid coarse, and has no weight.
"""


def model_of(nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in weights.items()}
    if nodes[0].op_type in ("Conv", "ConvTranspose", "Gemm"):
        _without_the_last_channel(nodes[0], values["w"])
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", *shape])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def _without_the_last_channel(op: onnx.NodeProto, weight: Array) -> None:
    turned = any(a.name == "transB" for a in op.attribute)
    if op.op_type == "ConvTranspose" or (op.op_type == "Gemm" and not turned) or weight.shape[1] == 1:
        weight[-1] = 0
    elif weight.shape[1] < len(AT) + 1 and op.op_type == "Conv":
        weight[len(weight) // 2 :, -1] = 0  # of the second group
    else:
        weight[:, -1] = 0


def samples(shape: tuple[int, ...], n: int = 64) -> Array:
    rng = np.random.default_rng(4)
    x = rng.normal(0, 0.02, (n, *shape))
    x[:, :-1] += AT.reshape(-1, *[1] * (len(shape) - 1))
    x[:, -1] = rng.uniform(-60, 60, x[:, -1].shape)
    return x.astype(np.float32)


def shift(model: Any, x: Array, reference: Any, **asked: bool) -> float:
    """The root mean square of how far channels are off on average, over the output's range."""
    (found,) = build_edge(
        model, backend="numpy", quantization=Quantization("int8", {"x": x}, **asked)
    ).artifacts
    want = reference(model, x)
    error = np.asarray(bb_edge.open_model(found.data)(x)) - want
    others = tuple(i for i in range(error.ndim) if i != 1)
    return float(np.sqrt(np.square(error.mean(others)).mean()) / np.ptp(want))


@pytest.mark.parametrize(
    ("kind", "weight", "channels", "shape", "attrs"),
    [
        ("Conv", (6, 8, 3, 3), 6, IMAGE, {}),
        ("Conv", (6, 8, 3, 3), 6, IMAGE, {"pads": [1, 1, 1, 1]}),
        ("Conv", (6, 8, 5, 3), 6, IMAGE, {"pads": [2, 0, 2, 3], "strides": [2, 3]}),
        ("Conv", (6, 8, 3, 3), 6, IMAGE, {"pads": [3, 2, 0, 2], "dilations": [2, 1]}),
        ("Conv", (6, 8, 4, 4), 6, IMAGE, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", (6, 8, 4, 4), 6, IMAGE, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("Conv", (8, 1, 3, 3), 8, IMAGE, {"group": 8, "pads": [1, 1, 1, 1]}),
        ("Conv", (6, 4, 3, 3), 6, IMAGE, {"group": 2}),
        ("Conv", (6, 8, 3), 6, (8, 17), {"pads": [1, 1]}),
        ("ConvTranspose", (8, 6, 3, 3), 6, IMAGE, {"strides": [2, 2]}),
        ("ConvTranspose", (8, 6, 3, 2), 6, IMAGE, {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
        ("Gemm", (8, 6), 6, (8,), {}),
        ("Gemm", (6, 8), 6, (8,), {"transB": 1}),
    ],
    ids=str,
)
def test_a_layers_mean_is_what_it_is_in_float(
    kind: str,
    weight: tuple[int, ...],
    channels: int,
    shape: tuple[int, ...],
    attrs: dict[str, Any],
    reference: Any,
) -> None:
    model = model_of([make(kind, ["x", "w", "b"], ["y"], **attrs)], {"w": weight, "b": (channels,)}, shape)
    x = samples(shape)
    plain = shift(model, x, reference, like_litert=True)
    assert plain > 0.002, "there is something to be corrected"
    assert shift(model, x, reference) < 0.3 * plain


def test_each_layer_is_corrected_for_its_own_share(reference: Any) -> None:
    nodes = [
        make("Conv", ["x", "w", "b1"], ["a"], pads=[1, 1, 1, 1]),
        make("Relu", ["a"], ["r"]),
        make("Conv", ["r", "w2", "b2"], ["c"]),
        make("Relu", ["c"], ["s"]),
        make("GlobalAveragePool", ["s"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    weights = {"w": (8, 8, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (8, 5), "b3": (5,)}
    model, x = model_of(nodes, weights, IMAGE), samples(IMAGE)
    assert shift(model, x, reference) < 0.5 * shift(model, x, reference, like_litert=True)


def test_what_has_no_bias_and_what_stays_in_float_is_left_as_it_is(reference: Any) -> None:
    nodes = [make("Conv", ["x", "w"], ["a"]), make("Conv", ["a", "w2", "b2"], ["y"])]
    model, x = model_of(nodes, {"w": (8, 8, 1, 1), "w2": (4, 8, 1, 1), "b2": (4,)}, IMAGE), samples(IMAGE)
    asked = [Quantization("int8", {"x": x}, ["y"], like) for like in (False, True)]
    one, other = (build_edge(model, backend="numpy", quantization=a).artifacts[0].data for a in asked)
    assert one == other


def test_a_mean_over_windows_has_a_grid_of_its_own(reference: Any) -> None:
    nodes = [make("AveragePool", ["x"], ["p"], kernel_shape=[9, 10]), make("Conv", ["p", "w", "b"], ["y"])]
    model = model_of(nodes, {"w": (6, 8, 1, 1), "b": (6,)}, IMAGE)
    x = np.random.default_rng(4).normal(0, 20, (64, *IMAGE)).astype(np.float32)
    worst = [
        build_edge(model, backend="numpy", quantization=Quantization("int8", {"x": x}, (), like))
        .artifacts[0]
        .accuracy.outputs[0]
        .rms
        for like in (False, True)
    ]
    assert worst[0] < 0.2 * worst[1]
