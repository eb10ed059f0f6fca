"""Writing elements by index: ScatterElements (and its older name Scatter), ScatterND."""

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
    allowed = tuple(_REDUCTIONS) if call.version >= 18 else ("none", "add", "mul")
    name = call.str_attr("reduction", "none", allowed)
    if name in ("max", "min") and call.spec(0).dtype == BOOL:
        return np.logical_or if name == "max" else np.logical_and
    return _REDUCTIONS[name]


def _scatter_elements(call: Call) -> Prepared:
    data, indices, updates = call.spec(0), call.spec(1), call.spec(2)
    axis = axis_attr(call, 0)
    if len(indices.shape) != len(data.shape) or indices.shape != updates.shape:
        raise KernelShapeError(
            f"{call.op_type}: data {data.shape}, indices {indices.shape}, updates {updates.shape}"
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
    """out = data; out[indices[i, :]] = updates[i, …] for every i."""
    data, indices, updates = call.spec(0), call.spec(1), call.spec(2)
    if not indices.shape or indices.dtype != I64:
        raise KernelShapeError(
            f"ScatterND: indices {indices.shape} of {indices.dtype} must be int64 with a last axis"
        )
    depth = indices.shape[-1]
    if depth > len(data.shape) or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise KernelShapeError(
            f"ScatterND: data {data.shape}, indices {indices.shape}, updates {updates.shape}"
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
