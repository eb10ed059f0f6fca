"""Operators that move elements without computing: cutting, joining, repeating, turning round."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shape import axis_attr
from .shapes import axes_of, bounded
from .spec import Array, Bound, Prepared, TensorSpec, run_bound


@kernel("Concat", "T*", attrs="axis")
def _concat(call: Call) -> Prepared:
    """Concat (opset 7+) joins its inputs along an axis.

    X1[a…,m,b…], X2[a…,n,b…], … → Y[a…,m+n+…,b…]; any type. Shapes that differ elsewhere raise
    KernelShapeError. Run allocates nothing.
    """
    axis = axis_attr(call)
    n = len(call.inputs)
    shapes = [call.spec(i).shape for i in range(n)]
    first = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first) or shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise KernelShapeError(f"Concat: shapes {shapes} differ outside axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    out = TensorSpec(call.spec(0).dtype, (*first[:axis], total, *first[axis + 1 :]))
    return Prepared((out,), lambda *arrays: np.concatenate(arrays[:n], axis, arrays[n]))


def _split_into(call: Call, axis: int, sizes: list[int]) -> Prepared:
    """Return a Split into parts of the given sizes; KernelShapeError where they do not add up."""
    spec = call.spec(0)
    if sum(sizes) != spec.shape[axis] or any(s < 0 for s in sizes):
        raise KernelShapeError(f"Split: sizes {sizes} do not add up to dimension {axis} of {spec.shape}")
    if len(sizes) != call.n_outputs:
        raise KernelShapeError(f"Split: {len(sizes)} sizes do not fit {call.n_outputs} outputs")
    windows: list[tuple[slice, ...]] = []
    start = 0
    for size in sizes:
        windows.append((slice(None),) * axis + (slice(start, start + size),))
        start += size
    n = len(call.inputs)

    def bind(*arrays: Any) -> Bound:
        pairs = [(out, arrays[0][w]) for out, w in zip(arrays[n:], windows, strict=True) if out is not None]

        def run() -> None:
            for target, source in pairs:
                np.copyto(target, source)

        return run

    shape = spec.shape
    outputs = tuple(TensorSpec(spec.dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes)
    alias = (lambda x: x[windows[0]]) if call.n_outputs == 1 else None
    return Prepared(outputs, run_bound(bind), binder=bind, alias=alias)


def _equal_parts(call: Call, axis: int, parts: int, uneven: bool) -> list[int]:
    """Return the sizes of equal parts of an axis; ``uneven`` lets the last one be smaller."""
    dim = call.spec(0).shape[axis]
    if parts < 1 or (dim % parts and not uneven):
        raise KernelShapeError(f"Split: dimension {dim} does not divide into {parts} equal parts")
    size = -(-dim // parts)
    return [min(size, max(0, dim - i * size)) for i in range(parts)]


_MANY = 1024  # outputs of one Split; a bound so that a hostile node cannot ask for more


@kernel("Split", "T", until=12, attrs="axis split", max_outputs=_MANY)
def _split_attr(call: Call) -> Prepared:
    """Split (opsets 7 to 12) cuts an axis into parts, of equal size unless an attribute names the sizes.

    X[a…,d,b…] → Y1[a…,d1,b…], Y2[a…,d2,b…], …; any type. Sizes that do not add up to d raise
    KernelShapeError. Run allocates nothing.
    """
    axis = axis_attr(call, 0)
    return _split_into(call, axis, call.ints_attr("split") or _equal_parts(call, axis, call.n_outputs, False))


@kernel("Split", "T I?", since=13, until=17, attrs="axis", needs=(1,), max_outputs=_MANY)
def _split_input(call: Call) -> Prepared:
    """Split (opsets 13 to 17) cuts an axis into parts, of equal size unless an input names the sizes.

    X[a…,d,b…], sizes? → Y1[a…,d1,b…], Y2[a…,d2,b…], …; any type. Sizes that do not add up to d raise
    KernelShapeError. Run allocates nothing.
    """
    axis = axis_attr(call, 0)
    return _split_into(call, axis, call.int_list(1) or _equal_parts(call, axis, call.n_outputs, False))


@kernel("Split", "T I?", since=18, attrs="axis num_outputs", needs=(1,), max_outputs=_MANY)
def _split(call: Call) -> Prepared:
    """Split (opset 18+) cuts an axis into parts; without sizes all are equal except a smaller last one.

    X[a…,d,b…], sizes? → Y1[a…,d1,b…], Y2[a…,d2,b…], …; any type. Sizes that do not add up to d raise
    KernelShapeError, a wrong ``num_outputs`` KernelAttributeError. Run allocates nothing.
    """
    axis = axis_attr(call, 0)
    sizes = call.int_list(1)
    if sizes is None:
        parts = call.int_attr("num_outputs", call.n_outputs)
        if parts != call.n_outputs:
            raise KernelAttributeError(
                f"Split: num_outputs is {parts}, but the node has {call.n_outputs} outputs"
            )
        sizes = _equal_parts(call, axis, parts, True)
    return _split_into(call, axis, sizes)


def _sliced(
    call: Call,
    starts: list[int] | None,
    ends: list[int] | None,
    axes: list[int] | None,
    steps: list[int] | None,
) -> Prepared:
    """Return a Slice with known bounds: a view of the input, or a copy of it."""
    spec = call.spec(0)
    if starts is None or ends is None or len(starts) != len(ends):
        raise KernelShapeError(f"Slice: starts {starts} and ends {ends} must have the same length")
    chosen = axes_of(call, list(range(len(starts))) if axes is None else axes, len(spec.shape))
    strides = [1] * len(starts) if steps is None else steps
    if len(chosen) != len(starts) or len(strides) != len(starts):
        raise KernelShapeError(
            f"Slice: {len(starts)} starts, {len(chosen)} axes and {len(strides)} steps must be equally many"
        )
    window = [slice(None)] * len(spec.shape)
    shape = list(spec.shape)
    for axis, start, end, step in zip(chosen, starts, ends, strides, strict=True):
        dim = spec.shape[axis]
        if step == 0:
            raise KernelShapeError("Slice: a step of 0 is not allowed")
        low, high = (0, dim) if step > 0 else (-1, dim - 1)
        first = min(max(start + dim if start < 0 else start, 0), high)
        last = min(max(end + dim if end < 0 else end, low), high)
        shape[axis] = max(0, -(-(last - first) // step) if step > 0 else -((last - first) // -step))
        # A downward slice that reaches element 0 ends at "before 0", which only None can say.
        window[axis] = slice(first, None if last < 0 else last, step)
        if shape[axis] == 0:
            window[axis] = slice(0, 0)
    out = TensorSpec(spec.dtype, tuple(shape))
    where = tuple(window)
    n = len(call.inputs)

    def run(x: Array, *rest: Array) -> None:
        np.copyto(rest[n - 1], x[where])

    return Prepared((out,), run, alias=lambda x: x[where])


@kernel("Slice", "T", until=9, attrs="axes starts ends")
def _slice_attrs(call: Call) -> Prepared:
    """Slice (opsets 7 to 9) cuts a range out of some axes, by attributes.

    X[…] → Y[…]; any type. Bounds are limited to the axis, negative ones count from the end. Lists that do not
    fit raise KernelShapeError. Run allocates nothing.
    """
    return _sliced(call, call.ints_attr("starts"), call.ints_attr("ends"), call.ints_attr("axes"), None)


@kernel("Slice", "T I I I? I?", since=10, needs=(1, 2, 3, 4))
def _slice(call: Call) -> Prepared:
    """Slice (opset 10+) cuts a range out of some axes, by inputs, with steps.

    X[…], starts, ends, axes?, steps? → Y[…]; any type. Bounds are limited to the axis, negative ones count
    from the end. Lists that do not fit and a step of 0 raise KernelShapeError. Run allocates nothing.
    """
    return _sliced(call, call.int_list(1), call.int_list(2), call.int_list(3), call.int_list(4))


@kernel("Tile", "T I", needs=(1,))
def _tile(call: Call) -> Prepared:
    """Tile (opset 7+) repeats its input along each axis.

    X[d…], repeats[r] → Y[d·repeats…]; any type. Repeats that do not fit raise KernelShapeError. Run allocates
    nothing.
    """
    spec = call.spec(0)
    repeats = call.int_list(1) or []
    if len(repeats) != len(spec.shape) or any(r < 0 for r in repeats):
        raise KernelShapeError(f"Tile: repeats {repeats} do not fit shape {spec.shape}")
    out = TensorSpec(spec.dtype, tuple(d * r for d, r in zip(spec.shape, repeats, strict=True)))
    split = tuple(v for pair in zip(repeats, spec.shape, strict=True) for v in pair)
    ones = tuple(v for d in spec.shape for v in (1, d))

    def run(x: Array, _repeats: Array, result: Array) -> None:
        np.copyto(result.reshape(split), x.reshape(ones))

    return Prepared((out,), run)


def _blocks(call: Call) -> tuple[int, tuple[int, ...]]:
    """Return ``blocksize`` and the shape [N,C,H,W] of input 0; KernelShapeError where either does not fit."""
    shape = call.spec(0).shape
    size = call.int_attr("blocksize")
    if len(shape) != 4 or size < 1:
        raise KernelShapeError(
            f"{call.op_type}: input {shape} must be [N,C,H,W] and blocksize {size} positive"
        )
    return size, shape


def _permuted(call: Call, split: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]) -> Prepared:
    """Return a kernel that splits axes, permutes them and joins them: a single strided copy."""
    target = tuple(split[i] for i in order)

    def run(x: Array, out: Array) -> None:
        np.copyto(out.reshape(target), x.reshape(split).transpose(order))

    return Prepared((TensorSpec(call.spec(0).dtype, shape),), run)


def _depth_to_space(call: Call) -> Prepared:
    """DepthToSpace (opset 7+) moves blocks of channels into space.

    X[N,C·b²,H,W] → Y[N,C,H·b,W·b]; any type. Channels that do not divide raise KernelShapeError. Run
    allocates nothing.
    """
    b, (n, c, h, w) = _blocks(call)
    mode = call.str_attr("mode", "DCR", ("DCR", "CRD"))
    if c % (b * b):
        raise KernelShapeError(f"DepthToSpace: {c} channels do not divide by blocksize² {b * b}")
    shape = (n, c // (b * b), h * b, w * b)
    if mode == "DCR":
        return _permuted(call, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2), shape)
    return _permuted(call, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3), shape)


kernel("DepthToSpace", "T", attrs="blocksize mode@11")(_depth_to_space)


def _space_to_depth(call: Call) -> Prepared:
    """SpaceToDepth (opset 7+) moves blocks of space into channels.

    X[N,C,H·b,W·b] → Y[N,C·b²,H,W]; any type. Sizes that do not divide raise KernelShapeError. Run allocates
    nothing.
    """
    b, (n, c, h, w) = _blocks(call)
    mode = call.str_attr("mode", "DCR", ("DCR", "CRD"))
    if h % b or w % b:
        raise KernelShapeError(f"SpaceToDepth: {h} by {w} does not divide into blocks of {b}")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return _permuted(call, (n, c, h // b, b, w // b, b), order, (n, c * b * b, h // b, w // b))


kernel("SpaceToDepth", "T", attrs="blocksize mode@28")(_space_to_depth)


@kernel("Trilu", "T I?", since=14, needs=(1,), attrs="upper")
def _trilu(call: Call) -> Prepared:
    """Trilu (opset 14+) keeps the upper or lower triangle of each matrix and zeroes the rest.

    X[…,m,n], k? → Y like X; any type. A lower rank and matrices above MAX_TABLE elements raise
    KernelShapeError. Run allocates nothing.
    """
    spec = call.spec(0)
    if len(spec.shape) < 2:
        raise KernelShapeError(f"Trilu: input {spec.shape} must hold matrices")
    k = (call.int_list(1) or [0])[0]
    bounded(call, spec.shape[-2] * spec.shape[-1], "elements of a matrix", 10)
    rows, cols = np.arange(spec.shape[-2])[:, None], np.arange(spec.shape[-1])[None, :]
    keep = cols - rows >= k if call.int_attr("upper", 1) else cols - rows <= k
    drop = ~keep
    n = len(call.inputs)

    def run(x: Array, *rest: Array) -> None:
        np.copyto(rest[n - 1], x)
        np.copyto(rest[n - 1], 0, where=drop, casting="unsafe")

    return Prepared((spec,), run, inplace=(0,))


@kernel("ReverseSequence", "T I", since=10, attrs="batch_axis time_axis")
def _reverse_sequence(call: Call) -> Prepared:
    """ReverseSequence (opset 10+) turns round the first lengths[b] steps of every batch entry.

    X[batch,time,…] or X[time,batch,…], lengths[batch] → Y like X; any type. Axes that do not fit raise
    KernelShapeError, as does a length out of [0, time] at run. Run allocates nothing.
    """
    spec, lens = call.spec(0), call.spec(1)
    batch, time = call.int_attr("batch_axis", 1), call.int_attr("time_axis", 0)
    if sorted((batch, time)) != [0, 1] or len(spec.shape) < 2 or lens.shape != (spec.shape[batch],):
        raise KernelShapeError(
            f"ReverseSequence: axes {batch}, {time} and lengths {lens.shape} do not fit input {spec.shape}"
        )
    steps = spec.shape[time]

    def run(x: Array, lengths: Array, out: Array) -> None:
        if lengths.size and (lengths.min() < 0 or lengths.max() > steps):
            raise KernelShapeError(f"ReverseSequence: a length is outside of 0..{steps}")
        np.copyto(out, x)
        source, target = (x, out) if batch == 0 else (x.swapaxes(0, 1), out.swapaxes(0, 1))
        for i, length in enumerate(lengths):
            target[i, :length] = source[i, :length][::-1]

    return Prepared((spec,), run)
