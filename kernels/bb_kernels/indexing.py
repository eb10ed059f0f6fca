"""Reading elements by index: Gather and its kin. Indices out of range are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shape import axis_attr
from .shapes import axis_of, bounded
from .spec import BOOL, Array, Prepared, TensorSpec
from .ufuncs import max_reduce, min_reduce

_TAKES_INT64 = np.dtype(np.intp) == np.dtype(np.int64)
"""np.take refuses wider integers than addresses are, as int64 on a 32-bit board; what was checked fits."""


def check_indices(op_type: str, indices: Array, dim: int) -> None:
    """KernelShapeError unless every index is in [-dim, dim)."""
    if indices.size:
        low, high = min_reduce(indices, None), max_reduce(indices, None)
        if low < -dim or high >= dim:
            raise KernelShapeError(
                f"{op_type}: indices {low}..{high} are out of range for a dimension of {dim}"
            )


@kernel("Gather", "T I", attrs="axis")
def _gather(call: Call) -> Prepared:
    data, indices = call.spec(0), call.spec(1)
    axis = axis_attr(call, 0)
    dim = data.shape[axis]
    out = TensorSpec(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
    known = call.constant(1)
    if known is not None:
        check_indices("Gather", known, dim)
        fixed: Any = np.ascontiguousarray(np.where(known < 0, known + dim, known).astype(np.intp)).reshape(
            known.shape
        )
        if not out.size:
            return Prepared((out,), lambda x, _i, result: None)
        return Prepared((out,), lambda x, _i, result: np.take(x, fixed, axis, result, "clip"))

    def run(x: Array, index: Array, result: Array) -> None:
        check_indices("Gather", index, dim)
        if result.size:
            # Checked above; "wrap" turns negative indices and, unlike "raise", needs no buffer.
            np.take(x, index if _TAKES_INT64 else index.astype(np.intp), axis, result, "wrap")

    return Prepared((out,), run)


@kernel("GatherElements", "T I", since=11, attrs="axis")
def _gather_elements(call: Call) -> Prepared:
    data, indices = call.spec(0), call.spec(1)
    axis = axis_attr(call, 0)
    if len(data.shape) != len(indices.shape) or any(
        n > d for i, (n, d) in enumerate(zip(indices.shape, data.shape, strict=True)) if i != axis
    ):
        raise KernelShapeError(f"GatherElements: indices {indices.shape} do not fit data {data.shape}")
    dim = data.shape[axis]
    grid: list[Array] = list(np.ogrid[tuple(slice(0, n) for n in indices.shape)])

    def run(x: Array, index: Array, out: Array) -> None:
        check_indices("GatherElements", index, dim)
        out[...] = x[tuple(index if i == axis else grid[i] for i in range(len(grid)))]

    return Prepared((TensorSpec(data.dtype, indices.shape),), run)


@kernel("GatherND", "T I", since=11, attrs="batch_dims@12")
def _gather_nd(call: Call) -> Prepared:
    """out[b…, i…] = data[b…, indices[b…, i…, :]]; the first batch_dims axes are common to both."""
    data, indices = call.spec(0), call.spec(1)
    shared = call.int_attr("batch_dims", 0)
    if not indices.shape or not 0 <= shared < min(len(data.shape), len(indices.shape)):
        raise KernelShapeError(
            f"GatherND: batch_dims {shared} for data {data.shape}, indices {indices.shape}"
        )
    depth = indices.shape[-1]
    if data.shape[:shared] != indices.shape[:shared] or not 0 < depth <= len(data.shape) - shared:
        raise KernelShapeError(f"GatherND: indices {indices.shape} do not fit data {data.shape}")
    dims = data.shape[shared : shared + depth]
    out = TensorSpec(data.dtype, (*indices.shape[:-1], *data.shape[shared + depth :]))
    batch_grid: list[Array] = [
        np.arange(n).reshape(-1, *(1,) * (len(indices.shape) - 2 - i))
        for i, n in enumerate(data.shape[:shared])
    ]

    def run(x: Array, index: Array, result: Array) -> None:
        for i, dim in enumerate(dims):
            check_indices("GatherND", index[..., i], dim)
        where = (*batch_grid, *(index[..., i] for i in range(depth)))
        result[...] = x[where]

    return Prepared((out,), run)


@kernel("OneHot", "A A T", since=9, needs=(1,), attrs="axis")
def _one_hot(call: Call) -> Prepared:
    """values = [off, on]; an index out of [-depth, depth) gives a vector of off values."""
    indices, values = call.spec(0), call.spec(2)
    if BOOL in (indices.dtype, call.spec(1).dtype):
        raise UnsupportedDtypeError("OneHot: indices and depth must be numbers, not bool")
    depth = (call.int_list(1) or [0])[0]
    rank = len(indices.shape) + 1
    axis = axis_of(call, call.int_attr("axis", -1), rank)
    if values.shape != (2,) or bounded(call, depth, "classes") < 0:
        raise KernelShapeError(f"OneHot: depth {depth} for indices {indices.shape} and values {values.shape}")
    out = TensorSpec(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))
    positions = np.arange(depth).reshape(-1, *(1,) * (rank - 1 - axis))

    def run(index: Array, _depth: Array, pair: Array, result: Array) -> None:
        at = np.trunc(index).astype(np.int64) if index.dtype.kind == "f" else index.astype(np.int64)
        at = np.where((at < -depth) | (at >= depth), -1 - depth, np.where(at < 0, at + depth, at))
        np.copyto(result, pair[0])
        np.copyto(result, pair[1], where=np.expand_dims(at, axis) == positions)

    return Prepared((out,), run)
