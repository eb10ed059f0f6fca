"""Pooling: extremes and averages over windows, tap by tap over the whole map, or over all of it at once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import bounded
from .spec import FLOAT, I8, I64, U8, Array, Bound, Dtype, Prepared, TensorSpec, Ufunc, run_bound
from .ufuncs import add_reduce, lowest, max_reduce
from .windows import MAX_TAPS, Windows, tap_slices, window_view, windows

_POOLED: frozenset[Dtype] = FLOAT | {I8, U8}
#: From this many taps on, one reduction over a view of all windows beats a loop over taps.
_MANY_TAPS = 25


def _geometry(call: Call) -> Windows:
    """Return the windows of a pooling operator; raises where kernel_shape is missing or does not fit."""
    shape = call.spec(0).shape
    size = call.ints_attr("kernel_shape")
    if size is None:
        raise KernelAttributeError(f"{call.op_type}: attribute kernel_shape is required")
    if len(shape) < 3:
        raise KernelShapeError(f"{call.op_type}: input {shape} must be [N,C,spatial]")
    if prod(size) > MAX_TAPS and tuple(size) == shape[2:] and any(call.ints_attr("pads") or ()):
        raise KernelShapeError(f"{call.op_type}: a padded window of {size} has more than {MAX_TAPS} elements")
    return windows(call, shape[2:], tuple(size), call.int_attr("ceil_mode", 0) != 0)


def _pairs(x: Array, out: Array, win: Windows) -> list[tuple[Array, Array]]:
    """Return (part of out, the elements of x that a tap brings to it) for every tap that brings any."""
    pairs: list[tuple[Array, Array]] = []
    for offset in win.offsets():
        slices = tap_slices(win, offset)
        if slices is not None:
            front = (slice(None), slice(None))
            pairs.append((out[front + slices[0]], x[front + slices[1]]))
    return pairs


def _fold_windows(x: Array, out: Array, win: Windows, ufunc: Ufunc, reduce: Ufunc, neutral: Array) -> Bound:
    """Return a run that folds each window with ``ufunc`` into ``out``; padding counts as ``neutral``."""
    axes = tuple(range(2, 2 + len(win.kernel)))
    if win.whole:
        return lambda: reduce(x, axes, None, out, True)
    if win.pads_nothing and win.taps >= _MANY_TAPS and _inside(win):
        view = window_view(x, win, 2)
        return lambda: reduce(view, axes, None, out)
    pairs = _pairs(x, out, win)
    full = next((i for i, (part, _) in enumerate(pairs) if part.shape == out.shape), None)
    start: Array = neutral
    if full is not None:  # a tap that reaches every result starts the fold and saves filling
        start = pairs.pop(full)[1]

    def run() -> None:
        np.copyto(out, start)
        for part, taps in pairs:
            ufunc(part, taps, out=part)

    return run


def _inside(win: Windows) -> bool:
    """Whether no window reaches beyond the input."""
    return all(
        (o - 1) * s + (k - 1) * d < n
        for o, s, k, d, n in zip(win.out, win.strides, win.kernel, win.dilations, win.size, strict=True)
    )


def _max_pool(call: Call) -> Prepared:
    """MaxPool (opset 7+) keeps the largest element of each window, and tells its position if asked.

    X[N,C,size…] → Y[N,C,out…], indices[N,C,out…]? (int64, in the flat input); floats, int8, uint8. Windows
    that do not fit raise KernelShapeError. Run allocates nothing.
    """
    x = call.spec(0)
    win = _geometry(call)
    out = TensorSpec(x.dtype, (*x.shape[:2], *win.out))
    if call.n_outputs == 2:
        return _max_pool_indices(call, win, out)
    neutral = lowest(x.dtype)

    def bind(data: Any, result: Any) -> Bound:
        return _fold_windows(data, result, win, np.maximum, max_reduce, neutral)

    return Prepared((out,), run_bound(bind), binder=bind)


def _max_pool_indices(call: Call, win: Windows, out: TensorSpec) -> Prepared:
    """Return a MaxPool with positions, lines or (storage_order=1) columns first.

    The first of equal maxima is the tap before which all are less: how many those are is counted in bytes,
    and looked up in a table of the taps' distances.
    """
    shape = call.spec(0).shape
    columns_first = call.int_attr("storage_order", 0) != 0
    steps = [prod(win.size[:i] if columns_first else win.size[i + 1 :]) for i in range(len(win.size))]
    starts = np.zeros(win.out, np.int64)
    for axis, (step, s, front) in enumerate(zip(steps, win.strides, win.before, strict=True)):
        along = (np.arange(win.out[axis]) * s - front) * step
        starts += along.reshape(-1, *(1,) * (len(win.out) - 1 - axis))
    planes = np.arange(shape[1], dtype=np.int64).reshape(-1, 1) * prod(win.size)
    starts = (planes + starts.reshape(1, -1)).reshape(-1)
    images = np.arange(shape[0], dtype=np.int64).reshape(-1, 1) * prod(shape[1:])
    distances = np.array([np.dot(offset, steps) for offset in win.offsets()], np.int64)
    counter = np.dtype(np.uint8 if win.taps <= 256 else np.uint16)
    neutral = lowest(out.dtype)

    def bind(x: Array, result: Array | None, indices: Array | None, *temps: Array) -> Bound:
        best = np.empty(out.shape, out.dtype) if result is None else result
        values = _fold_windows(x, best, win, np.maximum, max_reduce, neutral)
        if indices is None:
            return values
        left, less, count, which = temps
        compared: list[tuple[Array, Array, Array, Array] | None] = []
        for offset in win.offsets()[:-1]:
            slices = tap_slices(win, offset)
            if slices is None:  # padding everywhere is less than anything
                compared.append(None)
                continue
            here, there = ((slice(None), slice(None), *part) for part in slices)
            compared.append((x[there], best[here], less[here], left[here]))
        rows = indices.reshape(shape[0], -1)
        ones = left.view(np.uint8)  # adding booleans would go through buffers

        def run() -> None:
            values()
            left.fill(True)
            count.fill(0)
            for each in compared:
                if each is not None:
                    taps, most, found, still = each
                    np.less(taps, most, found)
                    np.logical_and(still, found, still)
                np.add(count, ones, count)
            np.copyto(which, count)
            # The counts are indices of the table: clipping them changes none, and is the way without buffers.
            np.take(distances, which, out=indices, mode="clip")
            np.add(rows, starts, rows)
            np.add(rows, images, rows)

        return run

    temps = tuple(
        TensorSpec(dtype, out.shape) for dtype in (np.dtype(bool), np.dtype(bool), counter, np.dtype(np.intp))
    )
    return Prepared((out, TensorSpec(I64, out.shape)), run_bound(bind), temps, binder=bind)


kernel(
    "MaxPool", "T", dtypes=_POOLED, max_outputs=2,
    attrs="auto_pad kernel_shape pads strides storage_order@8 ceil_mode@10 dilations@10",
)(_max_pool)  # fmt: skip


def _counts(win: Windows, include_pad: bool) -> Array:
    """Return the number of elements that each window averages over, int64 [*out]."""
    total = np.ones((1,), np.int64)
    for n, k, s, d, front, back, count in zip(
        win.size, win.kernel, win.strides, win.dilations, win.before, win.after, win.out, strict=True
    ):
        first, end = (-front, n + back) if include_pad else (0, n)
        starts = np.arange(count) * s - front
        at = starts[:, None] + np.arange(k) * d
        total = np.multiply.outer(total, ((at >= first) & (at < end)).sum(1))
    counts: Array = total[0]
    return counts


def _average_pool(call: Call) -> Prepared:
    """AveragePool (opset 7+) averages each window, with or without the padding in it.

    X[N,C,size…] → Y[N,C,out…]; floats (float16 via float32). Windows that do not fit raise KernelShapeError.
    Run allocates nothing.
    """
    x = call.spec(0)
    win = _geometry(call)
    out = TensorSpec(x.dtype, (*x.shape[:2], *win.out))
    bounded(call, sum(win.out) + prod(win.out), "results")
    counts = np.maximum(_counts(win, call.int_attr("count_include_pad", 0) != 0), 1)
    uniform = counts.size == 0 or bool((counts == counts.flat[0]).all())
    scale = (1.0 / counts).astype(x.dtype)
    if uniform:
        scale = scale.reshape(-1)[:1].reshape(()) if scale.size else np.ones((), x.dtype)
    zero = np.zeros((), x.dtype)

    def bind(data: Any, result: Any) -> Bound:
        fold = _fold_windows(data, result, win, np.add, add_reduce, zero)

        def run() -> None:
            fold()
            np.multiply(result, scale, result)

        return run

    return Prepared((out,), run_bound(bind), binder=bind)


kernel(
    "AveragePool", "T", dtypes=FLOAT, half=True,
    attrs="auto_pad count_include_pad kernel_shape pads strides ceil_mode@10 dilations@19",
)(_average_pool)  # fmt: skip


def _norm_of(call: Call) -> int:
    """Return attribute ``p``; KernelAttributeError unless it is positive."""
    p = call.int_attr("p", 2)
    if p < 1:
        raise KernelAttributeError(f"{call.op_type}: p must be positive, got {p}")
    return p


def _lp_pool(call: Call) -> Prepared:
    """LpPool (opset 7+) computes (Σ|x|^p)^(1/p) over each window.

    X[N,C,size…] → Y[N,C,out…]; floats (float16 via float32). Windows that do not fit raise KernelShapeError,
    a p below 1 KernelAttributeError. Run allocates nothing.
    """
    x = call.spec(0)
    win = _geometry(call)
    out = TensorSpec(x.dtype, (*x.shape[:2], *win.out))
    p = np.array(_norm_of(call), x.dtype)
    root = np.array(1.0 / _norm_of(call), x.dtype)
    zero = np.zeros((), x.dtype)

    def bind(data: Any, result: Any, powers: Any) -> Bound:
        fold = _fold_windows(powers, result, win, np.add, add_reduce, zero)

        def run() -> None:
            np.absolute(data, powers)
            np.power(powers, p, powers)
            fold()
            np.power(result, root, result)

        return run

    return Prepared((out,), run_bound(bind), (x,), binder=bind)


kernel(
    "LpPool",
    "T",
    dtypes=FLOAT,
    half=True,
    attrs="auto_pad kernel_shape p pads strides ceil_mode@18 dilations@18",
)(_lp_pool)


def _global(call: Call) -> tuple[tuple[int, ...], TensorSpec]:
    """Return the spatial axes of input 0 and the spec with 1 in their place."""
    spec = call.spec(0)
    if len(spec.shape) < 3:
        raise KernelShapeError(f"{call.op_type}: input {spec.shape} must be [N,C,spatial]")
    return tuple(range(2, len(spec.shape))), TensorSpec(
        spec.dtype, (*spec.shape[:2], *(1,) * (len(spec.shape) - 2))
    )


@kernel("GlobalAveragePool", "T", dtypes=FLOAT, half=True)
def _global_average_pool(call: Call) -> Prepared:
    """GlobalAveragePool (opset 7+) averages each channel of each image.

    X[N,C,size…] → Y[N,C,1…]; floats (float16 via float32). A rank below 3 raises KernelShapeError. Run
    allocates nothing.
    """
    axes, out = _global(call)
    scale = np.array(1.0 / max(1, prod(call.spec(0).shape[2:])), out.dtype)

    def run(x: Array, result: Array) -> None:
        add_reduce(x, axes, None, result, True)
        np.multiply(result, scale, result)

    return Prepared((out,), run)


@kernel("GlobalMaxPool", "T", dtypes=FLOAT)
def _global_max_pool(call: Call) -> Prepared:
    """GlobalMaxPool (opset 7+) keeps the largest element of each channel of each image.

    X[N,C,size…] → Y[N,C,1…]; floats. A rank below 3 raises KernelShapeError. Run allocates nothing.
    """
    axes, out = _global(call)
    return Prepared((out,), lambda x, result: max_reduce(x, axes, None, result, True))


@kernel("GlobalLpPool", "T", dtypes=FLOAT, half=True, attrs="p")
def _global_lp_pool(call: Call) -> Prepared:
    """GlobalLpPool (opset 7+) computes (Σ|x|^p)^(1/p) over each channel of each image.

    X[N,C,size…] → Y[N,C,1…]; floats (float16 via float32). A rank below 3 raises KernelShapeError, a p below
    1 KernelAttributeError. Run allocates nothing.
    """
    axes, out = _global(call)
    p = _norm_of(call)

    def run(x: Array, result: Array, powers: Array) -> None:
        np.absolute(x, powers)
        np.power(powers, p, powers)
        add_reduce(powers, axes, None, result, True)
        np.power(result, 1.0 / p, result)

    return Prepared((out,), run, (call.spec(0),))


@kernel("MaxUnpool", "T I I?", since=9, dtypes=FLOAT, needs=(2,), attrs="kernel_shape pads strides")
def _max_unpool(call: Call) -> Prepared:
    """MaxUnpool (opset 9+) puts each maximum back to the place that MaxPool told, and zeros elsewhere.

    X[N,C,size…], indices like X, output_shape? → Y[N,C,out…]; floats, int32 or int64 indices. Shapes that do
    not fit raise KernelShapeError, as does an index outside of Y at run. Run allocates coordinates for every
    element of X.
    """
    x, where = call.spec(0), call.spec(1)
    size = call.ints_attr("kernel_shape")
    if size is None or where.shape != x.shape or len(x.shape) != len(size) + 2:
        raise KernelShapeError(
            f"MaxUnpool: input {x.shape}, indices {where.shape} and kernel_shape {size} do not fit"
        )
    rank = len(size)
    strides = call.ints_attr("strides") or [1] * rank
    pads = call.ints_attr("pads") or [0] * (2 * rank)
    inferred = (
        *x.shape[:2],
        *((n - 1) * s + k - pads[i] - pads[i + rank]
          for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, size, strict=True))),
    )  # fmt: skip
    output_shape = call.int_list(2)
    shape = inferred if output_shape is None else tuple(output_shape)
    if len(shape) != len(inferred) or any(a < b for a, b in zip(shape, inferred, strict=True)):
        raise KernelShapeError(f"MaxUnpool: output shape {shape} is smaller than {inferred}")
    n_in = len(call.inputs)
    room = prod(inferred)
    view = tuple(slice(0, d) for d in inferred)

    def run(data: Array, indices: Array, *rest: Array) -> None:
        result = rest[n_in - 2]
        if indices.size and (indices.min() < 0 or indices.max() >= room):
            raise KernelShapeError(f"MaxUnpool: an index is outside of the {room} elements of {inferred}")
        result.fill(0)
        places = np.unravel_index(indices.reshape(-1), inferred)
        result[view][places] = data.reshape(-1)

    return Prepared((TensorSpec(x.dtype, shape),), run)
