"""Softmax, LogSoftmax and Hardmax.

Before opset 13 they flatten the input to two dimensions at ``axis`` and work on the rows.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from .registry import Call, kernel
from .shapes import axis_of, bounded
from .spec import FLOAT, Array, Bound, Prepared, TensorSpec, run_bound
from .ufuncs import add_reduce, max_reduce

#: Up to how many columns, and from how many rows on, rows are looked at by columns (measured).
_SHORT, _MANY = 32, 16


def _axes(call: Call) -> tuple[int, ...]:
    """Return the axes over which the operator normalises; KernelShapeError for an axis out of range."""
    rank = len(call.spec(0).shape)
    if call.version >= 13:
        return (axis_of(call, call.int_attr("axis", -1), rank),)
    axis = call.int_attr("axis", 1)
    # Flattening at the axis and normalising rows is the same as normalising over all axes from there on.
    first = rank if axis == rank else axis_of(call, axis, rank)
    return tuple(range(first, rank))


def _rows(call: Call, axes: tuple[int, ...]) -> TensorSpec:
    """Return the spec of the input with the given axes reduced to 1."""
    spec = call.spec(0)
    return TensorSpec(spec.dtype, tuple(1 if i in axes else d for i, d in enumerate(spec.shape)))


@kernel("Softmax", "T", dtypes=FLOAT, half=True, attrs="axis")
def _softmax(call: Call) -> Prepared:
    """Softmax (opset 7+) scales exponentials so that they add up to 1 along the axis.

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
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
    """LogSoftmax (opset 7+) computes the logarithm of Softmax without the loss of precision.

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    spec, axes = call.spec(0), _axes(call)
    scratch = spec, _rows(call, axes)
    if axes == (1,) and len(spec.shape) == 2 and 1 < spec.shape[1] <= _SHORT and spec.shape[0] >= _MANY:
        bind = partial(_bound_to_short_rows, spec.shape)
        return Prepared((spec,), run_bound(bind), scratch, inplace=(0,), binder=bind)

    def run(x: Array, out: Array, exps: Array, row: Array) -> None:
        max_reduce(x, axes, None, row, True)
        np.subtract(x, row, out)
        np.exp(out, exps)
        add_reduce(exps, axes, None, row, True)
        np.log(row, row)
        np.subtract(out, row, out)

    return Prepared((spec,), run, scratch, inplace=(0,))


def _bound_to_short_rows(shape: tuple[int, int], x: Array, out: Array, exps: Array, row: Array) -> Bound:
    """Return LogSoftmax of many short rows, as a batch's classes are: NumPy calls a loop for each row.

    The largest of each row is found over columns, and a row's number is written to all of its places before
    it is subtracted. The scratch serves for both; the numbers are the same.
    """
    subtract, exp, log = np.subtract, np.exp, np.log
    turned, columns, largest = x.T, exps.reshape(shape[::-1]), row.reshape(-1)

    def run() -> None:
        columns[...] = turned
        max_reduce(columns, 0, None, largest)
        exps[...] = row
        subtract(x, exps, out)
        exp(out, exps)
        add_reduce(exps, 1, None, row, True)
        log(row, row)
        exps[...] = row
        subtract(out, exps, out)

    return run


@kernel("Hardmax", "T", dtypes=FLOAT, attrs="axis")
def _hardmax(call: Call) -> Prepared:
    """Hardmax (opset 7+) writes 1 at the first maximum along the axis and 0 elsewhere.

    X[…] → Y[…]; floats. Run allocates nothing, except a copy of X where the axis is not the last.
    """
    spec, axes = call.spec(0), _axes(call)
    first = axes[0] if axes else len(spec.shape)
    # [what is before the axes, the axes as one, what is behind them]; without the last where it is 1, as
    # NumPy looks for maxima of the last axis without a copy.
    inner = prod(spec.shape[first + len(axes) :])
    parts: tuple[int, ...] = (prod(spec.shape[:first]), prod(spec.shape[first : first + len(axes)]))
    if inner != 1:
        parts = (*parts, inner)
    best = TensorSpec(np.dtype(np.intp), (parts[0], 1, *parts[2:]))
    if not spec.size:
        return Prepared((spec,), lambda x, out: None)
    row = np.arange(bounded(call, best.size, "rows"))
    starts: Array = (row % inner + row // inner * parts[1] * inner).reshape(best.shape)

    def run(x: Array, out: Array, where: Array) -> None:
        x.reshape(parts).argmax(1, where, keepdims=True)
        if inner != 1:
            np.multiply(where, inner, where)
        np.add(where, starts, where)
        out.fill(0)
        out.reshape(-1).put(where, 1)

    return Prepared((spec,), run, (best,))
