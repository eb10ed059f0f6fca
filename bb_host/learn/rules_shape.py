"""Gradients of reductions and of what only moves data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bb_host.learn.errors import NotDifferentiableError
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, one, rule
from bb_host.program import Op

Wants = Sequence[bool]


def _int(op: Op, name: str, default: int) -> int:
    value = op.attrs.get(name, default)
    assert isinstance(value, int)
    return value


def _rest(op: Op, gradient: str) -> Gradients:
    return (gradient, *[None] * (len(op.inputs) - 1))


# --- reductions -----------------------------------------------------------------------------------


def _reduced_axes(g: GradientBuilder, op: Op) -> list[int]:
    rank = g.rank(op, op.inputs[0])
    axes = g.int_list(op, "axes", 1)
    if not axes:
        return [] if _int(op, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _kept(g: GradientBuilder, op: Op, value: str, axes: Sequence[int]) -> str:
    """A reduced value with its reduced axes as ones."""
    return value if _int(op, "keepdims", 1) or not axes else g.op("Unsqueeze", value, g.ints(*axes))


@rule("ReduceSum", "ReduceMean")
def _reduce_sum(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    x, dy = op.inputs[0], one(dys)
    axes = _reduced_axes(g, op)
    if not axes:
        return _rest(op, dy)
    shape = g.shape_value(x)
    if op.op_type == "ReduceMean":
        dims = [(g.shape(x) or ())[axis] for axis in axes]
        known = [d for d in dims if isinstance(d, int)]
        if len(known) == len(dims):
            dy = g.op("Mul", dy, g.scalar(1 / max(1, int(np.prod(known))), x))
        else:
            count = g.op("ReduceProd", g.op("Gather", shape, g.ints(*axes), axis=0), keepdims=0)
            dy = g.op("Div", dy, g.cast(count, g.dtype(x)))
    return _rest(op, g.op("Expand", _kept(g, op, dy, axes), shape))


@rule("ReduceMax", "ReduceMin")
def _reduce_extreme(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Shared evenly by the entries that are the extreme."""
    x, dy = op.inputs[0], one(dys)
    axes = _reduced_axes(g, op)
    if not axes:
        return _rest(op, dy)
    hit = g.cast(g.op("Equal", x, _kept(g, op, op.outputs[0], axes)), g.dtype(x))
    count = g.op("ReduceSum", hit, g.ints(*axes), keepdims=1)
    return _rest(op, g.op("Mul", hit, g.op("Div", _kept(g, op, dy, axes), count)))


# --- the same entries in another shape ------------------------------------------------------------


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    return _rest(op, g.reshape_like(one(dys), op.inputs[0]))


@rule("Transpose")
def _transpose(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    perm = g.int_list(op, "perm", len(op.inputs))
    if perm is None:
        return (g.op("Transpose", one(dys)),)
    return (g.op("Transpose", one(dys), perm=[perm.index(axis) for axis in range(len(perm))]),)


@rule("Expand")
def _expand(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    return (g.reduce_to(one(dys), op.outputs[0], op.inputs[0]), None)


@rule("Cast")
def _cast(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    return (g.cast(one(dys), g.dtype(op.inputs[0])),)


# --- parts ----------------------------------------------------------------------------------------


@rule("Concat")
def _concat(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    axis = _int(op, "axis", 0) % g.rank(op, op.outputs[0])
    pieces = [g.op("Gather", g.shape_value(v), g.ints(axis), axis=0) for v in op.inputs]
    dims = [(g.shape(v) or (None,) * (axis + 1))[axis] for v in op.inputs]
    known = [d for d in dims if isinstance(d, int)]
    sizes = g.ints(*known) if len(known) == len(dims) else g.op("Concat", *pieces, axis=0)
    parts = g.op_n("Split", len(op.inputs), one(dys), sizes, axis=axis)
    return [part if wanted else None for part, wanted in zip(parts, wants, strict=True)]


@rule("Split")
def _split(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    parts = [g.zeros_like(y) if dy is None else dy for y, dy in zip(op.outputs, dys, strict=True)]
    return _rest(op, g.op("Concat", *parts, axis=_int(op, "axis", 0)))


@rule("Slice")
def _slice(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Zeros around the gradient; steps other than 1 are refused."""
    x = op.inputs[0]
    rank = g.rank(op, x)
    starts, ends = g.int_list(op, "starts", 1), g.int_list(op, "ends", 2)
    assert starts is not None and ends is not None
    axes = g.int_list(op, "axes", 3) or list(range(len(starts)))
    if any(step != 1 for step in g.int_list(op, "steps", 4) or ()):
        raise NotDifferentiableError(op, "it steps over entries", "gather them instead")
    before, after = [0] * rank, [0] * rank
    for start, end, axis in zip(starts, ends, axes, strict=True):
        (dim,) = g.static_dims(op, x, [axis % rank])
        first, last, _ = slice(start, end).indices(dim)
        before[axis % rank], after[axis % rank] = first, dim - max(first, last)
    return _rest(op, g.op("Pad", one(dys), g.ints(*before, *after)))


@rule("Pad")
def _pad(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    mode = op.attrs.get("mode", b"constant")
    pads = g.int_list(op, "pads", 1)
    if mode != b"constant" or pads is None or (len(op.inputs) > 3 and op.inputs[3]):
        raise NotDifferentiableError(op, "only constant padding of all axes has a gradient")
    rank = g.rank(op, op.inputs[0])
    if min(pads) < 0:
        raise NotDifferentiableError(op, "it cuts (negative padding)", "slice instead")
    far = np.iinfo(np.int64).max
    ends = [-p if p else far for p in pads[rank:]]
    return _rest(op, g.op("Slice", one(dys), g.ints(*pads[:rank]), g.ints(*ends)))


@rule("Gather")
def _gather(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Rows that were read several times get the sum: a ScatterND that adds, the axis brought to the front."""
    (x, indices), dy = op.inputs, one(dys)
    rank, n = g.rank(op, x), g.rank(op, indices)
    axis = _int(op, "axis", 0) % rank
    (dim,) = g.static_dims(op, x, [axis])
    shape = g.shape_value(x)
    if axis:  # y: x[:axis] + indices + x[axis+1:]; bring indices and the axis to the front
        front = [*range(axis, axis + n), *range(axis), *range(axis + n, rank - 1 + n)]
        dy = g.op("Transpose", dy, perm=front)
        shape = g.op("Gather", shape, g.ints(axis, *range(axis), *range(axis + 1, rank)), axis=0)
    # Negative indices count from the end.
    wrapped = g.op("Mod", g.cast(indices, np.dtype(np.int64)), g.const(np.array(dim, np.int64)))
    zeros = g.op("ConstantOfShape", shape, value=np.zeros(1, g.dtype(x)))
    dx = g.op("ScatterND", zeros, g.op("Unsqueeze", wrapped, g.ints(-1)), dy, reduction=b"add")
    if axis:
        dx = g.op("Transpose", dx, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return (dx, None)
