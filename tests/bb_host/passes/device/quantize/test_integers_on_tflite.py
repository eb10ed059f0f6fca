"""int8 inside of flatbuffers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import bb_edge
from bb_edge.backends.tflite import backend as tflite_backend
from bb_edge.backends.tflite.probe import Interpreter
from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.passes.device.quantize import Quantization

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


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_auto_takes_int8_and_the_device_runs_it_with_and_without_an_interpreter(
    kind: str,
    mlp: Callable[..., onnx.ModelProto],
    cnn: Callable[..., onnx.ModelProto],
    samples: Callable[..., Array],
    reference: Callable[[onnx.ModelProto, Array], Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter")
    model = mlp() if kind == "mlp" else cnn()
    x = samples(model)
    (found,) = build_edge(model, backend="auto", quantization=Quantization("int8", {"x": x})).artifacts
    (lowered,) = found.lowering.models
    assert not lowered.in_float, found.lowering.explain()
    assert not found.lowering.kept, found.lowering.explain()
    want = reference(model, x)
    scale = np.ptp(want)
    fast = np.asarray(bb_edge.open_model(found.data)(x))
    assert np.abs(fast - want).mean() < 0.02 * scale
    monkeypatch.setattr(tflite_backend, "interpreter", lambda: Interpreter("", None, "none here"))
    slow = np.asarray(bb_edge.open_model(found.data)(x))
    assert np.abs(slow - want).mean() < 0.02 * scale
    assert np.abs(slow - fast).mean() < 0.005 * scale


@pytest.mark.parametrize("backend", ["tflite", "auto"])
@pytest.mark.parametrize(("left", "told"), [(-1.0, False), (1e-5, True)], ids=["dead", "nearly dead"])
def test_a_layer_that_is_nearly_dead_can_be_run(
    left: float, told: bool, backend: Any, reference: Callable[[onnx.ModelProto, Array], Array]
) -> None:
    """Kernels compute no result that is so much finer than what it comes from; the device would refuse it."""
    pytest.importorskip("ai_edge_litert.interpreter")
    make, rng = onnx.helper.make_node, np.random.default_rng(4)
    x = rng.standard_normal((8, 4, 12, 12)).astype(np.float32)
    v = rng.standard_normal((1, 4, 1, 1)).astype(np.float32)
    most = np.einsum("nchw,c->nhw", x.astype(np.float64), v[0, :, 0, 0]).max()
    values = {
        "v": v,
        "b": np.float32([left - most]),
        "u": rng.standard_normal((4, 5, 1, 1)).astype(np.float32),
    }
    nodes = [
        make("Conv", ["x", "v", "b"], ["a"]),
        make("Relu", ["a"], ["r"]),
        make("Concat", ["x", "r"], ["c"], axis=1),
        make("Conv", ["c", "u"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 4, 12, 12])],
        [onnx.helper.make_tensor_value_info("y", 1, ["N", 4, 12, 12])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (found,) = build_edge(model, backend=backend, quantization=Quantization("int8", {"x": x})).artifacts
    assert ("too far apart" in found.lowering.explain()) == told
    want = reference(model, x)
    assert np.abs(np.asarray(bb_edge.open_model(found.data)(x)) - want).max() < 0.02 * np.ptp(want)


def _attention_by_einsum() -> tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], tuple[int, ...]]:
    make = onnx.helper.make_node
    nodes = [
        *(make("Einsum", ["x", f"w{v}"], [v], equation="bld,dhk->bhlk") for v in "qkv"),
        make("Einsum", ["q", "k"], ["s"], equation="bhlk,bhmk->bhlm"),
        make("Softmax", ["s"], ["p"], axis=-1),
        make("Einsum", ["p", "v"], ["o"], equation="bhlm,bhmk->blhk"),
        make("Einsum", ["o", "wo"], ["z"], equation="blhk,hkd->bld"),
        make("Einsum", ["z", "wy"], ["y"], equation="bld,de->ble"),
    ]
    weights = {**dict.fromkeys(("wq", "wk", "wv"), (16, 4, 4)), "wo": (4, 4, 16), "wy": (16, 5)}
    return nodes, weights, (6, 16)


def _padded_images() -> tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], tuple[int, ...]]:
    make = onnx.helper.make_node
    nodes = [
        make("Pad", ["x", "pads"], ["a"], mode="reflect"),
        make("Conv", ["a", "w"], ["c"]),
        make("Relu", ["c"], ["r"]),
        make("GlobalAveragePool", ["r"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Tile", ["f", "times"], ["t"]),
        make("MatMul", ["t", "u"], ["y"]),
    ]
    return nodes, {"w": (7, 3, 3, 3), "u": (14, 5)}, (3, 9, 11)


@pytest.mark.parametrize("net", [_attention_by_einsum, _padded_images])
def test_all_of_it_computes_on_integers(
    net: Callable[..., Any], reference: Callable[[onnx.ModelProto, Array], Array]
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter")
    nodes, weights, shape = net()
    rng = np.random.default_rng(5)
    values: dict[str, Array] = {
        name: (rng.standard_normal(dims) * 0.5).astype(np.float32) for name, dims in weights.items()
    }
    values |= {"pads": np.array([0, 0, 1, 1] * 2), "times": np.array([1, 2])}
    read = {name for node in nodes for name in node.input}
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", *shape])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name in read],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    x = rng.standard_normal((32, *shape)).astype(np.float32)
    (found,) = build_edge(model, backend="tflite", quantization=Quantization("int8", {"x": x})).artifacts
    assert found.accuracy is not None and not found.accuracy.left
    (lowered,) = found.lowering.models
    assert not lowered.in_float and not found.lowering.kept, found.lowering.explain()
    want = reference(model, x)
    assert np.abs(np.asarray(bb_edge.open_model(found.data)(x)) - want).mean() < 0.01 * np.ptp(want)
