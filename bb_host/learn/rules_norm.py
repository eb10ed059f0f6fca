"""Gradients of normalisations that compute their own statistics.

With n = (x − mean)/deviation and d the gradient of n, dX = (d − mean(d) − n·mean(d·n))/deviation; without a
mean, as in RMSNormalization, its term falls away. The statistics are computed again from the input.
"""

from __future__ import annotations

import numpy as np

from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule, unary


def _inverse_root(g: GradientBuilder, square: str, axes: str, epsilon: float, like: str) -> str:
    """1/√(mean + epsilon) of squares."""
    spread = g.op("Add", g.op("ReduceMean", square, axes, keepdims=1), g.scalar(epsilon, like))
    return g.op("Reciprocal", g.op("Sqrt", spread))


def _standardised(g: GradientBuilder, x: str, axes: str, epsilon: float, like: str) -> tuple[str, str]:
    """(n, 1/deviation) over axes."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes, keepdims=1))
    inverse = _inverse_root(g, g.op("Mul", centred, centred), axes, epsilon, like)
    return g.op("Mul", centred, inverse), inverse


def _back(g: GradientBuilder, d: str, normal: str, inverse: str, axes: str, centred: bool = True) -> str:
    along = g.op("Mul", normal, g.op("ReduceMean", g.op("Mul", d, normal), axes, keepdims=1))
    if centred:
        d = g.op("Sub", d, g.op("ReduceMean", d, axes, keepdims=1))
    return g.op("Mul", g.op("Sub", d, along), inverse)


@rule("InstanceNormalization", "GroupNormalization")
def _group_normalization(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Channels in groups, or each one by itself; scale and bias per channel."""
    (x, scale, _), dy = op.inputs, one(dys)
    rank = g.rank(op, x)
    (channels,) = g.static_dims(op, x, [1])
    groups = channels if op.op_type == "InstanceNormalization" else op.integer("num_groups", 1)
    axes = g.ints(2)

    def grouped(value: str) -> str:
        return g.op("Reshape", value, g.ints(0, groups, -1))

    normal, inverse = _standardised(g, grouped(x), axes, op.number("epsilon", 1e-5), x)
    d = grouped(g.op("Mul", dy, g.op("Unsqueeze", scale, g.ints(*range(1, rank - 1)))))
    rows = dy if rank == 3 else g.op("Reshape", dy, g.ints(0, channels, -1))
    flat = normal if groups == channels else g.op("Reshape", normal, g.ints(0, channels, -1))
    dx = g.reshape_like(_back(g, d, normal, inverse, axes), x) if wants[0] else None
    around = g.ints(0, 2)
    ds = g.op("ReduceSum", g.op("Mul", rows, flat), around, keepdims=0) if wants[1] else None
    db = g.op("ReduceSum", rows, around, keepdims=0) if wants[2] else None
    return (dx, ds, db)


@rule("RMSNormalization")
def _rms_normalization(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (x, scale), dy = op.inputs, one(dys)
    rank = g.rank(op, x)
    axes = g.ints(*range(op.integer("axis", -1) % rank, rank))
    inverse = _inverse_root(g, g.op("Mul", x, x), axes, op.number("epsilon", 1e-5), x)
    normal = g.op("Mul", x, inverse)
    dx = _back(g, g.op("Mul", dy, scale), normal, inverse, axes, centred=False) if wants[0] else None
    return (dx, g.reduce_to(g.op("Mul", dy, normal), op.outputs[0], scale) if wants[1] else None)


@unary("MeanVarianceNormalization")
def _mean_variance_normalization(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    axes = g.ints(*(g.int_list(op, "axes", 1) or [0, 2, 3]))
    normal, inverse = _standardised(g, x, axes, 1e-9, x)
    return _back(g, dy, normal, inverse, axes)


@unary("LpNormalization")
def _lp_normalization(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """y = x/length: dX = (dY − direction·Σ dY·y)/length, the direction being y or, of the 1-norm, its sign.

    A zero vector is its own result, as is its gradient.
    """
    axes = g.ints(op.integer("axis", -1))
    p = op.integer("p", 2)
    length = g.op("ReduceL1" if p == 1 else "ReduceL2", x, axes, keepdims=1)
    length = g.op("Where", g.op("Equal", length, g.scalar(0, x)), g.scalar(1, x), length)
    along = g.op("ReduceSum", g.op("Mul", dy, y), axes, keepdims=1)
    direction = g.op("Sign", y) if p == 1 else y
    return g.op("Div", g.op("Sub", dy, g.op("Mul", direction, along)), length)


@unary("LRN")
def _lrn(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """y = x·D^−beta with D = bias + alpha/size·Σ x² over neighbouring channels.

    The sums are a product with a band of ones: [C, C], its transpose on the way back.
    """
    (channels,) = g.static_dims(op, x, [1])
    size, beta = op.integer("size", 1), op.number("beta", 0.75)
    share = op.number("alpha", 1e-4) / size
    below, above = (size - 1) // 2, size - 1 - (size - 1) // 2
    away = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    band = ((away >= -below) & (away <= above)).astype(g.dtype(x))

    def flat(value: str) -> str:
        return g.op("Reshape", value, g.ints(0, channels, -1))

    rows, dr = flat(x), flat(dy)
    total = g.op("MatMul", g.const(band), g.op("Mul", rows, rows))
    d = g.op("Add", g.op("Mul", total, g.scalar(share, x)), g.scalar(op.number("bias", 1.0), x))
    own = g.op("Mul", dr, g.op("Pow", d, g.scalar(-beta, x)))
    around = g.op("MatMul", g.const(np.ascontiguousarray(band.T)), g.op("Div", g.op("Mul", own, rows), d))
    through = g.op("Mul", g.op("Mul", rows, around), g.scalar(2 * share * beta, x))
    return g.reshape_like(g.op("Sub", own, through), x)
