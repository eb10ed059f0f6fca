"""Weights as float16 inside of flatbuffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.passes.device.quantize import Quantization

Array = np.ndarray[Any, np.dtype[Any]]


def flatbuffer(model: onnx.ModelProto, mode: str | None) -> bytes:
    asked = None if mode is None else Quantization(mode)
    (found,) = build_edge(model, backend="tflite", quantization=asked).artifacts
    (node,) = [op for f in found.program.functions for op in f.ops if op.domain == keys.TFLITE_DOMAIN]
    data = node.attrs["model"]
    assert isinstance(data, bytes)
    return data


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_float16_weights_give_what_their_values_give(
    family: str,
    samples: Callable[..., Array],
    reference: Callable[[onnx.ModelProto, Array], Array],
    interpret: Callable[..., list[Array]],
    request: pytest.FixtureRequest,
) -> None:
    model = request.getfixturevalue(family)()
    data = flatbuffer(model, "fp16")
    assert len(data) < len(flatbuffer(model, None))
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    for tensor in rounded.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.size >= 64:
            half = array.astype(np.float16).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    x = samples(model)
    (found,) = interpret(data, [x])
    np.testing.assert_allclose(found, reference(rounded, x), rtol=1e-4, atol=1e-4)


def test_weights_that_float16_cannot_hold_stay(mlp: Callable[..., onnx.ModelProto]) -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="reads the flatbuffer with it")
    model = mlp()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] = 1e6
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    graph = schema.ModelT.InitFromPackedBuf(flatbuffer(model, "fp16"), 0).subgraphs[0]
    large = [t.type for t in graph.tensors if np.prod(t.shape) >= 64 and t.buffer and not t.isVariable]
    assert schema.TensorType.FLOAT16 in large
    assert schema.TensorType.FLOAT32 in large
