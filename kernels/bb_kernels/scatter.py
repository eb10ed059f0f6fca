"""Writing elements by index: ScatterElements (and its older name Scatter), ScatterND.

Negative indices count from the end. An index out of range raises KernelShapeError at run.
"""

from __future__ import annotations

from math import prod

import numpy as np

from .errors import KernelShapeError
from .indexing import check_indices
from .registry import Call, kernel
from .shape import axis_attr
from .spec import ALL, BOOL, I64, Array, Prepared, Ufunc

_REDUCTIONS: dict[str, Ufunc] = {
    "none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def _reduction(call: Call) -> Ufunc:
    """Return the NumPy function that combines old and new elements, or None where new ones replace old."""
    allowed = tuple(_REDUCTIONS) if call.version >= 18 else ("none", "add", "mul")
    name = call.str_attr("reduction", "none", allowed)
    if name in ("max", "min") and call.spec(0).dtype == BOOL:
        return np.logical_or if name == "max" else np.logical_and
    return _REDUCTIONS[name]


def _scatter_elements(call: Call) -> Prepared:
    """Scatter (opset 9+) and ScatterElements (opset 11+) copy data and write an update at each index.

    data[…], indices[…], updates like indices → Y like data; any type, int32 or int64 indices. Along axes
    other than ``axis`` an update keeps its own place. ``reduction`` combines (add, mul, since opset 18 max,
    min). Shapes that do not fit raise KernelShapeError. Run allocates NumPy's working copies of the indices.
    """
    data, indices, updates = call.spec(0), call.spec(1), call.spec(2)
    axis = axis_attr(call, 0)
    if len(indices.shape) != len(data.shape) or indices.shape != updates.shape:
        raise KernelShapeError(
            f"{call.op_type}: indices {indices.shape}, updates {updates.shape} do not fit data {data.shape}"
        )
    if any(n > d for i, (n, d) in enumerate(zip(indices.shape, data.shape, strict=True)) if i != axis):
        raise KernelShapeError(f"{call.op_type}: indices {indices.shape} reach outside of data {data.shape}")
    fold = _reduction(call)
    dim = data.shape[axis]
    # Every other axis is indexed by its own position.
    grid: list[Array] = list(np.ogrid[tuple(slice(0, n) for n in indices.shape)])

    def run(x: Array, index: Array, fresh: Array, out: Array) -> None:
        check_indices(call.op_type, index, dim)
        np.copyto(out, x)
        where = tuple(index if i == axis else grid[i] for i in range(len(grid)))
        if fold is None:
            out[where] = fresh
        else:
            fold.at(out, where, fresh)

    return Prepared((data,), run, inplace=(0,))


# Opset 11 deprecated Scatter in favour of ScatterElements; programs that still say Scatter mean the same.
kernel("Scatter", "T I T", since=9, dtypes=ALL, attrs="axis")(_scatter_elements)
kernel("ScatterElements", "T I T", since=11, dtypes=ALL, attrs="axis reduction@16")(_scatter_elements)


def _scatter_nd(call: Call) -> Prepared:
    """ScatterND (opset 11+) copies data and writes slices at coordinates: Y[indices[i…,:]] = updates[i…,…].

    data[…], indices[i…,depth], updates[i…,rest…] → Y like data; any type, int64 indices. ``reduction``
    combines (add, mul, since opset 18 max, min). Shapes that do not fit raise KernelShapeError. Run allocates
    NumPy's working copies of the indices.
    """
    data, indices, updates = call.spec(0), call.spec(1), call.spec(2)
    if not indices.shape or indices.dtype != I64:
        raise KernelShapeError(
            f"ScatterND: indices must be int64 and not a scalar, got {indices.dtype} {indices.shape}"
        )
    depth = indices.shape[-1]
    if depth > len(data.shape) or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise KernelShapeError(
            f"ScatterND: indices {indices.shape} and updates {updates.shape} do not fit data {data.shape}"
        )
    fold = _reduction(call)
    dims = data.shape[:depth]
    count = prod(indices.shape[:-1])
    rest = data.shape[depth:]

    def run(x: Array, index: Array, fresh: Array, out: Array) -> None:
        np.copyto(out, x)
        rows = index.reshape(count, depth)
        for i, dim in enumerate(dims):
            check_indices("ScatterND", rows[:, i], dim)
        where = tuple(rows[:, i] for i in range(depth))
        if fold is None:
            out[where] = fresh.reshape(count, *rest)
        else:
            fold.at(out, where, fresh.reshape(count, *rest))

    return Prepared((data,), run, inplace=(0,))


kernel("ScatterND", "T I T", since=11, dtypes=ALL, attrs="reduction@16")(_scatter_nd)
