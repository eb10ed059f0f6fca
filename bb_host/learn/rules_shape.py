"""Gradients of reductions and of what only moves data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, first_alone, one, rule, slopes, unary

# --- reductions -----------------------------------------------------------------------------------


def _reduced_axes(g: GradientBuilder, op: Op) -> list[int]:
    rank = g.rank(op, op.inputs[0])
    axes = g.int_list(op, "axes", 1)
    if not axes:
        return [] if op.integer("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _kept(g: GradientBuilder, op: Op, value: str, axes: Sequence[int]) -> str:
    """A reduced value with its reduced axes as ones."""
    return value if op.integer("keepdims", 1) or not axes else g.op("Unsqueeze", value, g.ints(*axes))


@unary("ReduceSum", "ReduceMean")
def _reduce_sum(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    axes = _reduced_axes(g, op)
    if not axes:
        return dy
    shape = g.shape_value(x)
    if op.op_type == "ReduceMean":
        dims = [(g.shape(x) or ())[axis] for axis in axes]
        known = [d for d in dims if isinstance(d, int)]
        if len(known) == len(dims):
            dy = g.op("Mul", dy, g.scalar(1 / max(1, int(np.prod(known))), x))
        else:
            count = g.op("ReduceProd", g.op("Gather", shape, g.ints(*axes), axis=0), keepdims=0)
            dy = g.op("Div", dy, g.cast(count, g.dtype(x)))
    return g.op("Expand", _kept(g, op, dy, axes), shape)


@unary("ReduceMax", "ReduceMin")
def _reduce_extreme(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Shared evenly by the entries that are the extreme."""
    axes = _reduced_axes(g, op)
    if not axes:
        return dy
    hit = g.cast(g.op("Equal", x, _kept(g, op, y, axes)), g.dtype(x))
    count = g.op("ReduceSum", hit, g.ints(*axes), keepdims=1)
    return g.op("Mul", hit, g.op("Div", _kept(g, op, dy, axes), count))


@unary("GlobalMaxPool")
def _global_max_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Shared evenly by the entries that are the largest of their channel."""
    hit = g.cast(g.op("Equal", x, y), g.dtype(x))
    count = g.op("ReduceSum", hit, g.ints(*range(2, g.rank(op, x))), keepdims=1)
    return g.op("Mul", hit, g.op("Div", dy, count))


@unary("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def _reduce_norm(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The slope of a sum by each entry: sign(x), x/y, 2x, exp(−y), exp(x − y)."""
    axes = _reduced_axes(g, op)
    y, dy = _kept(g, op, y, axes), _kept(g, op, dy, axes)
    kind = op.op_type
    if kind == "ReduceL1":
        slope = g.op("Sign", x)
    elif kind == "ReduceL2":  # a zero vector has no direction: it gets zeros
        slope = g.op("Div", x, g.op("Where", g.op("Equal", y, g.scalar(0, x)), g.scalar(1, x), y))
    elif kind == "ReduceSumSquare":
        slope = g.op("Mul", x, g.scalar(2, x))
    elif kind == "ReduceLogSum":
        spread = g.op("Mul", dy, g.op("Exp", g.op("Neg", y)))
        return g.op("Expand", spread, g.shape_value(x))
    else:
        slope = g.op("Exp", g.op("Sub", x, y))
    return g.op("Mul", dy, slope)


@unary("ReduceProd")
def _reduce_prod(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The product of the others, also where entries are zero."""
    axes = _reduced_axes(g, op)
    if not axes:
        return dy
    dy = _kept(g, op, dy, axes)
    zero, unit, along = g.scalar(0, x), g.scalar(1, x), g.ints(*axes)
    is_zero = g.op("Equal", x, zero)
    safe = g.op("Where", is_zero, unit, x)
    product = g.op("ReduceProd", safe, along, keepdims=1)
    zeros = g.op("ReduceSum", g.cast(is_zero, g.dtype(x)), along, keepdims=1)
    none = g.op("Where", g.op("Equal", zeros, zero), g.op("Div", product, safe), zero)
    single = g.op("Where", g.op("Equal", zeros, unit), product, zero)
    return g.op("Mul", dy, g.op("Where", is_zero, single, none))


# --- the same entries in another shape ------------------------------------------------------------


@unary("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.reshape_like(dy, x)


@unary("Transpose")
def _transpose(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    perm = g.int_list(op, "perm", len(op.inputs))
    if perm is None:
        return g.op("Transpose", dy)
    return g.op("Transpose", dy, perm=[perm.index(axis) for axis in range(len(perm))])


slopes(
    Cast=lambda g, op, x, y, dy: g.cast(dy, g.dtype(x)),
    CastLike=lambda g, op, x, y, dy: g.cast(dy, g.dtype(x)),
    Expand=lambda g, op, x, y, dy: g.reduce_to(dy, y, x),
)


# --- parts ----------------------------------------------------------------------------------------


@rule("Concat")
def _concat(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    axis = op.integer("axis", 0) % g.rank(op, op.outputs[0])
    pieces = [g.op("Gather", g.shape_value(v), g.ints(axis), axis=0) for v in op.inputs]
    dims = [(g.shape(v) or (None,) * (axis + 1))[axis] for v in op.inputs]
    known = [d for d in dims if isinstance(d, int)]
    sizes = g.ints(*known) if len(known) == len(dims) else g.op("Concat", *pieces, axis=0)
    parts = g.op_n("Split", len(op.inputs), one(dys), sizes, axis=axis)
    return [part if wanted else None for part, wanted in zip(parts, wants, strict=True)]


@rule("Split")
def _split(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    parts = [g.zeros_like(y) if dy is None else dy for y, dy in zip(op.outputs, dys, strict=True)]
    return first_alone(op, g.op("Concat", *parts, axis=op.integer("axis", 0)))


@rule("Gather")
def _gather(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Rows that were read several times get the sum: a ScatterND that adds, the axis brought to the front."""
    (x, indices), dy = op.inputs, one(dys)
    rank, n = g.rank(op, x), g.rank(op, indices)
    axis = op.integer("axis", 0) % rank
    dim = (g.shape(x) or ())[axis]
    shape = g.shape_value(x)
    if isinstance(dim, int):
        length = g.const(np.array(dim, np.int64))
    else:
        length = g.op("Gather", shape, g.const(np.array(axis, np.int64)), axis=0)
    if axis:  # y: x[:axis] + indices + x[axis+1:]; bring indices and the axis to the front
        front = [*range(axis, axis + n), *range(axis), *range(axis + n, rank - 1 + n)]
        dy = g.op("Transpose", dy, perm=front)
        shape = g.op("Gather", shape, g.ints(axis, *range(axis), *range(axis + 1, rank)), axis=0)
    # Negative indices count from the end.
    wrapped = g.op("Mod", g.cast(indices, np.dtype(np.int64)), length)
    zeros = g.op("ConstantOfShape", shape, value=np.zeros(1, g.dtype(x)))
    dx = g.op("ScatterND", zeros, g.op("Unsqueeze", wrapped, g.ints(-1)), dy, reduction=b"add")
    if axis:
        dx = g.op("Transpose", dx, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return (dx, None)
