"""A conformance case per rule: odd sizes, strides, pads, dilations, groups, batch above one, open batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.tflite import quantized
from bb_host.tflite.table import RULES
from bb_kernels import TensorSpec, evaluate, prepare

IMAGE = (2, 6, 7, 9)
SERIES = (2, 6, 11)


class Case:
    """One op on inputs of normal numbers; `open_batch` leaves the first dimension of x symbolic."""

    def __init__(
        self,
        op: str,
        shape: tuple[int, ...],
        *constants: Any,
        opset: int = 17,
        outputs: int = 1,
        inputs: Any = None,
        kind: str = "normal",
        open_batch: bool = True,
        **attributes: Any,
    ) -> None:
        self.op = op
        self.shape = shape
        self.constants = constants
        self.opset = opset
        self.outputs = outputs
        self.inputs = inputs or []
        self.kind = kind
        self.open_batch = open_batch
        self.attributes = attributes

    def __repr__(self) -> str:
        said = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.op}{list(self.shape)}{said}@{self.opset}".replace(" ", "")

    def model(self, symbolic: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        rng = np.random.default_rng(7)

        def array(shape: Any) -> np.ndarray:
            x = rng.standard_normal(shape).astype(np.float32)
            if self.kind == "positive":
                x = np.abs(x) + 0.25
            elif self.kind == "whole":
                x = np.round(x)
            elif self.kind == "halves":
                x = np.round(x * 8) / np.float32(2)
            return x

        feeds = {"x": array(self.shape)}
        for i, shape in enumerate(self.inputs):
            feeds[f"y{i}"] = array(shape)
        weights, names = [], [*feeds]
        for i, value in enumerate(self.constants):
            if value is None:
                names.append("")
                continue
            data = np.asarray(value)
            data = data.astype(np.float32) if data.dtype == np.float64 else data
            weights.append(numpy_helper.from_array(data, f"c{i}"))
            names.append(f"c{i}")
        nodes, results = self.nodes(names)

        def dims(x: np.ndarray) -> list[Any]:
            return ["N", *x.shape[1:]] if symbolic and x.ndim else list(x.shape)

        graph = helper.make_graph(
            nodes,
            "case",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims(x)) for n, x in feeds.items()],
            [helper.make_empty_tensor_value_info(r) for r in results],
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model), feeds

    def nodes(self, names: list[str]) -> tuple[list[onnx.NodeProto], list[str]]:
        results = [f"r{i}" for i in range(self.outputs)]
        node = helper.make_node
        if self.op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"):
            return [node(self.op, names, ["b"]), node("Cast", ["b"], results, to=1)], results
        if self.op in ("And", "Or"):
            first = [node("Greater", names, ["p"]), node("Less", names, ["q"])]
            return [*first, node(self.op, ["p", "q"], ["b"]), node("Cast", ["b"], results, to=1)], results
        if self.op == "Not":
            first = [node("Greater", names, ["p"]), node("Not", ["p"], ["b"])]
            return [*first, node("Cast", ["b"], results, to=1)], results
        if self.op == "Where":
            first = node("Greater", [names[0], names[1]], ["p"])
            return [first, node("Where", ["p", *names[:2]], results)], results
        return [node(self.op, names, results, **self.attributes)], results


def weight(*shape: int) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(shape) * 0.3).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


UNARY = [
    "Abs",
    "Ceil",
    "Cos",
    "Elu",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Neg",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Tanh",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "And",
    "Or",
    "Not",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
    "Where",
]
W = weight(5, 6, 3, 2)
CASES = [
    *(Case(op, IMAGE) for op in UNARY),
    *(Case(op, (3, 5)) for op in UNARY),
    *(Case(op, IMAGE, kind="positive") for op in ("Log", "Sqrt", "Reciprocal")),
    *(Case(op, IMAGE, inputs=[IMAGE]) for op in BINARY),
    *(Case(op, IMAGE, weight(6, 1, 1) + 2) for op in BINARY),
    *(Case(op, (3, 4, 5), weight(5) + 2) for op in BINARY),
    *(Case(op, (4, 5), kind="halves") for op in ("Round", "Sign")),
    Case("Equal", (4, 5), np.float32(1), kind="whole"),
    Case("Max", (3, 4), inputs=[(3, 4), (3, 4)]),
    Case("Sum", (3, 4), inputs=[(3, 4), (3, 4)]),
    Case("Sum", IMAGE, inputs=[IMAGE]),
    Case("Mish", IMAGE, opset=18),
    Case("Swish", IMAGE, opset=24),
    Case("Swish", (3, 4), opset=24, alpha=1.7),
    Case("Cast", (3, 4), to=7, kind="whole"),
    Case("Cast", (3, 4), to=6),
    Case("Clip", IMAGE, np.float32(0), np.float32(6)),
    Case("Clip", IMAGE, np.float32(-0.5), np.float32(0.7)),
    Case("Clip", (3, 4), np.float32(0)),
    Case("Clip", (3, 4), None, np.float32(0.5)),
    Case("Clip", (3, 4), opset=6, min=-0.2, max=0.3),
    Case("Gelu", (3, 7), opset=20),
    Case("Gelu", (3, 7), opset=20, approximate="tanh"),
    Case("LeakyRelu", IMAGE, alpha=0.3),
    Case("Elu", IMAGE, alpha=0.3),
    Case("Celu", IMAGE, alpha=0.7),
    Case("Celu", (3, 4)),
    Case("Selu", IMAGE),
    Case("Selu", (3, 4), alpha=1.5, gamma=0.8),
    Case("ThresholdedRelu", IMAGE, alpha=0.4),
    Case("ThresholdedRelu", (3, 4), alpha=-0.7),
    Case("ThresholdedRelu", SERIES),
    Case("HardSigmoid", (3, 4), alpha=0.5, beta=0.3),
    Case("PRelu", IMAGE, weight(6, 1, 1)),
    Case("PRelu", (3, 5), weight(5)),
    Case("Mod", IMAGE, weight(6, 1, 1) + 2, fmod=1),
    Case("Mod", (3, 4, 5), weight(5), fmod=1),
    Case("Mod", (3, 5), inputs=[(3, 5)], fmod=1),
    Case("Pow", (3, 4), np.float32(2)),
    Case("Pow", (3, 4), np.float32(0.5), kind="positive"),
    Case("Pow", (3, 4), np.float32(3), kind="positive"),
    Case("Conv", IMAGE, W, weight(5)),
    Case("Conv", IMAGE, W),
    Case("Conv", IMAGE, W, strides=[2, 3], pads=[1, 0, 2, 1]),
    Case("Conv", IMAGE, W, auto_pad="SAME_UPPER", strides=[2, 2]),
    Case("Conv", IMAGE, W, auto_pad="SAME_LOWER", strides=[2, 2]),
    Case("Conv", IMAGE, W, auto_pad="VALID"),
    Case("Conv", IMAGE, W, dilations=[2, 3], pads=[2, 2, 2, 2]),
    Case("Conv", IMAGE, weight(8, 3, 3, 3), group=2, pads=[1, 1, 1, 1]),
    Case("Conv", IMAGE, weight(6, 1, 3, 3), weight(6), group=6, pads=[1, 1, 1, 1], strides=[2, 2]),
    Case("Conv", IMAGE, weight(12, 1, 3, 2), group=6, dilations=[2, 2]),
    Case("Conv", (1, 1, 9, 9), weight(1, 1, 3, 3), pads=[1, 1, 1, 1]),
    Case("Conv", SERIES, weight(5, 6, 3), weight(5)),
    Case("Conv", SERIES, weight(5, 6, 3), strides=[2], pads=[2, 1]),
    Case("Conv", SERIES, weight(5, 6, 4), auto_pad="SAME_LOWER", strides=[3]),
    Case("Conv", SERIES, weight(6, 1, 3), weight(6), group=6, dilations=[2], pads=[4, 0]),
    Case("Conv", SERIES, weight(4, 3, 3), weight(4), group=2, pads=[1, 1]),
    Case("ConvTranspose", SERIES, weight(6, 4, 2), weight(4), strides=[2]),
    Case("ConvTranspose", SERIES, weight(6, 4, 3), strides=[3], pads=[1, 0]),
    Case("ConvTranspose", SERIES, weight(6, 4, 5), weight(4), strides=[2], pads=[2, 1], open_batch=False),
    Case("ConvTranspose", IMAGE, weight(6, 4, 2, 2), weight(4), strides=[2, 2]),
    Case(
        "ConvTranspose",
        IMAGE,
        weight(6, 4, 3, 3),
        weight(4),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
        open_batch=False,
    ),
    Case("ConvTranspose", IMAGE, weight(6, 4, 3, 3), weight(4), strides=[3, 3], pads=[1, 0, 0, 2]),
    Case("ConvTranspose", IMAGE, weight(6, 4, 3, 2), strides=[2, 1], pads=[1, 0, 1, 1], open_batch=False),
    Case("ConvTranspose", IMAGE, weight(6, 4, 3, 3), weight(4), open_batch=False),
    Case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2]),
    Case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 1, 2]),
    Case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    Case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    Case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    Case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2]),
    Case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    Case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    Case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    Case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 2, 1, 0]),
    Case("AveragePool", IMAGE, kernel_shape=[4, 3], strides=[3, 2], pads=[2, 1, 1, 1], ceil_mode=1),
    Case("AveragePool", SERIES, kernel_shape=[3], strides=[2], pads=[1, 0]),
    Case("MaxPool", SERIES, kernel_shape=[3], strides=[2], pads=[1, 1]),
    Case("GlobalAveragePool", SERIES),
    Case("GlobalMaxPool", SERIES),
    Case("GlobalAveragePool", IMAGE),
    Case("GlobalMaxPool", IMAGE),
    Case(
        "Resize",
        IMAGE,
        None,
        np.array([1, 1, 2, 3], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    Case("Resize", IMAGE, None, np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    Case("Resize", IMAGE, None, np.array([1, 1, 2, 2], np.float32), mode="linear"),
    *(
        Case(
            "Resize",
            IMAGE,
            None,
            np.array([1, 1, 2, by], np.float32),
            mode="linear",
            coordinate_transformation_mode=place,
        )
        for place, by in (("align_corners", 3), ("asymmetric", 2), ("pytorch_half_pixel", 3))
    ),
    *(
        Case("Resize", IMAGE, None, None, ints(2, 6, *size), mode="linear", open_batch=False, **place)
        for size in ((13, 17), (3, 4), (15, 5))
        for place in ({}, {"coordinate_transformation_mode": "align_corners"})
    ),
    Case(
        "Resize",
        IMAGE,
        None,
        None,
        ints(2, 6, 11, 20),
        mode="linear",
        open_batch=False,
        coordinate_transformation_mode="asymmetric",
    ),
    Case("Resize", SERIES, None, np.array([1, 1, 2], np.float32), mode="linear"),
    Case("Upsample", IMAGE, np.array([1, 1, 2, 2], np.float32), opset=9, mode="nearest"),
    Case("DepthToSpace", (2, 12, 3, 5), blocksize=2),
    Case("DepthToSpace", (2, 12, 3, 5), blocksize=2, mode="CRD"),
    Case("SpaceToDepth", (2, 3, 6, 4), blocksize=2),
    Case("SpaceToDepth", (2, 2, 6, 9), blocksize=3),
    Case("Gemm", (3, 6), weight(6, 5), weight(5)),
    Case("Gemm", (3, 6), weight(5, 6), transB=1, alpha=0.5),
    Case("Gemm", (3, 6), weight(6, 5), weight(1, 5), beta=2.0),
    Case("Gemm", (3, 6), weight(6, 5), weight(3, 1), open_batch=False),
    Case("Gemm", (6, 3), weight(6, 5), weight(5), transA=1, open_batch=False),
    Case("Gemm", (6, 3), weight(5, 6), transA=1, transB=1, alpha=0.5, open_batch=False),
    Case("MatMul", (3, 6), weight(6, 5)),
    Case("MatMul", (3, 4, 6), weight(6, 5)),
    Case("MatMul", (2, 3, 4, 6), inputs=[(2, 3, 6, 5)]),
    Case("MatMul", (2, 3, 4, 6), weight(3, 6, 5)),
    Case("MatMul", (3, 6, 6), inputs=[(3, 6, 4)]),
    Case("GRU", (4, 3, 6), weight(1, 15, 6), weight(1, 15, 5), hidden_size=5, open_batch=False),
    Case("LSTM", (4, 3, 6), weight(1, 20, 6), weight(1, 20, 5), hidden_size=5, open_batch=False),
    Case("RNN", (4, 3, 6), weight(1, 5, 6), weight(1, 5, 5), hidden_size=5, open_batch=False),
    Case("Einsum", (3, 4, 6), inputs=[(3, 6, 5)], equation="bij,bjk->bik"),
    Case("Attention", (2, 3, 4, 5), inputs=[(2, 3, 7, 5), (2, 3, 7, 6)], opset=23),
    Case("Concat", IMAGE, inputs=[IMAGE], axis=1),
    Case("Concat", IMAGE, inputs=[IMAGE], axis=-1),
    Case("Concat", (3, 4), inputs=[(3, 5)], axis=1),
    Case("Erf", IMAGE),
    Case("Pow", IMAGE, np.float32(3)),
    Case("PRelu", IMAGE, inputs=[(6, 1, 1)], open_batch=False),
    Case("BatchNormalization", IMAGE, inputs=[(6,), (6,), (6,), (6,)], kind="positive", open_batch=False),
    Case("Gemm", (3, 6), inputs=[(6, 5), (5,)], alpha=0.5, beta=2.0, open_batch=False),
    Case("Gemm", (6, 3), inputs=[(5, 6)], transA=1, transB=1, open_batch=False),
    Case("Conv", IMAGE, inputs=[(4, 3, 3, 2), (4,)], group=2, strides=[2, 1], open_batch=False),
    Case("ConvTranspose", IMAGE, inputs=[(6, 4, 3, 2), (4,)], strides=[2, 1], open_batch=False),
    Case("Add", IMAGE, inputs=[(6, 1, 1)], open_batch=False),
    Case("MatMul", (3, 4, 6), inputs=[(6, 5)], open_batch=False),
    Case("Expand", (3, 1, 5), ints(1, 4, 1)),
    Case("Expand", (4, 1), ints(2, 3, 1, 5), open_batch=False),
    Case("Flatten", IMAGE),
    Case("Flatten", IMAGE, axis=2, open_batch=False),
    Case("Gather", (3, 7, 4), ints(0, 3, -1), axis=1),
    Case("Gather", (3, 7, 4), np.array(2), axis=1),
    Case("Gather", (7, 4), ints(5, 1), axis=0, open_batch=False),
    Case("Pad", IMAGE, ints(0, 1, 2, 0, 0, 0, 1, 3)),
    Case("Pad", IMAGE, ints(0, 0, 2, 0, 0, 0, 1, 3), np.float32(1.5)),
    Case("Pad", (3, 4), opset=2, pads=[0, 1, 0, 2], value=0.5),
    Case("Pad", IMAGE, ints(1, 3, 2, 1), None, ints(-1, 1), opset=18),
    Case("Pad", IMAGE, ints(2, 1), np.float32(-0.5), ints(2), opset=19),
    Case("Pad", IMAGE, ints(0, 5, 2, 8, 0, 0, 5, 3), mode="reflect"),
    Case("Pad", IMAGE, ints(3, 3, 3, 3), None, ints(2, 3), opset=18, mode="reflect"),
    Case("Pad", SERIES, ints(0, 0, 10, 0, 0, 3), mode="reflect"),
    Case("Pad", (3, 5), ints(2, 0, 1, 4), mode="reflect", open_batch=False),
    Case("Pad", (3, 4), opset=2, pads=[0, 1, 0, 2], mode="reflect"),
    Case("Pad", IMAGE, ints(0, 1, 1, 0, 0, 0, 1, 1), mode="edge"),
    Case("Pad", IMAGE, ints(0, 0, 3, 1, 0, 0, 2, 12), mode="edge"),
    Case("Pad", IMAGE, ints(0, 0, 3, 1, 0, 0, 0, 12), opset=19, mode="wrap"),
    Case("Tile", IMAGE, ints(1, 3, 1, 2)),
    Case("Tile", (3, 5), ints(1, 4)),
    Case("Tile", SERIES, ints(3, 1, 2), open_batch=False),
    Case("Reshape", IMAGE, ints(0, 3, -1)),
    Case("Reshape", (3, 4, 5), ints(-1, 5)),
    Case("Slice", IMAGE, ints(1, -4), ints(5, 2**62), ints(1, 3)),
    Case("Slice", IMAGE, ints(0, 1), ints(7, 9), ints(2, 3), ints(3, 2)),
    Case("Slice", (3, 8), opset=9, axes=[1], starts=[2], ends=[-1]),
    Case("Split", IMAGE, ints(2, 4), outputs=2, axis=1),
    Case("Split", (3, 9), opset=11, outputs=3, axis=1),
    Case("Squeeze", (3, 1, 4), ints(1)),
    Case("Unsqueeze", (3, 4), ints(1)),
    Case("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    Case("Transpose", IMAGE, perm=[0, 3, 1, 2]),
    Case("Transpose", (3, 4, 5), perm=[0, 2, 1]),
    Case("Transpose", (2, 3, 4, 5, 6), perm=[0, 2, 1, 4, 3]),
    Case("Transpose", (2, 3, 4, 5, 6), perm=[2, 0, 3, 1, 4], open_batch=False),
    Case("Gather", (2, 3, 4, 5, 6), np.array(1), axis=2),
    Case("Slice", (2, 3, 4, 5, 6), ints(1, 0), ints(3, 4), ints(2, 4)),
    Case("Split", (2, 3, 4, 5, 6), ints(1, 2), outputs=2, axis=1),
    Case("Squeeze", (2, 3, 1, 5, 6), ints(2)),
    Case("Unsqueeze", (2, 3, 5, 6), ints(3)),
    Case("Reshape", (2, 12, 5, 6), ints(0, 3, 4, 5, 6)),
    Case("Transpose", (3, 4, 5), open_batch=False),
    Case("BatchNormalization", IMAGE, weight(6), weight(6), weight(6), np.abs(weight(6)) + 0.5),
    Case(
        "BatchNormalization", (3, 6), weight(6), weight(6), weight(6), np.abs(weight(6)) + 0.5, epsilon=0.01
    ),
    Case("BatchNormalization", (3, 6, 5), weight(6), weight(6), weight(6), np.abs(weight(6)) + 0.5),
    Case("InstanceNormalization", IMAGE, weight(6), weight(6), epsilon=0.01),
    Case("InstanceNormalization", SERIES, weight(6), weight(6)),
    Case("GroupNormalization", IMAGE, weight(6), weight(6), opset=21, num_groups=3),
    Case("GroupNormalization", SERIES, weight(6), weight(6), opset=21, num_groups=2, epsilon=0.01),
    Case("RMSNormalization", (3, 4, 6), weight(6), opset=23),
    Case("LayerNormalization", (3, 4, 6), weight(6), weight(6)),
    Case("LayerNormalization", (3, 4, 6), weight(4, 6), axis=1),
    Case("LRN", IMAGE, size=3, alpha=0.9, beta=0.6, bias=1.5),
    Case("LRN", IMAGE, size=5, alpha=2.0),
    Case("LRN", IMAGE, size=13, alpha=2.0, beta=0.5),
    Case("LRN", IMAGE, size=1, alpha=0.5, beta=1.0, bias=0.25),
    Case("LogSoftmax", (3, 7), axis=-1),
    Case("LogSoftmax", IMAGE, axis=1),
    Case("LogSoftmax", (3, 7), opset=11),
    Case("Softmax", (3, 7), axis=-1),
    Case("Softmax", IMAGE, axis=1),
    Case("Softmax", IMAGE, axis=2),
    Case("Softmax", (3, 7), opset=11),
    Case("Softmax", IMAGE, opset=11),
    Case("Softmax", IMAGE, axis=2, opset=12, open_batch=False),
    Case("Softmax", SERIES, axis=1),
    *(
        Case(op, IMAGE, axes=[2, 3], keepdims=k)
        for op in ("ReduceMean", "ReduceMax", "ReduceMin")
        for k in (0, 1)
    ),
    Case("ReduceSum", (3, 4, 5), ints(-1)),
    Case("ReduceSum", (3, 4, 5), keepdims=0, open_batch=False),
    Case("ReduceSum", IMAGE, ints(0, 2, 3), keepdims=0, open_batch=False),
    Case("ReduceL2", IMAGE, axes=[1]),
    Case("ReduceSumSquare", (3, 4, 5), axes=[2], keepdims=0),
    Case("ReduceSum", (3, 4, 5), ints(1, 2), keepdims=0),
    Case("ReduceMean", (3, 4, 5), opset=17, open_batch=False),
    Case("ArgMax", (3, 7), axis=1),
    Case("ArgMax", (3, 7, 4), axis=1, keepdims=0),
]


def _check(case, symbolic, compiled, run_lowered, reference):
    if case.opset > onnx.defs.onnx_opset_version():
        pytest.skip("newer than the onnx package that is installed")
    model, feeds = case.model(symbolic)
    found = compiled(model)
    assert found.models
    assert not found.lowering.kept, found.lowering.explain()
    for got, want in zip(run_lowered(found, feeds), reference(model, feeds), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_operator_agrees(case, compiled, run_lowered, reference):
    _check(case, False, compiled, run_lowered, reference)


@pytest.mark.parametrize("case", [c for c in CASES if c.open_batch], ids=repr)
def test_an_operator_agrees_with_an_open_batch(case, compiled, run_lowered, reference):
    _check(case, True, compiled, run_lowered, reference)


def test_a_window_of_even_size_agrees_with_the_kernels(compiled, run_lowered):
    """onnxruntime has odd ones alone."""
    model, feeds = Case("LRN", IMAGE, size=4, alpha=2.0).model(False)
    prepared = prepare("LRN", 17, {"size": 4, "alpha": 2.0}, [TensorSpec(np.dtype("f4"), IMAGE)], [None], 1)
    (got,), (want,) = run_lowered(compiled(model), feeds), evaluate(prepared, [feeds["x"]])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_every_rule_has_cases():
    assert not set(RULES) - {case.op for case in CASES} - set(quantized.RULES)


def test_the_page_names_every_rule():
    page = (Path(__file__).parents[3] / "docs" / "design" / "tflite.md").read_text()
    told = page.partition("**Operators.** ")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", told)) == set(RULES)


FOLLOWED = [
    Case("Add", IMAGE, inputs=[IMAGE]),
    Case("AveragePool", IMAGE, kernel_shape=[3, 2]),
    Case("Concat", IMAGE, inputs=[IMAGE], axis=1),
    Case("Conv", IMAGE, W),
    Case("Conv", IMAGE, weight(6, 1, 3, 3), group=6),
    Case("ConvTranspose", IMAGE, weight(6, 4, 3, 2), strides=[2, 1], open_batch=False),
    Case("ConvTranspose", IMAGE, weight(6, 4, 2, 2), weight(4), strides=[2, 2]),
    Case("Div", IMAGE, weight(6, 1, 1) + 2),
    Case("Gemm", (3, 6), weight(6, 5), weight(5)),
    Case("MatMul", (3, 4, 6), inputs=[(3, 6, 5)]),
    Case("MaxPool", IMAGE, kernel_shape=[3, 2]),
    Case("Mul", IMAGE, inputs=[IMAGE]),
    Case("Sub", IMAGE, inputs=[IMAGE]),
]


@pytest.mark.parametrize("bound", [None, 0.5, 6], ids=["relu", "clip", "relu6"])
@pytest.mark.parametrize("case", FOLLOWED, ids=repr)
def test_an_activation_after_an_operator_agrees(case, bound, compiled, run_lowered, reference):
    model, feeds = case.model(False)
    (maker,) = model.graph.node
    maker.output[0] = "before"
    if bound is None:
        after = helper.make_node("Relu", ["before"], ["r0"])
    else:
        for name, value in (("low", 0), ("high", bound)):
            model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
        after = helper.make_node("Clip", ["before", "low", "high"], ["r0"])
    model.graph.node.append(after)
    (got,), (want,) = run_lowered(compiled(model), feeds), reference(model, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
