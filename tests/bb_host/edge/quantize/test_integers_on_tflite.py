"""int8 inside of flatbuffers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.ir import keys
from bb_host.edge.quantize import Quantization
from bb_host.edge.target import build_edge

Array = np.ndarray[Any, np.dtype[Any]]


def test_products_between_pairs_are_integer(
    mlp: Callable[..., onnx.ModelProto],
    samples: Callable[..., Array],
    reference: Callable[[onnx.ModelProto, Array], Array],
) -> None:
    runtime = pytest.importorskip("ai_edge_litert.interpreter")
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    model = mlp()
    x = samples(model)
    asked = Quantization("int8", {"x": x})
    (found,) = build_edge(model, backend="tflite", quantization=asked).artifacts
    (node,) = [op for f in found.program.functions for op in f.ops if op.domain == keys.TFLITE_DOMAIN]
    data = node.attrs["model"]
    assert isinstance(data, bytes)
    graph = schema.ModelT.InitFromPackedBuf(data, 0).subgraphs[0]
    weights = [t for t in graph.tensors if t.type == schema.TensorType.INT8 and t.quantization and t.buffer]
    assert sum(len(t.quantization.scale) > 1 for t in weights) == 2
    interpreter = runtime.Interpreter(model_content=data, num_threads=1)
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], x.shape, strict=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    want = reference(model, x)
    error = np.abs(interpreter.get_tensor(result["index"]) - want)
    assert error.mean() < 0.02 * np.ptp(want)
