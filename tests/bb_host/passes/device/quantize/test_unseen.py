"""int8 on samples that calibration has not seen: no single output is far off, by LiteRT's recipe some are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bb_edge
from bb_host.build import build_edge
from bb_host.passes.device.quantize import Quantization
from benchmarks import models

Array = np.ndarray[Any, np.dtype[Any]]
SHAPE = (1, 49, 10)


def keyword_spotter(seed: int) -> onnx.ModelProto:
    """Depthwise-separable convolutions over 49 frames of 10 coefficients, a mean, a dense layer, Softmax."""
    rng = np.random.default_rng(seed)
    width, depth = int(rng.choice([16, 24, 32, 64])), int(rng.integers(2, 6))
    values: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []

    def conv(x: str, y: str, channels: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        dims = (width, channels // group, kernel, kernel)
        values[f"w_{y}"] = rng.standard_normal(dims) * np.sqrt(2 / np.prod(dims[1:]))
        values[f"b_{y}"] = rng.normal(0, 0.1, width)
        said = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": group}
        nodes.append(helper.make_node("Conv", [x, f"w_{y}", f"b_{y}"], [f"c_{y}"], **said))
        nodes.append(helper.make_node("Relu", [f"c_{y}"], [y]))
        return y

    x = conv("x", "first", 1, 3, 2)
    for i in range(depth):
        x = conv(conv(x, f"deep{i}", width, 3, group=width), f"point{i}", width, 1)
    pool = {"kernel_shape": [24, 5], "strides": [24, 5]}
    mean = ("AveragePool", pool) if seed % 2 == 0 else ("GlobalAveragePool", {})
    values["w"], values["b"] = rng.standard_normal((width, 12)) * np.sqrt(2 / width), rng.normal(0, 0.1, 12)
    nodes += [
        helper.make_node(mean[0], [x], ["g"], **mean[1]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in values.items()]
    graph = helper.make_graph(
        nodes, "net", [info("x", 1, ["N", *SHAPE])], [info("y", 1, ["N", 12])], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(seed: int, n: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).standard_normal((n, *shape)).astype(np.float32)


def test_no_single_output_is_far_off(reference: Any) -> None:
    worst: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(12):
        model, x = keyword_spotter(seed), samples(200 + seed, 32)
        want = reference(model, x)
        for like, found in worst.items():
            asked = Quantization("int8", {"x": samples(100 + seed, 64)}, (), like)
            (artifact,) = build_edge(model, backend="numpy", quantization=asked).artifacts
            error = np.abs(np.asarray(bb_edge.open_model(artifact.data)(x)) - want)
            found.append(float(error.max() / np.ptp(want)))
    print({like: [f"{100 * v:.1f} %" for v in found] for like, found in worst.items()})
    assert max(worst[False]) < 0.04
    assert max(worst[True]) > 2 * max(worst[False])
    assert np.mean(worst[False]) < np.mean(worst[True])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_benchmarks_keyword_spotter_changes_by_two_thirds_of_what_it_would(seed: int) -> None:
    model = models.ds_cnn()
    key = model.graph.input[0].name
    changes = []
    for like in (False, True):
        asked = Quantization("int8", {key: samples(seed, 48)}, (), like)
        (artifact,) = build_edge(model, backend="numpy", quantization=asked).artifacts
        assert artifact.accuracy is not None
        changes += [artifact.accuracy.outputs[0]]
    print([(f"{c.rms:.2e}", f"{c.relative:.1%}") for c in changes])
    assert changes[0].rms < changes[1].rms / 1.5
    assert changes[0].relative < changes[1].relative / 1.5
