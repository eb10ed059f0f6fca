"""A bound run works inside of the arrays it was given: nothing of the size of a tensor is allocated."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from bb_kernels import TensorSpec, prepare

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
IMAGE, ROW = (2, 16, 64, 64), (64, 2048)
VECTOR = (16,)

#: operator, opset, attributes, input shapes
CASES: list[tuple[str, int, dict[str, Any], list[tuple[int, ...]]]] = [
    *(
        (op, 17, {}, [ROW, ROW])
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow")
    ),
    *(
        (op, 22, {}, [ROW])
        for op in (
            "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Neg", "Abs", "Erf", "Gelu", "LeakyRelu", "Elu", "Selu",
            "HardSwish", "HardSigmoid", "Softplus", "Softsign", "Mish", "Softmax", "LogSoftmax", "Identity",
            "ReduceSum", "ReduceMax", "Transpose", "Floor", "Round",
        )
    ),
    ("Concat", 17, {"axis": 0}, [ROW, ROW]),
    ("MatMul", 17, {}, [(64, 512), (512, 512)]),
    ("MatMul", 17, {}, [(4, 64, 512), (512, 512)]),
    ("Gemm", 17, {"transB": 1}, [(64, 512), (512, 512), (512,)]),
    ("Gemm", 17, {"alpha": 2.0, "beta": 0.5}, [(64, 512), (512, 512), (512,)]),
    ("Conv", 17, {"pads": [1, 1, 1, 1]}, [IMAGE, (16, 16, 3, 3), VECTOR]),
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


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[3])}-{c[1]}")
def test_run_allocates_no_tensors(case: Any, dtype: Any, rng: np.random.Generator) -> None:
    op, version, attrs, shapes = case
    arrays = [np.abs(rng.standard_normal(s)).astype(dtype) for s in shapes]
    prepared = prepare(op, version, attrs, [TensorSpec(dtype, s) for s in shapes])
    full = [np.empty(s.shape, s.dtype) for s in (*prepared.outputs, *prepared.scratch)]
    largest = max(a.nbytes for a in (*arrays, *full))
    assert largest > 1 << 16
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
