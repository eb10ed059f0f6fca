"""Gradients of arithmetic.

A rule reads an op's output rather than its input where both would do: the output is mostly kept anyway, as
the next op's input.
"""

from __future__ import annotations

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule, slopes, unary

# --- two operands, broadcast ----------------------------------------------------------------------


@rule("Add", "Sub")
def _add(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    dy, y = one(dys), op.outputs[0]
    db = g.reduce_to(dy, y, op.inputs[1]) if wants[1] else None
    if db is not None and op.op_type == "Sub":
        db = g.op("Neg", db)
    return (g.reduce_to(dy, y, op.inputs[0]) if wants[0] else None, db)


@rule("Mul")
def _mul(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    da = g.reduce_to(g.times(dy, b, y), y, a) if wants[0] else None
    db = g.reduce_to(g.times(dy, a, y), y, b) if wants[1] else None
    return (da, db)


@rule("Div")
def _div(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    quotient = g.op("Div", dy, b)
    da = g.reduce_to(quotient, y, a) if wants[0] else None
    db = g.op("Neg", g.reduce_to(g.op("Mul", quotient, y), y, b)) if wants[1] else None
    return (da, db)


@rule("Mod")
def _mod(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """The rest moves with the dividend, and against as many divisors as it holds; the jumps count nothing."""
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    db = None
    if wants[1]:
        whole = g.op("Round", g.op("Div", g.op("Sub", a, y), b))
        db = g.op("Neg", g.reduce_to(g.op("Mul", dy, whole), y, b))
    return (g.reduce_to(dy, y, a) if wants[0] else None, db)


@rule("Pow")
def _pow(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """The exponent's gradient is y·log(a), taken as 0 where the base is not positive."""
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    da = db = None
    if wants[0]:
        exponent = g.constant(b)
        if exponent is not None and exponent.size == 1 and exponent.item() == 2:
            slope = g.op("Mul", a, g.scalar(2, a))
        elif exponent is not None:
            less = g.const(np.asarray(exponent - 1, g.dtype(a)))
            slope = g.op("Mul", g.op("Pow", a, less), g.const(np.asarray(exponent, g.dtype(a))))
        else:
            slope = g.op("Mul", g.op("Pow", a, g.op("Sub", b, g.scalar(1, b))), b)
        da = g.reduce_to(g.op("Mul", dy, slope), y, a)
    if wants[1]:
        positive = g.op("Greater", a, g.scalar(0, a))
        safe = g.op("Log", g.op("Where", positive, a, g.scalar(1, a)))
        db = g.reduce_to(g.op("Mul", dy, g.op("Mul", y, safe)), y, b)
    return (da, db)


@rule("Min", "Max")
def _min_max(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """To the operand that is the result; where several are, each gets the whole (as at a Relu's bend: one
    of the subgradients, unless operands are equal).
    """
    dy, y = one(dys), op.outputs[0]
    grads: list[str | None] = []
    for value, wanted in zip(op.inputs, wants, strict=True):
        chosen = g.op("Where", g.op("Equal", value, y), dy, g.scalar(0, y)) if wanted else None
        grads.append(None if chosen is None else g.reduce_to(chosen, y, value))
    return grads


@rule("Sum", "Mean")
def _sum(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    dy, y = one(dys), op.outputs[0]
    if op.op_type == "Mean":
        dy = g.op("Mul", dy, g.scalar(1 / len(op.inputs), y))
    return [g.reduce_to(dy, y, v) if wanted else None for v, wanted in zip(op.inputs, wants, strict=True)]


@rule("PRelu")
def _prelu(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (x, slope), dy, y = op.inputs, one(dys), op.outputs[0]
    positive = g.op("Greater", x, g.scalar(0, x))
    dx = g.op("Where", positive, dy, g.op("Mul", dy, slope)) if wants[0] else None
    ds = g.op("Where", positive, g.scalar(0, x), g.op("Mul", dy, x)) if wants[1] else None
    return (dx, None if ds is None else g.reduce_to(ds, y, slope))


@rule("Where")
def _where(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (condition, a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    zero = g.scalar(0, y)
    da = g.reduce_to(g.op("Where", condition, dy, zero), y, a) if wants[1] else None
    db = g.reduce_to(g.op("Where", condition, zero, dy), y, b) if wants[2] else None
    return (None, da, db)


# --- one operand ----------------------------------------------------------------------------------


slopes(
    Identity=lambda g, op, x, y, dy: dy,
    Neg=lambda g, op, x, y, dy: g.op("Neg", dy),
    Abs=lambda g, op, x, y, dy: g.op("Where", g.op("Less", x, g.scalar(0, x)), g.op("Neg", dy), dy),
    Exp=lambda g, op, x, y, dy: g.op("Mul", dy, y),
    Log=lambda g, op, x, y, dy: g.op("Div", dy, x),
    Sqrt=lambda g, op, x, y, dy: g.op("Div", g.op("Mul", dy, g.scalar(0.5, y)), y),
    Reciprocal=lambda g, op, x, y, dy: g.op("Neg", g.op("Mul", dy, g.op("Mul", y, y))),
    Sin=lambda g, op, x, y, dy: g.op("Mul", dy, g.op("Cos", x)),
    Cos=lambda g, op, x, y, dy: g.op("Neg", g.op("Mul", dy, g.op("Sin", x))),
    Tan=lambda g, op, x, y, dy: g.op("Mul", dy, g.op("Add", g.scalar(1, y), g.op("Mul", y, y))),
    Sinh=lambda g, op, x, y, dy: g.op("Mul", dy, g.op("Cosh", x)),
    Cosh=lambda g, op, x, y, dy: g.op("Mul", dy, g.op("Sinh", x)),
)


@unary("Dropout")
def _dropout(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    if len(op.inputs) > 2 and op.inputs[2]:
        training = g.constant(op.inputs[2])
        if training is None or training.any():
            raise NotDifferentiableError(op, "it drops in training mode", "export the model for inference")
    return dy


@unary("Clip")
def _clip(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Only within the bounds, which themselves get none; integers of a fake quantization reach them."""
    zero = g.scalar(0, x)
    orders = ("GreaterOrEqual", "LessOrEqual") if g.stands_for_reals(x) else ("Greater", "Less")
    for bound, order in zip(op.inputs[1:], orders, strict=False):
        if bound:
            dy = g.op("Where", g.op(order, x, bound), dy, zero)
    return dy


@unary("Asin", "Acos", "Asinh", "Acosh", "Atan", "Atanh")
def _inverse(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """1/√(1 ∓ x²) and 1/(1 ± x²)."""
    square, unit = g.op("Mul", x, x), g.scalar(1, x)
    kind = op.op_type
    if kind in ("Asin", "Acos", "Atanh"):
        inner = g.op("Sub", unit, square)
    elif kind == "Acosh":
        inner = g.op("Sub", square, unit)
    else:
        inner = g.op("Add", square, unit)
    dx = g.op("Div", dy, inner if kind in ("Atan", "Atanh") else g.op("Sqrt", inner))
    return g.op("Neg", dx) if kind == "Acos" else dx
