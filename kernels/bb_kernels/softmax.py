"""Softmax and its kin. Before opset 13 they work on the input flattened to two dimensions at ``axis``."""

from __future__ import annotations

import numpy as np

from .registry import Call, kernel
from .shapes import axis_of
from .spec import FLOAT, Array, Prepared, TensorSpec
from .ufuncs import add_reduce, max_reduce


def _axes(call: Call) -> tuple[int, ...]:
    rank = len(call.spec(0).shape)
    if call.version >= 13:
        return (axis_of(call, call.int_attr("axis", -1), rank),)
    axis = call.int_attr("axis", 1)
    # Flattening at the axis and normalising rows is the same as normalising over all axes from there on.
    first = rank if axis == rank else axis_of(call, axis, rank)
    return tuple(range(first, rank))


def _rows(call: Call, axes: tuple[int, ...]) -> TensorSpec:
    spec = call.spec(0)
    return TensorSpec(spec.dtype, tuple(1 if i in axes else d for i, d in enumerate(spec.shape)))


@kernel("Softmax", "T", dtypes=FLOAT, half=True, attrs="axis")
def _softmax(call: Call) -> Prepared:
    axes = _axes(call)

    def run(x: Array, out: Array, row: Array) -> None:
        max_reduce(x, axes, None, row, True)
        np.subtract(x, row, out)
        np.exp(out, out)
        add_reduce(out, axes, None, row, True)
        np.divide(out, row, out)

    return Prepared((call.spec(0),), run, (_rows(call, axes),), inplace=(0,))


@kernel("LogSoftmax", "T", dtypes=FLOAT, half=True, attrs="axis")
def _log_softmax(call: Call) -> Prepared:
    axes = _axes(call)

    def run(x: Array, out: Array, exps: Array, row: Array) -> None:
        max_reduce(x, axes, None, row, True)
        np.subtract(x, row, out)
        np.exp(out, exps)
        add_reduce(exps, axes, None, row, True)
        np.log(row, row)
        np.subtract(out, row, out)

    return Prepared((call.spec(0),), run, (call.spec(0), _rows(call, axes)), inplace=(0,))


@kernel("Hardmax", "T", dtypes=FLOAT, attrs="axis")
def _hardmax(call: Call) -> Prepared:
    """1 at the first maximum, 0 elsewhere."""
    spec, axes = call.spec(0), _axes(call)
    if call.version < 13:
        first = axes[0] if axes else len(spec.shape)
        rows, cols = int(np.prod(spec.shape[:first])), int(np.prod(spec.shape[first:]))

        def run_flat(x: Array, out: Array) -> None:
            out.fill(0)
            out.reshape(rows, cols)[np.arange(rows), x.reshape(rows, cols).argmax(1)] = 1

        return Prepared((spec,), run_flat)
    axis = axes[0]

    def run(x: Array, out: Array) -> None:
        out.fill(0)
        np.put_along_axis(out, np.expand_dims(x.argmax(axis), axis), np.array(1, out.dtype), axis)

    return Prepared((spec,), run)
