"""Reading elements by index: Gather, GatherElements, GatherND, OneHot.

Negative indices count from the end. An index that is out of range raises KernelShapeError at run, or when
preparing where it is known then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shape import axis_attr
from .shapes import axis_of, bounded
from .spec import BOOL, I64, Array, Prepared, TensorSpec
from .ufuncs import max_reduce, min_reduce

#: np.take refuses integers wider than addresses, such as int64 on a 32-bit board; checked indices fit.
_TAKES_INT64 = np.dtype(np.intp) == np.dtype(np.int64)


def check_indices(op_type: str, indices: Array, dim: int) -> None:
    """Raise KernelShapeError unless every index is in [-dim, dim); allocates nothing."""
    if indices.size:
        low, high = min_reduce(indices, None), max_reduce(indices, None)
        if low < -dim or high >= dim:
            why = "" if dim else "; nothing is along that axis: an input of length 0?"
            raise KernelShapeError(
                f"{op_type}: indices {low}..{high} are out of range for a dimension of {dim}{why}"
            )


def take(x: Array, index: Array, axis: int, out: Array) -> None:
    """Read along an axis into ``out`` by indices that were checked.

    x[a…,d,b…], index[i…] → out[a…,i…,b…]. Allocates a copy of the indices where they are not as wide as
    addresses.
    """
    # "wrap" turns negative indices and, unlike "raise", needs no buffer.
    x.take(index if _TAKES_INT64 else index.astype(np.intp), axis, out, "wrap")


@kernel("Gather", "T I", attrs="axis")
def _gather(call: Call) -> Prepared:
    """Gather (opset 7+) reads slices along an axis.

    data[a…,d,b…], indices[i…] → Y[a…,i…,b…]; any type, int32 or int64 indices. Run allocates nothing, except
    a copy of int32 indices that only the run knows.
    """
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
            take(x, index, axis, result)

    return Prepared((out,), run)


@kernel("GatherElements", "T I", since=11, attrs="axis")
def _gather_elements(call: Call) -> Prepared:
    """GatherElements (opset 11+) reads an element per index, which keeps its own place along the other axes.

    data[…], indices[…] of the same rank → Y like indices; any type, int32 or int64 indices. Indices that are
    longer than the data along another axis raise KernelShapeError. Run allocates a copy of the result.
    """
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

    out = TensorSpec(data.dtype, indices.shape)
    return Prepared((out,), run, working=out.nbytes)


@kernel("GatherND", "T I", since=11, attrs="batch_dims@12")
def _gather_nd(call: Call) -> Prepared:
    """GatherND (opset 11+) reads slices at coordinates: Y[b…,i…] = data[b…, indices[b…,i…,:]].

    data[b…,…], indices[b…,i…,depth] → Y[b…,i…,rest…]; any type, int32 or int64 indices. b are the first
    ``batch_dims`` axes. Shapes that do not fit raise KernelShapeError. Run allocates a copy of the result.
    """
    data, indices = call.spec(0), call.spec(1)
    shared = call.int_attr("batch_dims", 0)
    if not indices.shape or not 0 <= shared < min(len(data.shape), len(indices.shape)):
        raise KernelShapeError(
            f"GatherND: batch_dims {shared} does not fit data {data.shape} and indices {indices.shape}"
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

    return Prepared((out,), run, working=out.nbytes)


@kernel("OneHot", "A A T", since=9, needs=(1,), attrs="axis")
def _one_hot(call: Call) -> Prepared:
    """OneHot (opset 9+) writes ``on`` at the position that an index names and ``off`` elsewhere.

    indices[…], depth[], values[2] = [off, on] → Y with an axis of length depth inserted at ``axis``; indices
    and depth are numbers, values of any type. An index out of [-depth, depth) gives ``off`` alone. bool
    indices raise UnsupportedDtypeError, a negative depth KernelShapeError. Run allocates nothing.
    """
    indices, values = call.spec(0), call.spec(2)
    if BOOL in (indices.dtype, call.spec(1).dtype):
        raise UnsupportedDtypeError("OneHot: indices and depth must be numbers, not bool")
    depth = (call.int_list(1) or [0])[0]
    rank = len(indices.shape) + 1
    axis = axis_of(call, call.int_attr("axis", -1), rank)
    if values.shape != (2,) or bounded(call, depth, "classes", 8) < 0:
        raise KernelShapeError(
            f"OneHot: depth {depth} must not be negative, values {values.shape} must be (2,)"
        )
    out = TensorSpec(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))
    positions = np.arange(depth).reshape(-1, *(1,) * (rank - 1 - axis))
    column = (*indices.shape[:axis], 1, *indices.shape[axis:])

    def run(
        index: Array, _depth: Array, pair: Array, result: Array, at: Array, negative: Array, hit: Array
    ) -> None:
        np.copyto(at, index, casting="unsafe")  # floats truncate towards zero
        np.less(at, 0, negative)
        np.add(at, depth, at, where=negative)  # what is still out of range meets no position
        np.equal(at.reshape(column), positions, hit)
        np.copyto(result, pair[0])
        np.copyto(result, pair[1], where=hit)

    specs = (TensorSpec(I64, indices.shape), TensorSpec(BOOL, indices.shape), TensorSpec(BOOL, out.shape))
    return Prepared((out,), run, specs)
