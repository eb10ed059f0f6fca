"""The recipe beside that of LiteRT's own quantizer: same operators, same grids, same weights, same results.

Their ranges come from their float kernels, ours from the device's on NumPy: sums in another order, so scales
differ in the last place, and a weight or a result that lies between two numbers may fall to the other one.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from bb_host.passes.device.quantize import Quantization
from benchmarks import models

WRAPPER = "ai_edge_litert._pywrap_tensorflow_lite_calibration_wrapper"


def _theirs(module: Any, data: bytes, samples: list[np.ndarray]) -> bytes:
    float32, int8, int32 = (np.dtype(name).num for name in ("float32", "int8", "int32"))
    wrapper = module.CalibrationWrapper(data, [], [])
    wrapper.Prepare([list(samples[0].shape)])
    for x in samples:
        wrapper.FeedTensor([x])
    return bytes(wrapper.QuantizeModel(float32, float32, True, int8, int32, False, False))


def _operators(schema: Any, data: bytes) -> list[tuple[int, Any, int | None, list[Any]]]:
    """Kind, scale and zero point of the result, and of each int8 constant its scales and numbers."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (graph,) = model.subgraphs
    found = []
    for op in graph.operators:
        result = graph.tensors[op.outputs[0]].quantization
        known = result is not None and result.scale is not None
        constants = []
        for index in op.inputs:
            tensor = graph.tensors[index] if index >= 0 else None
            if tensor is not None and tensor.type == schema.TensorType.INT8:
                raw = model.buffers[tensor.buffer].data
                if raw is not None and len(raw):
                    constants.append((np.asarray(tensor.quantization.scale), np.frombuffer(raw, np.int8)))
        found.append(
            (
                model.operatorCodes[op.opcodeIndex].builtinCode,
                float(result.scale[0]) if known else None,
                int(result.zeroPoint[0]) if known else None,
                constants,
            )
        )
    return found


@pytest.mark.parametrize("name", ["autoencoder", "ds_cnn", "mobilenet"])
def test_the_recipe_is_that_of_litert(name, compiled, interpret):
    module = pytest.importorskip(WRAPPER)
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    model = models.MLPERF_TINY[name]()
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(0).standard_normal((8, *dims[1:])).astype(np.float32)
    each = [samples[i : i + 1] for i in range(len(samples))]
    theirs = _theirs(module, compiled(model).models[0].attrs["model"], each)
    asked = Quantization("int8", {"x": samples}, like_litert=True)
    (ours,) = compiled(model, "tflite", asked).models
    data = ours.attrs["model"]
    assert isinstance(data, bytes)
    pairs = list(zip(_operators(schema, data), _operators(schema, theirs), strict=True))
    for (kind, scale, zero, constants), (other, want, point, others) in pairs:
        assert kind == other
        assert (scale is None) == (want is None)
        assert scale is None or scale == pytest.approx(want, rel=1e-6)
        assert zero == point
        for (scales, numbers), (known, stored) in zip(constants, others, strict=True):
            np.testing.assert_allclose(np.broadcast_to(scales, known.shape), known, rtol=1e-6)
            assert np.mean(numbers != stored) < 1e-3
    step = next(scale for (_, scale, _, _), _ in reversed(pairs) if scale is not None)
    for x in each[:4]:
        (got,), (want,) = interpret(data, [x]), interpret(theirs, [x])
        assert np.abs(got - want).max() < 1.01 * step
