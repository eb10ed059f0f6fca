"""Matrix products: MatMul and Gemm. Floats go through BLAS with the output as its target."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, kernel
from .shapes import broadcast, require_broadcast_to
from .spec import FLOAT, I32, I64, U32, U64, Array, Bound, Dtype, Prepared, TensorSpec, run_bound

PRODUCT_TYPES: frozenset[Dtype] = FLOAT | {I32, I64, U32, U64}


def matmul_shape(call: Call, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a @ b by NumPy's rules; KernelShapeError when they do not fit."""
    if not a or not b:
        raise KernelShapeError(f"{call.op_type}: scalars cannot be multiplied as matrices ({a} by {b})")
    a2, b2 = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if a2[-1] != b2[-2]:
        raise KernelShapeError(f"{call.op_type}: inner dimensions of {a} and {b} differ")
    lead = broadcast(call, a2[:-2], b2[:-2]) if a2[:-2] or b2[:-2] else ()
    return lead + ((a2[-2],) if len(a) > 1 else ()) + ((b2[-1],) if len(b) > 1 else ())


@kernel("MatMul", "T T", dtypes=PRODUCT_TYPES, half=True)
def _matmul(call: Call) -> Prepared:
    a, b = call.spec(0), call.spec(1)
    out = TensorSpec(a.dtype, matmul_shape(call, a.shape, b.shape))
    if len(a.shape) > 2 and len(b.shape) == 2 and a.size:
        # One product over all rows instead of one per batch entry.
        k, n = b.shape

        def bind(x: Array, y: Array, result: Array) -> Bound:
            flat = result.reshape(-1, n)
            if not x.flags.c_contiguous:
                return lambda: np.matmul(x, y, result)
            rows = x.reshape(-1, k)
            return lambda: np.matmul(rows, y, flat)

        return Prepared((out,), run_bound(bind), binder=bind)
    return Prepared((out,), np.matmul)


@kernel("Gemm", "T T T?", dtypes=PRODUCT_TYPES, half=True, attrs="alpha beta transA transB")
def _gemm(call: Call) -> Prepared:
    """alpha·A'·B' + beta·C; A' and B' are transposed on request (as views), C broadcasts to the result."""
    a, b = call.spec(0), call.spec(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise KernelShapeError(f"Gemm: A and B must be matrices, got shapes {a.shape} and {b.shape}")
    flip_a, flip_b = call.int_attr("transA", 0), call.int_attr("transB", 0)
    shape = matmul_shape(call, a.shape[::-1] if flip_a else a.shape, b.shape[::-1] if flip_b else b.shape)
    out = TensorSpec(a.dtype, shape)
    alpha, beta = call.float_attr("alpha", 1.0), call.float_attr("beta", 1.0)
    use_c = call.has(2) and beta != 0.0
    scratch: tuple[TensorSpec, ...] = ()
    if call.has(2):
        require_broadcast_to(call, call.spec(2).shape, shape)
        if use_c and beta != 1.0:
            scratch = (call.spec(2),)
    integers = a.dtype.kind != "f"
    scale_a: Any = alpha if integers else np.array(alpha, a.dtype)
    scale_c: Any = beta if integers else np.array(beta, a.dtype)
    n_in = len(call.inputs)

    def bind(*arrays: Any) -> Bound:
        left = arrays[0].T if flip_a else arrays[0]
        right = arrays[1].T if flip_b else arrays[1]
        result = arrays[n_in]
        c = arrays[2] if use_c else None
        if alpha == 1.0 and (c is None or beta == 1.0):
            if c is None:
                return lambda: np.matmul(left, right, result)

            def plain() -> None:
                np.matmul(left, right, result)
                np.add(result, c, result)

            return plain

        def scaled() -> None:
            np.matmul(left, right, result)
            if alpha != 1.0:
                np.multiply(result, scale_a, result, casting="unsafe")
            if c is not None:
                if beta == 1.0:
                    np.add(result, c, result)
                else:
                    temp = arrays[n_in + 1]
                    np.multiply(c, scale_c, temp, casting="unsafe")
                    np.add(result, temp, result)

        return scaled

    return Prepared((out,), run_bound(bind), scratch, binder=bind)
