"""Operators on int8: each case against the dequantized float reference, within a step or two of its result.

The models are in QDQ form as other quantizers write it: int8 or uint8 activations, int8 weights per output
channel (axis of the operator's own), int32 biases. The reference is onnxruntime with its rewriting off: float
between pairs.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.tflite.forms import FORMS

IMAGE = (2, 6, 7, 9)
_WEIGHT_AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.4).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class Weight:
    """A constant that is quantized: per channel of `axis`, or as a whole."""

    def __init__(self, values: np.ndarray, axis: int | None = None) -> None:
        self.values = values
        self.axis = axis


class Bias(Weight):
    """int32 at the product of the grids before it."""


class Case:
    """Operators `ops`, or one, between pairs; `kinds` are the operators that the flatbuffer must hold."""

    def __init__(
        self,
        kinds: str,
        op: str,
        shape: tuple[int, ...],
        *constants: Any,
        inputs: Any = (),
        steps: float = 1.01,
        open_batch: bool = True,
        same: bool = False,
        then: Any = (),
        opset: int = 17,
        outputs: int = 1,
        grid: Any = None,
        **attributes: Any,
    ) -> None:
        self.kinds, self.op, self.shape, self.constants = kinds.split(), op, shape, constants
        self.inputs, self.steps, self.open_batch, self.same = inputs, steps, open_batch, same
        self.then, self.opset, self.outputs, self.attributes = then, opset, outputs, attributes
        self.grid = grid

    def __repr__(self) -> str:
        said = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        more = "".join(f"+{kind}" for kind, *_ in self.then)
        return f"{self.op}{more}{list(self.shape)}{said}".replace(" ", "")


class Builder:
    """A model in QDQ form."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def grid(self, low: float, high: float) -> tuple[np.float32, int]:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32((high - low) / 255)
        zero = round(-low / float(scale))
        return scale, zero if self.dtype == "uint8" else zero - 128

    def pair(self, name: str, scale: np.float32, zero: int, result: str) -> None:
        known = [self.constant(np.asarray(scale)), self.constant(np.array(zero, self.dtype))]
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *known], [f"{name}_q"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *known], [result]))

    def weight(self, given: Weight, scale: np.float32, last: np.ndarray) -> tuple[str, np.ndarray]:
        """The name of what it dequantizes to, and its scales."""
        if isinstance(given, Bias):
            scales = last * scale
            stored = np.round(given.values / scales).astype(np.int32)
        elif given.axis is None:
            scales, zero = self.grid(float(given.values.min()), float(given.values.max()))
            info = np.iinfo(self.dtype)
            stored = np.clip(np.round(given.values / scales) + zero, info.min, info.max).astype(self.dtype)
            result = f"{self.constant(stored)}_dq"
            known = [self.constant(np.asarray(scales)), self.constant(np.array(zero, self.dtype))]
            self.nodes.append(helper.make_node("DequantizeLinear", [result[:-3], *known], [result]))
            return result, last
        else:
            others = tuple(i for i in range(given.values.ndim) if i != given.axis)
            scales = (np.abs(given.values).max(axis=others) / 127).astype(np.float32)
            grid = scales.reshape([-1 if i == given.axis else 1 for i in range(given.values.ndim)])
            stored = np.round(given.values / grid).astype(np.int8)
        inside = self.constant(stored)
        known = [self.constant(scales), self.constant(np.zeros(scales.shape, stored.dtype))]
        axis = given.axis or 0
        self.nodes.append(helper.make_node("DequantizeLinear", [inside, *known], [f"{inside}_dq"], axis=axis))
        return f"{inside}_dq", scales


def build(
    case: Case, dtype: str, symbolic: bool, reference: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """The model, its inputs, and the scale of its results."""
    rng = np.random.default_rng(7)
    feeds = {f"x{i}": rng.standard_normal(s).astype(np.float32) * (1 + i) for i, s in
             enumerate([case.shape, *case.inputs])}  # fmt: skip
    made = Builder(dtype)
    scales = []
    names = []
    for name, x in feeds.items():
        scale, zero = made.grid(float(x.min()), float(x.max()))
        scales.append((scale, zero))
        made.pair(name, scale, zero, f"{name}_dq")
        names.append(f"{name}_dq")
    last = np.ones(1, np.float32)
    for given in case.constants:
        if given is None:
            names.append("")
        elif isinstance(given, Weight):
            name, last = made.weight(given, scales[0][0], last)
            names.append(name)
        else:
            names.append(made.constant(np.asarray(given)))
    results = [f"r{i}" for i in range(case.outputs)]
    made.nodes.append(helper.make_node(case.op, names, results, **case.attributes))
    for n, (kind, *rest) in enumerate(case.then):
        more = [made.constant(np.asarray(value)) for value in rest]
        made.nodes.append(helper.make_node(kind, [results[-1], *more], [f"then{n}"]))
        results = [f"then{n}"]

    def model(outputs: list[str]) -> onnx.ModelProto:
        dims = {n: ["N", *x.shape[1:]] if symbolic else list(x.shape) for n, x in feeds.items()}
        graph = helper.make_graph(
            made.nodes,
            "case",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in dims.items()],
            [helper.make_empty_tensor_value_info(r) for r in outputs],
            made.weights,
        )
        whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(whole)

    floats = reference(model(results), feeds)
    low, high = min(float(f.min()) for f in floats), max(float(f.max()) for f in floats)
    scale, zero = scales[0] if case.same else case.grid or made.grid(low, high)
    if case.grid and dtype == "uint8":
        zero += 128
    for result in results:
        made.pair(result, np.float32(scale), zero, f"{result}_dq")
    return model([f"{result}_dq" for result in results]), feeds, np.asarray(scale)


W = normal(5, 6, 3, 2)
NORM = (normal(6), normal(6, seed=1), normal(6, seed=2), normal(6) ** 2 + np.float32(0.5))
CASES = [
    Case("CONV_2D", "Conv", IMAGE, Weight(W, 0), Bias(normal(5))),
    Case("CONV_2D", "Conv", IMAGE, Weight(W, 0)),
    Case("CONV_2D PAD", "Conv", IMAGE, Weight(W, 0), Bias(normal(5)), strides=[2, 3], pads=[1, 0, 2, 1]),
    Case("CONV_2D", "Conv", IMAGE, Weight(W, 0), auto_pad="SAME_UPPER", strides=[2, 2]),
    Case("CONV_2D", "Conv", IMAGE, Weight(W, 0), dilations=[2, 3], pads=[2, 2, 2, 2]),
    Case("CONV_2D", "Conv", IMAGE, Weight(W, 0), Bias(normal(5)), then=[("Relu",)]),
    Case("CONV_2D", "Conv", IMAGE, Weight(W * 9, 0), then=[("Clip", np.float32(0), np.float32(6))]),
    Case("CONV_2D MINIMUM", "Conv", IMAGE, Weight(W, 0), then=[("Clip", np.float32(-0.5), np.float32(0.7))]),
    Case("CONV_2D CONCATENATION SLICE", "Conv", IMAGE, Weight(normal(8, 3, 3, 3), 0), Bias(normal(8)),
         group=2),
    Case("DEPTHWISE_CONV_2D", "Conv", IMAGE, Weight(normal(6, 1, 3, 3), 0), Bias(normal(6)), group=6,
         pads=[1, 1, 1, 1], strides=[2, 2]),
    Case("DEPTHWISE_CONV_2D", "Conv", IMAGE, Weight(normal(12, 1, 3, 2), 0), group=6, dilations=[2, 2]),
    Case("CONV_2D DEPTH_TO_SPACE", "ConvTranspose", IMAGE, Weight(normal(6, 4, 2, 2), 1), Bias(normal(4)),
         strides=[2, 2]),
    Case("CONV_2D DEPTH_TO_SPACE SLICE", "ConvTranspose", IMAGE, Weight(normal(6, 4, 3, 3), 1),
         strides=[3, 3], pads=[1, 0, 0, 2]),
    Case("TRANSPOSE_CONV", "ConvTranspose", IMAGE, Weight(normal(6, 4, 3, 2), 1), Bias(normal(4)),
         strides=[2, 1], open_batch=False),
    Case("TRANSPOSE_CONV SLICE", "ConvTranspose", IMAGE, Weight(normal(6, 4, 3, 3), 1), pads=[1, 0, 1, 1],
         strides=[2, 2], open_batch=False),
    Case("FULLY_CONNECTED", "Gemm", (3, 6), Weight(normal(6, 5), 1), Bias(normal(5))),
    Case("FULLY_CONNECTED", "Gemm", (3, 6), Weight(normal(5, 6), 0), Bias(normal(5)), transB=1,
         then=[("Relu",)]),
    Case("FULLY_CONNECTED", "MatMul", (3, 4, 6), Weight(normal(6, 5), 1)),
    Case("TRANSPOSE FULLY_CONNECTED", "Gemm", (6, 3), Weight(normal(6, 5), 1), Bias(normal(5)), transA=1,
         open_batch=False),
    Case("FULLY_CONNECTED", "Einsum", (3, 4, 6), Weight(normal(6, 5), 1), equation="bij,jk->bik"),
    Case("FULLY_CONNECTED", "Einsum", (2, 4, 3, 5), Weight(normal(3, 5, 7), 2), equation="bihd,hdo->bio"),
    Case("BATCH_MATMUL", "Einsum", (2, 4, 3, 6), inputs=[(2, 5, 3, 6)], equation="bihd,bjhd->bhij"),
    Case("BATCH_MATMUL", "Einsum", (2, 3, 4, 5), Weight(normal(3, 6, 5)), equation="bhwc,hkc->bhwk"),
    Case("BATCH_MATMUL", "MatMul", (2, 3, 4, 6), inputs=[(2, 3, 6, 5)]),
    Case("BATCH_MATMUL", "MatMul", (3, 6, 6), inputs=[(3, 6, 4)]),
    Case("BATCH_MATMUL", "MatMul", (2, 3, 4, 6), Weight(normal(3, 6, 5))),
    Case("ADD", "Add", IMAGE, inputs=[IMAGE]),
    Case("ADD", "Add", IMAGE, inputs=[IMAGE], then=[("Relu",)]),
    Case("ADD", "Add", IMAGE, Weight(normal(6, 1, 1))),
    Case("ADD", "Add", (3, 4, 5), np.float32(0.7)),
    Case("SUB", "Sub", IMAGE, inputs=[IMAGE]),
    Case("SUB", "Sub", (3, 4, 5), Weight(normal(5))),
    Case("MUL", "Mul", IMAGE, inputs=[IMAGE]),
    Case("MUL", "Mul", IMAGE, Weight(normal(6, 1, 1))),
    Case("MUL", "Mul", (3, 4, 5), np.float32(0.35)),
    Case("MAX_POOL_2D", "MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2]),
    Case("MAX_POOL_2D PADV2", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 1, 2],
         same=True),
    Case("AVERAGE_POOL_2D", "AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], same=True),
    Case("DEPTHWISE_CONV_2D", "AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2]),
    Case("DEPTHWISE_CONV_2D", "AveragePool", IMAGE, kernel_shape=[5, 4], then=[("Relu",)]),
    Case("MEAN", "AveragePool", IMAGE, kernel_shape=[7, 9]),
    Case("MEAN STRIDED_SLICE", "AveragePool", IMAGE, kernel_shape=[6, 8], strides=[2, 2]),
    Case("DEPTHWISE_CONV_2D", "AveragePool", IMAGE, kernel_shape=[6, 8], strides=[2, 2], then=[("Relu",)]),
    Case("DEPTHWISE_CONV_2D PAD", "AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2],
         pads=[1, 0, 1, 1], count_include_pad=1),
    Case("AVERAGE_POOL_2D PAD", "AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1],
         count_include_pad=1, same=True),
    Case("AVERAGE_POOL_2D", "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], same=True),
    Case("MEAN", "GlobalAveragePool", IMAGE),
    Case("MEAN", "ReduceMean", IMAGE, axes=[2, 3], keepdims=0),
    Case("MEAN", "ReduceMean", (3, 4, 5), axes=[-1]),
    Case("SUM", "ReduceSum", (3, 4, 5), ints(-1), steps=2.01),
    Case("REDUCE_MAX", "ReduceMax", IMAGE, axes=[2, 3]),
    Case("REDUCE_MAX", "GlobalMaxPool", IMAGE),
    Case("REDUCE_MIN", "ReduceMin", (3, 4, 5), axes=[1]),
    Case("CONCATENATION", "Concat", IMAGE, inputs=[IMAGE], axis=1),
    Case("CONCATENATION RELU", "Concat", IMAGE, inputs=[IMAGE], axis=1, then=[("Relu",)]),
    Case("TRANSPOSE_CONV", "ConvTranspose", IMAGE, Weight(normal(6, 4, 3, 2), 1), then=[("Relu",)],
         strides=[2, 1], open_batch=False),
    Case("CONCATENATION", "Concat", (3, 4), inputs=[(3, 5)], axis=1),
    Case("CONCATENATION", "Concat", (3, 4, 5), Weight(normal(3, 4, 2)), axis=2, open_batch=False),
    Case("PAD", "Pad", IMAGE, ints(0, 1, 2, 0, 0, 0, 1, 3), same=True),
    Case("GATHER", "Pad", IMAGE, ints(0, 5, 2, 0, 0, 0, 1, 3), mode="reflect", same=True),
    Case("TILE", "Tile", IMAGE, ints(1, 3, 1, 2), same=True),
    Case("RESHAPE", "Reshape", IMAGE, ints(0, 3, -1), same=True),
    Case("RESHAPE", "Flatten", IMAGE),
    Case("RESHAPE", "Squeeze", (3, 1, 4), ints(1), same=True),
    Case("RESHAPE", "Unsqueeze", (3, 4), ints(1), same=True),
    Case("TRANSPOSE", "Transpose", (3, 4, 5), perm=[0, 2, 1], same=True),
    Case("TRANSPOSE", "Transpose", IMAGE, perm=[0, 2, 3, 1]),
    Case("SOFTMAX", "Softmax", (3, 2), axis=-1, steps=2.01),
    Case("SOFTMAX", "Softmax", (3, 7), axis=-1, grid=(1 / 256, -128)),
    Case("SOFTMAX", "Softmax", IMAGE, axis=1, grid=(1 / 256, -128)),
    Case("LOGISTIC", "Sigmoid", IMAGE, grid=(1 / 256, -128)),
    Case("LOGISTIC", "Sigmoid", (3, 5), steps=2.01),
    Case("TANH", "Tanh", IMAGE, grid=(1 / 128, 0)),
    Case("TANH", "Tanh", (3, 500), steps=2.01),
    Case("DEPTHWISE_CONV_2D", "BatchNormalization", IMAGE, *NORM),
    Case("DEPTHWISE_CONV_2D", "BatchNormalization", IMAGE, np.float32([1, 0, -2, 1e-3, 1, 4]), *NORM[1:],
         then=[("Relu",)]),
    Case("PRELU", "PRelu", IMAGE, Weight(normal(6, 1, 1))),
    Case("PRELU", "PRelu", IMAGE, np.float32(0.3)),
    Case("PRELU", "PRelu", (3, 5), Weight(normal(5))),
    Case("RELU", "Relu", IMAGE),
    Case("RELU6", "Clip", IMAGE, np.float32(0), np.float32(6)),
    Case("MAXIMUM MINIMUM", "Clip", IMAGE, np.float32(-0.5), np.float32(0.7)),
    Case("MAXIMUM", "Max", IMAGE, inputs=[IMAGE]),
    Case("MINIMUM", "Min", (3, 4, 5), inputs=[(3, 4, 5)]),
    Case("LEAKY_RELU", "LeakyRelu", IMAGE, alpha=0.3),
    Case("GELU", "Gelu", (3, 7), opset=20),
    Case("GELU", "Gelu", IMAGE, opset=20, approximate="tanh"),
    Case("MUL", "Div", (3, 4, 5), np.float32(2.6)),
    Case("HARD_SWISH", "HardSwish", IMAGE, steps=2.01),
    Case("SLICE", "Slice", IMAGE, ints(1, -4), ints(5, 2**62), ints(1, 3), same=True),
    Case("STRIDED_SLICE", "Slice", IMAGE, ints(0, 1), ints(7, 9), ints(2, 3), ints(3, 2), same=True),
    Case("SLICE", "Split", IMAGE, ints(2, 4), outputs=2, axis=1, same=True),
    Case("GATHER", "Gather", (3, 7, 4), ints(0, 3, -1), axis=1, same=True),
    Case("DEPTH_TO_SPACE", "DepthToSpace", (2, 12, 3, 5), blocksize=2, same=True),
    Case("RESIZE_NEAREST_NEIGHBOR", "Resize", IMAGE, None, np.array([1, 1, 2, 2], np.float32),
         mode="nearest", same=True),
    Case("RESIZE_BILINEAR", "Resize", IMAGE, None, np.array([1, 1, 2, 2], np.float32), mode="linear",
         same=True),
    Case("RESIZE_BILINEAR", "Resize", IMAGE, None, np.array([1, 1, 3, 2], np.float32), mode="linear",
         coordinate_transformation_mode="align_corners", same=True),
]  # fmt: skip


def operators(data: bytes) -> list[tuple[str, str]]:
    """Kind and element type of the first result of each operator, as LiteRT's object API reads them."""
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    kinds = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
    types = {v: k for k, v in vars(schema.TensorType).items() if not k.startswith("_")}
    (graph,) = model.subgraphs
    return [
        (kinds[model.operatorCodes[op.opcodeIndex].builtinCode], types[graph.tensors[op.outputs[0]].type])
        for op in graph.operators
    ]


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_operator_computes_on_integers(case, dtype, symbolic, compiled, run_lowered, plain_reference):
    if symbolic and not case.open_batch:
        pytest.skip("its batch cannot be open")
    pytest.importorskip("ai_edge_litert.schema_py_generated")
    model, feeds, scale = build(case, dtype, symbolic, plain_reference)
    found = compiled(model)
    (node,) = found.models
    assert not found.lowering.kept, found.lowering.explain()
    (lowered,) = found.lowering.models
    assert not lowered.in_float, found.lowering.explain()
    ops = operators(node.attrs["model"])
    assert not [op for op in ops if op[0] != "DEQUANTIZE" and op[1] != "INT8"]
    assert set(case.kinds) <= {kind for kind, _ in ops}, ops
    for got, want in zip(run_lowered(found, feeds), plain_reference(model, feeds), strict=True):
        assert got.shape == want.shape
        assert float(np.abs(got - want).max() / scale) <= case.steps


def test_every_form_has_cases():
    assert not set(FORMS) - {kind for case in CASES for kind in case.kinds}
