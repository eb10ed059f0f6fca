"""Models that onnxruntime's quantizer has made: taken as they are, their activations computed on integers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import bb_edge
from bb_host.build import build_edge

Array = np.ndarray[Any, np.dtype[Any]]

# onnxruntime 1.18's quantizer reads tables that onnx 1.16 gives up.
pytestmark = pytest.mark.filterwarnings("ignore:`mapping:DeprecationWarning")

AROUND_ZERO = "its weights are not int8 around zero with a scale per output channel"


def _quantized(
    model: onnx.ModelProto, x: Array, folder: Path, activations: str, weights: str, per_channel: bool
) -> onnx.ModelProto:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = iter(x)

        def get_next(self) -> dict[str, Array] | None:
            found = next(self.left, None)
            return None if found is None else {"x": found[None]}

    before, after = str(folder / "float.onnx"), str(folder / "int8.onnx")
    onnx.save(model, before)
    logging.disable(logging.WARNING)
    try:
        quantization.quantize_static(
            before,
            after,
            Samples(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType[activations],
            weight_type=quantization.QuantType[weights],
            per_channel=per_channel,
        )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(after)


def _as_it_stands(model: onnx.ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("net", ["mlp", "cnn"])
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("QUInt8", "QInt8", False), ("QInt8", "QInt8", True), ("QUInt8", "QUInt8", False)],
)
def test_what_onnxruntime_quantized_is_integers_here(
    net: str,
    activations: str,
    weights: str,
    per_channel: bool,
    mlp: Callable[..., onnx.ModelProto],
    cnn: Callable[..., onnx.ModelProto],
    samples: Callable[..., Array],
    reference: Callable[[onnx.ModelProto, Array], Array],
    tmp_path: Path,
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter")
    made = mlp() if net == "mlp" else cnn()
    x = samples(made)
    model = _quantized(made, x, tmp_path, activations, weights, per_channel)
    (found,) = build_edge(model, backend="auto").artifacts
    (lowered,) = found.lowering.models
    assert not found.lowering.kept, found.lowering.explain()
    if weights == "QInt8":
        assert not lowered.in_float, found.lowering.explain()
    else:  # weights with a zero point: the products stay in float
        assert {why for _, why in lowered.in_float} == {AROUND_ZERO}
    got = np.asarray(bb_edge.open_model(found.data)(x))
    span = np.ptp(reference(made, x))
    assert np.abs(got - _as_it_stands(model, x)).mean() < 0.005 * span
    assert np.abs(got - reference(made, x)).mean() < 0.02 * span
