"""Reductions over axes, and the positions of extremes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .registry import Call, kernel
from .shapes import axes_of, axis_of
from .spec import BOOL, F32, F64, I64, NUMERIC, Array, Bound, Dtype, Prepared, TensorSpec, Ufunc
from .ufuncs import add_reduce, highest, lowest, max_reduce, mul_reduce

_Axes = tuple[int, ...]
#: Elements of a sum up to which it is a product with ones, as a bias's gradient is: a fourth of the time
#: (measured). Longer ones lose digits there, which NumPy keeps by summing pairs.
_LONGEST_BY_ONES = 4096
#: builds the run function for (call, axes, keepdims, number of elements per result), its scratch, and what
#: binds it to fixed arrays, None where nothing is gained by that
_Maker = Callable[[Call, _Axes, bool, int], tuple[Any, tuple[TensorSpec, ...], Any]]


def _reduced(shape: tuple[int, ...], axes: _Axes, keepdims: bool) -> tuple[int, ...]:
    """Return a shape without the given axes, or with 1 in their place."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _prepare(call: Call, maker: _Maker, axes: list[int] | None, has_axes_input: bool) -> Prepared:
    """Return a reduction over the given axes; without any, over all or (noop_with_empty_axes) none."""
    spec = call.spec(0)
    keepdims = call.int_attr("keepdims", 1) != 0
    if not axes:
        if call.int_attr("noop_with_empty_axes", 0):
            chosen: _Axes = ()
        else:
            chosen = tuple(range(len(spec.shape)))
    else:
        chosen = axes_of(call, axes, len(spec.shape))
    out = TensorSpec(spec.dtype, _reduced(spec.shape, chosen, keepdims))
    count = 1
    for axis in chosen:
        count *= spec.shape[axis]
    core, scratch, bind = maker(call, chosen, keepdims, count)
    if not has_axes_input:
        return Prepared((out,), core, scratch, binder=bind)
    if not scratch:
        binder = None if bind is None else lambda x, _axes, out: bind(x, out)
        return Prepared((out,), lambda x, _axes, out: core(x, out), binder=binder)
    return Prepared((out,), lambda x, _axes, *rest: core(x, *rest), scratch)


def _register(
    op_type: str, maker: _Maker, dtypes: frozenset[Dtype], axes_input_since: int, half: bool
) -> None:
    """Register a reduction twice: with axes as an attribute, and as an input from ``axes_input_since`` on."""

    @kernel(
        op_type, "T", until=axes_input_since - 1, dtypes=dtypes - {BOOL}, attrs="axes keepdims", half=half
    )
    def build_attrs(call: Call) -> Prepared:
        """These operators reduce the axes that an attribute names, by default all of them.

        opsets 7 to 12: ReduceSum; opsets 7 to 17: ReduceProd, ReduceMean, ReduceMax, ReduceMin, ReduceL1,
        ReduceL2, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp. X[…] → Y, without the axes or with 1 in
        their place; numbers (float16 via float32 except Max and Min; integers via float64 where roots,
        logarithms or means are taken). Run allocates nothing.
        """
        return _prepare(call, maker, call.ints_attr("axes"), False)

    @kernel(
        op_type, "T I?", since=axes_input_since, dtypes=dtypes, half=half, needs=(1,),
        attrs="keepdims noop_with_empty_axes",
    )  # fmt: skip
    def build_input(call: Call) -> Prepared:
        """These operators reduce the axes that an input names, by default all of them.

        opset 13+: ReduceSum; opset 18+: ReduceProd, ReduceMean, ReduceMax, ReduceMin, ReduceL1, ReduceL2,
        ReduceSumSquare, ReduceLogSum, ReduceLogSumExp. X[…], axes? → Y, without the axes or with 1 in their
        place; numbers, bool for Max and Min (float16 via float32 except these two; integers via float64 where
        roots, logarithms or means are taken). Run allocates nothing.
        """
        return _prepare(call, maker, call.int_list(1), call.has(1))


def _sum(call: Call, axes: _Axes, keepdims: bool, count: int) -> Any:
    """Return what makes a sum in the input's type; bound, one without scratch makes its views once."""
    spec = call.spec(0)
    dtype = spec.dtype
    outer, kept, inner = _around(spec.shape, axes)
    longest = max(outer, inner)
    if dtype not in (F32, F64) or kept < 2 or longest < 2 or longest > _LONGEST_BY_ONES:
        return lambda x, out: add_reduce(x, axes, dtype, out, keepdims), (), None
    ones = np.ones(longest, dtype)
    left, right = ones[:outer], ones[:inner]

    def before(x: Array, out: Array) -> None:
        if x.flags.c_contiguous:
            left.dot(x.reshape(outer, kept), out.reshape(kept))
        else:
            add_reduce(x, axes, dtype, out, keepdims)

    def behind(x: Array, out: Array) -> None:
        if x.flags.c_contiguous:
            x.reshape(kept, inner).dot(right, out.reshape(kept))
        else:
            add_reduce(x, axes, dtype, out, keepdims)

    def around(x: Array, out: Array, part: Array) -> None:
        if x.flags.c_contiguous:
            x.reshape(-1, inner).dot(right, part)
            left.dot(part.reshape(outer, kept), out.reshape(kept))
        else:
            add_reduce(x, axes, dtype, out, keepdims)

    if 1 not in (outer, inner):
        return around, (TensorSpec(dtype, (outer * kept,)),), None
    core = before if inner == 1 else behind

    def bind(x: Array, out: Array) -> Bound:
        if not x.flags.c_contiguous:
            return partial(core, x, out)
        if inner == 1:
            return partial(left.dot, x.reshape(outer, kept), out.reshape(kept))
        return partial(x.reshape(kept, inner).dot, right, out.reshape(kept))

    return core, (), bind


def _around(shape: tuple[int, ...], axes: _Axes) -> tuple[int, int, int]:
    """Return how many elements there are before, in and behind the kept axes; zeros where those lie apart."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    if not kept or kept != list(range(kept[0], kept[-1] + 1)) or 0 in shape:
        return 0, 0, 0
    first, last = kept[0], kept[-1] + 1
    return prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])


def _product(call: Call, axes: _Axes, keepdims: bool, count: int) -> Any:
    """Return what makes a product in the input's type."""
    dtype = call.spec(0).dtype
    return lambda x, out: mul_reduce(x, axes, dtype, out, keepdims), (), None


def _mean(call: Call, axes: _Axes, keepdims: bool, count: int) -> Any:
    """Return what makes a mean; integers are averaged in float64 and truncated."""
    dtype = call.spec(0).dtype
    if dtype.kind == "f":
        scale = np.array(1.0 / count if count else np.nan, dtype)

        def run(x: Array, out: Array) -> None:
            add_reduce(x, axes, dtype, out, keepdims)
            np.multiply(out, scale, out)

        return run, (), None
    total = TensorSpec(F64, _reduced(call.spec(0).shape, axes, keepdims))

    def run_int(x: Array, out: Array, wide: Array) -> None:
        add_reduce(x, axes, F64, wide, keepdims)
        np.divide(wide, count, wide)
        np.copyto(out, wide, casting="unsafe")

    return run_int, (total,), None


def _extreme(ufunc: Ufunc, neutral: Callable[[Dtype], Array], empty_bool: bool) -> _Maker:
    """Return the maker of a maximum or minimum; of no elements it is the neutral value."""

    def maker(call: Call, axes: _Axes, keepdims: bool, count: int) -> Any:
        dtype = call.spec(0).dtype
        if count == 0:
            value = np.array(empty_bool) if dtype == BOOL else neutral(dtype)
            return lambda x, out: np.copyto(out, value), (), None
        return lambda x, out: ufunc.reduce(x, axes, None, out, keepdims), (), None

    return maker


def _transformed(before: Ufunc, after: Ufunc, shift: bool = False) -> Callable[[Call, _Axes, bool, int], Any]:
    """Return the maker of after(sum(before(x))); ``shift`` takes the maximum out first.

    Integers are computed in float64 and truncated unless ``after`` is None.
    """

    def maker(call: Call, axes: _Axes, keepdims: bool, count: int) -> Any:
        spec = call.spec(0)
        exact = after is None
        dtype = spec.dtype if spec.dtype.kind == "f" or exact else F64
        wide = TensorSpec(dtype, spec.shape)
        small = TensorSpec(dtype, _reduced(spec.shape, axes, True))

        def run(x: Array, out: Array, temp: Array, total: Array, *shifts: Array) -> None:
            if shift:  # log-sum-exp: take the maximum out first, so that exp cannot overflow
                peak, infinite = shifts
                max_reduce(x, axes, None, peak, True)
                np.isfinite(peak, infinite)
                np.logical_not(infinite, infinite)
                np.copyto(peak, 0, where=infinite)
                np.subtract(x, peak, temp)
                np.exp(temp, temp)
            else:
                np.copyto(temp, x, casting="unsafe")
                if before is not None:
                    before(temp, temp)
            add_reduce(temp, axes, dtype, total, True)
            if after is not None:
                after(total, total)
            if shift:
                np.add(total, peak, total)
            np.copyto(out, total.reshape(out.shape), casting="unsafe")

        def run_empty(x: Array, out: Array, temp: Array, total: Array, *_shifts: Array) -> None:
            total.fill(0)
            if after is not None:
                after(total, total)
            np.copyto(out, total.reshape(out.shape), casting="unsafe")

        scratch = (wide, small, small, TensorSpec(BOOL, small.shape)) if shift else (wide, small)
        return (run if count else run_empty), scratch, None

    return maker


_register("ReduceSum", _sum, NUMERIC, 13, half=True)
_register("ReduceProd", _product, NUMERIC, 18, half=True)
_register("ReduceMean", _mean, NUMERIC, 18, half=True)
_register("ReduceMax", _extreme(np.maximum, lowest, False), NUMERIC | {BOOL}, 18, half=False)
_register("ReduceMin", _extreme(np.minimum, highest, True), NUMERIC | {BOOL}, 18, half=False)
_register("ReduceL1", _transformed(np.absolute, None), NUMERIC, 18, half=True)
_register("ReduceL2", _transformed(np.square, np.sqrt), NUMERIC, 18, half=True)
_register("ReduceSumSquare", _transformed(np.square, None), NUMERIC, 18, half=True)
_register("ReduceLogSum", _transformed(None, np.log), NUMERIC, 18, half=True)
_register("ReduceLogSumExp", _transformed(None, np.log, shift=True), NUMERIC, 18, half=True)


def _arg_extreme(call: Call, find: Callable[..., Array]) -> Prepared:
    """Return a kernel for the position of the extreme that ``find`` (np.argmax, np.argmin) looks for."""
    spec = call.spec(0)
    axis = axis_of(call, call.int_attr("axis", 0), len(spec.shape))
    keepdims = call.int_attr("keepdims", 1) != 0
    out = TensorSpec(I64, _reduced(spec.shape, (axis,), keepdims))
    last = spec.shape[axis] - 1
    backwards = tuple(slice(None, None, -1) if i == axis else slice(None) for i in range(len(spec.shape)))
    if call.int_attr("select_last_index", 0):

        def run_last(x: Array, result: Array) -> None:
            np.subtract(last, find(x[backwards], axis, keepdims=keepdims), result)

        return Prepared((out,), run_last)
    if np.dtype(np.intp) == I64:
        return Prepared((out,), lambda x, result: find(x, axis, result, keepdims=keepdims))
    # NumPy's index type is 32 bits wide on this machine and cannot be written into an int64 output directly.
    return Prepared((out,), lambda x, result: np.copyto(result, find(x, axis, keepdims=keepdims)))


@kernel("ArgMax", "T", dtypes=NUMERIC, attrs="axis keepdims select_last_index@12")
def _arg_max(call: Call) -> Prepared:
    """ArgMax (opset 7+) gives the position of the largest element along an axis, the first or the last one.

    X[a…,d,b…] → Y[a…,1,b…] or Y[a…,b…], int64; numbers. Run allocates nothing on the last axis, else a copy
    of X; with ``select_last_index`` always.
    """
    return _arg_extreme(call, np.argmax)


@kernel("ArgMin", "T", dtypes=NUMERIC, attrs="axis keepdims select_last_index@12")
def _arg_min(call: Call) -> Prepared:
    """ArgMin (opset 7+) gives the position of the smallest element along an axis, the first or the last one.

    X[a…,d,b…] → Y[a…,1,b…] or Y[a…,b…], int64; numbers. Run allocates nothing on the last axis, else a copy
    of X; with ``select_last_index`` always.
    """
    return _arg_extreme(call, np.argmin)
