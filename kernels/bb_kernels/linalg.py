"""Matrix products: MatMul, Gemm, Einsum, and Det. Floats go through BLAS with the output as its target."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, kernel
from .shapes import MAX_TABLE, broadcast, require_broadcast_to
from .spec import FLOAT, I32, I64, NUMERIC, U32, U64, Array, Bound, Dtype, Prepared, TensorSpec, run_bound

PRODUCT_TYPES: frozenset[Dtype] = FLOAT | {I32, I64, U32, U64}


def matmul_shape(call: Call, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a @ b by NumPy's rules; KernelShapeError where they do not fit."""
    if not a or not b:
        raise KernelShapeError(f"{call.op_type}: scalars cannot be multiplied as matrices ({a} by {b})")
    a2, b2 = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if a2[-1] != b2[-2]:
        raise KernelShapeError(f"{call.op_type}: inner dimensions of {a} and {b} differ")
    lead = broadcast(call, a2[:-2], b2[:-2]) if a2[:-2] or b2[:-2] else ()
    return lead + ((a2[-2],) if len(a) > 1 else ()) + ((b2[-1],) if len(b) > 1 else ())


@kernel("MatMul", "T T", dtypes=PRODUCT_TYPES, half=True)
def _matmul(call: Call) -> Prepared:
    """MatMul (opset 7+) multiplies matrices by NumPy's rules.

    A[…,m,k], B[…,k,n] → Y[…,m,n], leading axes broadcast; floats (float16 via float32), int32, int64, uint32,
    uint64. Shapes that do not fit raise KernelShapeError. Run allocates nothing.
    """
    a, b = call.spec(0), call.spec(1)
    out = TensorSpec(a.dtype, matmul_shape(call, a.shape, b.shape))
    if len(a.shape) == 2 and len(b.shape) == 2:
        return Prepared((out,), np.dot)  # the same product as matmul's, with less of a preamble
    if len(a.shape) > 2 and len(b.shape) == 2 and a.size:
        # One product over all rows instead of one per batch entry.
        k, n = b.shape

        def bind(x: Array, y: Array, result: Array) -> Bound:
            if not x.flags.c_contiguous:
                return partial(np.matmul, x, y, result)
            return partial(x.reshape(-1, k).dot, y, result.reshape(-1, n))

        return Prepared((out,), run_bound(bind), binder=bind)
    return Prepared((out,), np.matmul)


@kernel("Gemm", "T T T?", dtypes=PRODUCT_TYPES, half=True, attrs="alpha beta transA transB")
def _gemm(call: Call) -> Prepared:
    """Gemm (opset 7+) computes alpha·A'·B' + beta·C; A' and B' are transposed on request, as views.

    A[m,k], B[k,n], C? that broadcasts → Y[m,n]; floats (float16 via float32), int32, int64, uint32, uint64.
    Shapes that do not fit raise KernelShapeError. Run allocates nothing.
    """
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
        if c is not None and c.ndim < 2:
            c = c.reshape(1, -1)  # NumPy adds arrays of equal rank three times faster
        # The method: np.dot looks for overrides first, which is a quarter of a small product.
        dot, add = left.dot, np.add
        if alpha == 1.0 and (c is None or beta == 1.0):
            if c is None:
                return partial(dot, right, result)

            def plain() -> None:
                dot(right, result)
                add(result, c, result)

            return plain

        def scaled() -> None:
            dot(right, result)
            if alpha != 1.0:
                np.multiply(result, scale_a, result, casting="unsafe")
            if c is not None:
                if beta == 1.0:
                    np.add(result, c, result)
                else:
                    temp = arrays[n_in + 1].reshape(c.shape)
                    np.multiply(c, scale_c, temp, casting="unsafe")
                    np.add(result, temp, result)

        return scaled

    return Prepared((out,), run_bound(bind), scratch, binder=bind)


@kernel("Einsum", "T*", since=12, dtypes=NUMERIC, half=True, attrs="equation")
def _einsum(call: Call) -> Prepared:
    """Einsum (opset 12+) sums products as its equation says, through matrix products where NumPy finds some.

    X1, X2, … → Y; numbers (float16 via float32). An equation that does not fit raises KernelShapeError. Run
    allocates what NumPy's contraction needs.
    """
    equation = call.str_attr("equation").replace(" ", "")
    if "->" not in equation:
        # Implicit output: "..." first, then the letters that occur once, sorted.
        letters = [c for c in equation if c.isalpha()]
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        equation += "->" + ("..." if "..." in equation else "") + "".join(once)
    n = len(call.inputs)
    probes = [np.broadcast_to(np.zeros((), call.spec(i).dtype), call.spec(i).shape) for i in range(n)]
    try:
        path = np.einsum_path(equation, *probes, optimize=("greedy", MAX_TABLE))[0]
        shape = _einsum_shape(equation, [p.shape for p in probes])
    except ValueError as error:
        raise KernelShapeError(
            f"Einsum: {equation!r} does not fit {[p.shape for p in probes]}: {error}"
        ) from error

    def run(*arrays: Any) -> None:
        np.einsum(equation, *arrays[:n], out=arrays[n], optimize=path)

    return Prepared((TensorSpec(call.spec(0).dtype, shape),), run)


def _einsum_shape(equation: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of an equation's result; ValueError where the terms do not fit the shapes."""
    terms, result = equation.split("->")
    sizes: dict[str, int] = {}
    hidden: tuple[int, ...] = ()
    for term, shape in zip(terms.split(","), shapes, strict=True):
        front, dots, back = term.partition("...")
        if len(front) + len(back) > len(shape) or (not dots and len(front) != len(shape)):
            raise ValueError(f"term {term!r} for shape {shape}")
        middle = shape[len(front) : len(shape) - len(back)]
        hidden = np.broadcast_shapes(hidden, middle)
        for letter, dim in zip(
            front + back, shape[: len(front)] + shape[len(shape) - len(back) :], strict=True
        ):
            if sizes.setdefault(letter, dim) != dim:
                if 1 not in (sizes[letter], dim):
                    raise ValueError(f"{letter!r} is both {sizes[letter]} and {dim}")
                sizes[letter] = max(sizes[letter], dim)
    front, dots, back = result.partition("...")
    return (*(sizes[c] for c in front), *(hidden if dots else ()), *(sizes[c] for c in back))


@kernel("Det", "T", since=11, dtypes=FLOAT, half=True)
def _det(call: Call) -> Prepared:
    """Det (opset 11+) computes the determinant of each matrix.

    X[…,n,n] → Y[…]; floats (float16 via float32). Matrices that are not square raise KernelShapeError. Run
    allocates LAPACK's copies of the matrices.
    """
    spec = call.spec(0)
    if len(spec.shape) < 2 or spec.shape[-1] != spec.shape[-2]:
        raise KernelShapeError(f"Det: input {spec.shape} must hold square matrices")
    out = TensorSpec(spec.dtype, spec.shape[:-2])
    return Prepared((out,), lambda x, result: np.copyto(result, np.linalg.det(x), casting="unsafe"))
