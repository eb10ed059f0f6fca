"""A bound run works inside of the arrays it was given: nothing of the size of a tensor is allocated."""

from __future__ import annotations

import inspect
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest

from bb_kernels import TensorSpec, prepare, supported_ops
from bb_kernels.registry import PrepareFn, find

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
IMAGE, ROW = (2, 16, 64, 64), (64, 2048)
VECTOR = (16,)
PAIRS = (60_000, 2)  # what is kept per row is as large as the tensor
HEADS = (2, 4, 256, 32)
NUMBERS = (np.arange(64 * 2048, dtype=np.int32) % 29 - 7).reshape(ROW)
FLAGS = NUMBERS > 3
BYTES = NUMBERS.astype(np.uint8)


class Known(NamedTuple):
    """An input whose value is known when preparing."""

    value: Any


#: operator, opset, attributes, inputs: a shape of floats, an array, or what is known when preparing
CASES: list[tuple[str, int, dict[str, Any], list[Any]]] = [
    *(
        (op, 17, {}, [ROW, ROW])
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow")
    ),
    *(
        (op, 22, {}, [ROW])
        for op in (
            "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Neg", "Abs", "Erf", "Gelu", "LeakyRelu", "Elu",
            "Selu", "HardSwish", "HardSigmoid", "Softplus", "Softsign", "Mish", "Softmax", "LogSoftmax",
            "Identity", "ReduceSum", "ReduceMax", "Transpose", "Floor", "Round", "Celu", "Shrink",
            "Hardmax", "ThresholdedRelu", "Log", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos",
            "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Ceil", "Sign", "IsNaN", "IsInf",
            "Dropout", "Clip", "Flatten", "Shape", "Size", "EyeLike", "Trilu", "LpNormalization",
        )
    ),
    *((op, 28, {}, [ROW]) for op in ("Swish",)),
    *((op, 28, {}, [ROW, ROW]) for op in ("SwiGLU", "PRelu")),
    *(
        (op, 17, {}, [ROW, ROW])
        for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "CastLike")
    ),
    *(
        (op, 17, {"axes": axes}, [ROW])
        for op in (
            "ReduceMean", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
            "ReduceLogSum", "ReduceLogSumExp",
        )
        for axes in ([0], [1])
    ),
    *((op, 17, {"axis": 1}, [ROW]) for op in ("ArgMax", "ArgMin", "Hardmax")),
    ("Hardmax", 11, {}, [ROW]),
    ("Hardmax", 17, {}, [PAIRS]),
    ("LpNormalization", 17, {}, [PAIRS]),
    ("ReduceLogSumExp", 17, {"axes": [1]}, [PAIRS]),
    ("Cast", 17, {"to": 6}, [ROW]),
    ("Pow", 17, {}, [ROW, Known(np.array(3.0))]),
    ("Mod", 17, {"fmod": 1}, [ROW, ROW]),
    ("Where", 17, {}, [np.arange(64 * 2048).reshape(ROW) % 3 == 0, ROW, ROW]),
    ("CumSum", 17, {"exclusive": 1, "reverse": 1}, [ROW, Known(np.int64(1))]),
    ("CumProd", 28, {}, [ROW, Known(np.int64(0))]),
    ("Expand", 17, {}, [(1, 2048), Known(np.int64([64, 2048]))]),
    ("Tile", 17, {}, [ROW, Known(np.int64([2, 1]))]),
    ("Reshape", 17, {}, [ROW, Known(np.int64([-1, 64]))]),
    ("Squeeze", 17, {}, [(1, 64, 2048)]),
    ("Unsqueeze", 17, {}, [ROW, Known(np.int64([0]))]),
    ("Slice", 17, {}, [ROW, *(Known(np.int64([n])) for n in (5, 2000, 1, 3))]),
    ("Split", 17, {}, [ROW]),
    ("ReverseSequence", 17, {"batch_axis": 0, "time_axis": 1}, [ROW, np.full(64, 1000)]),
    ("DepthToSpace", 17, {"blocksize": 2}, [IMAGE]),
    ("SpaceToDepth", 17, {"blocksize": 2}, [IMAGE]),
    ("Gather", 17, {"axis": 1}, [ROW, np.arange(0, 2048, 2)]),
    ("Gather", 17, {}, [ROW, Known(np.arange(0, 64, 2))]),
    *(
        ("Pad", 19, {"mode": mode}, [ROW, Known(np.int64([3, 5, 7, 11]))])
        for mode in ("constant", "reflect", "edge", "wrap")
    ),
    ("CenterCropPad", 18, {}, [ROW, Known(np.int64([70, 2000]))]),
    ("Resize", 13, {"mode": "nearest"}, [IMAGE, None, Known(np.float32([1, 1, 2, 1.5]))]),
    ("Resize", 13, {"mode": "linear"}, [IMAGE, None, Known(np.float32([1, 1, 2, 1.5]))]),
    ("Upsample", 9, {}, [IMAGE, Known(np.float32([1, 1, 2, 2]))]),
    ("GroupNormalization", 21, {"num_groups": 4}, [IMAGE, VECTOR, VECTOR]),
    ("RMSNormalization", 23, {}, [ROW, (2048,)]),
    ("MeanVarianceNormalization", 17, {}, [IMAGE]),
    ("LRN", 17, {"size": 5}, [IMAGE]),
    ("GlobalMaxPool", 17, {}, [IMAGE]),
    ("GlobalLpPool", 17, {}, [IMAGE]),
    ("LpPool", 17, {"kernel_shape": [3, 3]}, [IMAGE]),
    ("Col2Im", 18, {"strides": [2, 2]}, [(2, 64, 1024), Known(np.int64([64, 64])), Known(np.int64([2, 2]))]),
    ("AffineGrid", 20, {}, [(2, 2, 3), Known(np.int64([2, 3, 200, 200]))]),
    ("Attention", 23, {"is_causal": 1, "softcap": 2.0}, [HEADS, HEADS, HEADS]),
    ("Attention", 23, {}, [HEADS, HEADS, HEADS, np.arange(256 * 256).reshape(256, 256) % 3 > 0]),
    ("Attention", 23, {"q_num_heads": 4, "kv_num_heads": 4}, [(2, 256, 128), (2, 256, 128), (2, 256, 128)]),
    ("RotaryEmbedding", 23, {}, [HEADS, (300, 16), (300, 16), np.arange(512).reshape(2, 256) % 300]),
    ("QuantizeLinear", 17, {}, [ROW, np.float32(0.1), np.uint8(3)]),
    ("OneHot", 17, {}, [np.arange(4096) % 100 - 20, Known(np.int64(100)), (2,)]),
    ("OneHot", 17, {"axis": 0}, [(64, 64), Known(np.int64(50)), (2,)]),
    ("Concat", 17, {"axis": 0}, [ROW, ROW]),
    ("MatMul", 17, {}, [(64, 512), (512, 512)]),
    ("MatMul", 17, {}, [(4, 64, 512), (512, 512)]),
    ("Gemm", 17, {"transB": 1}, [(64, 512), (512, 512), (512,)]),
    ("Gemm", 17, {"alpha": 2.0, "beta": 0.5}, [(64, 512), (512, 512), (512,)]),
    ("Conv", 17, {"pads": [1, 1, 1, 1]}, [IMAGE, (16, 16, 3, 3), VECTOR]),
    ("Conv", 17, {"pads": [1, 1, 1, 1]}, [(64, 16, 16, 16), (16, 16, 3, 3), VECTOR]),
    ("Conv", 17, {"pads": [1, 1, 1, 1]}, [(16, 64, 16, 16), (16, 64, 16, 16)]),
    ("Conv", 17, {"pads": [1, 1, 1, 1], "group": 16}, [(64, 16, 16, 16), (16, 1, 3, 3), VECTOR]),
    ("Conv", 17, {"pads": [1, 1, 1, 1], "group": 16}, [(1, 1024, 16, 16), (16, 64, 16, 16)]),
    ("ConvTranspose", 17, {"pads": [1, 1, 1, 1], "group": 16}, [(64, 16, 16, 16), (16, 1, 3, 3)]),
    ("ConvTranspose", 17, {"pads": [1, 1, 1, 1], "group": 4}, [(64, 16, 16, 16), (16, 4, 3, 3)]),
    ("ConvTranspose", 17, {}, [(64, 16, 16, 16), (16, 16, 1, 1), VECTOR]),
    ("Conv", 17, {}, [(16, 64, 16, 16), (16, 64, 16, 16), VECTOR]),
    ("ConvTranspose", 17, {"strides": [2, 2]}, [(64, 16, 16, 16), (16, 16, 3, 3), VECTOR]),
    ("Conv", 17, {"strides": [2, 2]}, [IMAGE, (16, 16, 3, 3), VECTOR]),
    ("Conv", 17, {"pads": [1, 1, 1, 1], "group": 16}, [IMAGE, (16, 1, 3, 3), VECTOR]),
    ("Conv", 17, {}, [IMAGE, (16, 16, 1, 1), VECTOR]),
    ("ConvTranspose", 17, {"strides": [2, 2]}, [IMAGE, (16, 16, 3, 3), VECTOR]),
    ("MaxPool", 17, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, [IMAGE]),
    ("AveragePool", 17, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, [IMAGE]),
    ("GlobalAveragePool", 17, {}, [IMAGE]),
    ("BatchNormalization", 17, {}, [IMAGE, VECTOR, VECTOR, VECTOR, VECTOR]),
    ("LayerNormalization", 17, {}, [ROW, (2048,), (2048,)]),
    ("InstanceNormalization", 17, {}, [IMAGE, VECTOR, VECTOR]),
    ("LSTM", 17, {"hidden_size": 64}, [(50, 8, 128), (1, 256, 128), (1, 256, 64), (1, 512)]),
]  # fmt: skip


#: The same for operators without floats: they run once, not once per float type.
OTHER_CASES: list[tuple[str, int, dict[str, Any], list[Any]]] = [
    *((op, 18, {}, [FLAGS, FLAGS]) for op in ("And", "Or", "Xor")),
    ("Not", 18, {}, [FLAGS]),
    *((op, 18, {}, [NUMBERS, NUMBERS]) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div")),
    ("BitwiseNot", 18, {}, [NUMBERS]),
    ("BitShift", 18, {"direction": "LEFT"}, [NUMBERS.astype(np.uint32), NUMBERS.astype(np.uint32)]),
    ("BitCast", 26, {"to": 12}, [NUMBERS]),
    ("Shrink", 18, {}, [NUMBERS]),
    ("ReduceLogSumExp", 18, {}, [NUMBERS, Known(np.int64([1]))]),
    *((op, 17, {}, [Known(np.int64(50_000))]) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    ("Range", 17, {}, [Known(np.float32(v)) for v in (0, 50_000, 1)]),
    ("Constant", 17, {"value": NUMBERS}, []),
    ("ConstantOfShape", 17, {}, [Known(np.int64(ROW))]),
    ("DynamicQuantizeLinear", 17, {}, [NUMBERS.astype(np.float32)]),
    ("DequantizeLinear", 17, {}, [BYTES, np.float32(0.1), np.uint8(3)]),
    ("MatMulInteger", 17, {}, [BYTES, BYTES.T.copy(), np.uint8(3), np.uint8(4)]),
    ("ConvInteger", 17, {}, [BYTES.reshape(1, 2, 256, 256), BYTES[:1, :54].reshape(3, 2, 3, 3), np.uint8(3)]),
    ("Erf", 17, {}, [NUMBERS.astype(np.float64)]),
    ("Gelu", 22, {}, [NUMBERS.astype(np.float64)]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[3])}-{c[1]}")
def test_run_allocates_no_tensors(case: Any, dtype: Any, rng: np.random.Generator) -> None:
    check(case, dtype, rng)


@pytest.mark.parametrize("case", OTHER_CASES, ids=lambda c: f"{c[0]}-{len(c[3])}-{c[1]}")
def test_run_of_other_types_allocates_no_tensors(case: Any, rng: np.random.Generator) -> None:
    check(case, F32, rng)


def test_every_kernel_that_says_so_is_here() -> None:
    tried = {op for op, *_ in (*CASES, *OTHER_CASES)}
    promise = {
        op
        for op, ranges in supported_ops().items()
        for since, _ in ranges
        if "Run allocates nothing" in " ".join((inspect.getdoc(kernel_of(op, since)) or "").split())
    }
    assert promise - tried == set()


def kernel_of(op: str, version: int) -> PrepareFn:
    kernel = find(op, version)
    assert kernel is not None
    return kernel.build


def check(case: Any, dtype: Any, rng: np.random.Generator) -> None:
    """Run a bound kernel under tracemalloc; what it allocates must not be of the size of a tensor."""
    op, version, attrs, inputs = case
    arrays: list[Any] = []
    for item in inputs:
        if isinstance(item, tuple) and not isinstance(item, Known):
            arrays.append(np.abs(rng.standard_normal(item)).astype(dtype))
        else:
            arrays.append(None if item is None else np.asarray(getattr(item, "value", item)))
    known = [a if isinstance(item, Known) else None for a, item in zip(arrays, inputs, strict=True)]
    if op == "Pow" and known[1:] != [None]:
        arrays[1] = known[1] = arrays[1].astype(dtype)
    specs = [None if a is None else TensorSpec(a.dtype, a.shape) for a in arrays]
    prepared = prepare(op, version, attrs, specs, known)
    full = [np.empty(s.shape, s.dtype) for s in (*prepared.outputs, *prepared.scratch)]
    largest = max(a.nbytes for a in (*arrays, *full) if a is not None)
    assert largest > 1 << 16 or op in ("Shape", "Size")
    step = prepared.bind(*arrays, *full)
    with np.errstate(all="ignore"):
        step()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            step()
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    # NumPy's iterators take a fixed buffer of 8192 elements per operand where types or strides differ.
    assert peak < 1 << 18
    assert peak < largest // 2 or peak < 1 << 16, f"{peak} bytes, largest tensor {largest}"
