"""Gradients of fake quantization: straight through, within the range that the integers can hold.

QuantizeLinear rounds, and rounding has no slope; quantization-aware training takes it for the identity where
it does not saturate. The gradient passes the integers on its way: what is carried along there is the gradient
of the real values that they stand for. Scales and zero points are settings and get none.
"""

from __future__ import annotations

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Array, Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import unary


@unary("QuantizeLinear")
def _quantize(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """dY where low ≤ x ≤ high, else 0; the bounds are those of the integers, half a step further."""
    if op.integer("block_size", 0):
        raise NotDifferentiableError(op, "its scales are in blocks", "train with a scale per tensor or axis")
    info = np.iinfo(g.dtype(y).str)
    low, high = (_bound(g, op, limit) for limit in (info.min - 0.5, info.max + 0.5))
    inside = g.op("And", g.op("GreaterOrEqual", x, low), g.op("LessOrEqual", x, high))
    return g.op("Where", inside, dy, g.scalar(0, x))


def _bound(g: GradientBuilder, op: Op, limit: float) -> str:
    """(limit − zero point)·scale, as it is broadcast over the input; a constant where both are."""
    x, scale = op.inputs[:2]
    point = op.inputs[2] if len(op.inputs) > 2 else ""
    rank = g.rank(op, x)
    axis = op.integer("axis", 1)
    known, known_point = g.constant(scale), g.constant(point) if point else np.zeros(())
    shape = (*[1] * (axis % rank), -1, *[1] * (rank - 1 - axis % rank)) if rank else ()
    if known is not None and known_point is not None:
        bound: Array = np.asarray((limit - known_point.astype(np.float64)) * known.astype(np.float64))
        return g.const((bound.reshape(shape) if bound.size > 1 else bound.reshape(())).astype(g.dtype(x)))
    steps = g.scalar(limit, x) if not point else g.op("Sub", g.scalar(limit, x), g.cast(point, g.dtype(x)))
    computed = g.op("Mul", steps, g.cast(scale, g.dtype(x)))
    return computed if g.rank(op, scale) == 0 else g.op("Reshape", computed, g.ints(*shape))


@unary("DequantizeLinear")
def _dequantize(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The integers stand for what was quantized, as long as both ends have one scale."""
    quantized = g.maker(x)
    while quantized is not None and quantized.op_type != "QuantizeLinear":
        quantized = g.maker(quantized.inputs[0])
    if quantized is not None and not _same(g, quantized.inputs[1], op.inputs[1]):
        hint = "give QuantizeLinear and DequantizeLinear the same scale"
        raise NotDifferentiableError(op, "its scale is not the one that its input was quantized with", hint)
    return dy


def _same(g: GradientBuilder, a: str, b: str) -> bool:
    first, second = g.constant(a), g.constant(b)
    if a == b or first is None or second is None:
        return a == b
    return first.size == second.size and np.array_equal(first.reshape(-1), second.reshape(-1))
