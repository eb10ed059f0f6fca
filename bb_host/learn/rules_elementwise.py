"""Gradients of arithmetic and of activations.

A rule reads an op's output rather than its input where both would do: the output is mostly kept anyway, as
the next op's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bb_host.learn.errors import NotDifferentiableError
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, one, rule
from bb_host.program import Op

Wants = Sequence[bool]


def _float(op: Op, name: str, default: float) -> float:
    value = op.attrs.get(name, default)
    assert isinstance(value, (int, float))
    return float(value)


def _text(op: Op, name: str, default: str) -> str:
    value = op.attrs.get(name)
    return value.decode() if isinstance(value, bytes) else default


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
    da = g.reduce_to(g.op("Mul", dy, b), y, a) if wants[0] else None
    db = g.reduce_to(g.op("Mul", dy, a), y, b) if wants[1] else None
    return (da, db)


@rule("Div")
def _div(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    quotient = g.op("Div", dy, b)
    da = g.reduce_to(quotient, y, a) if wants[0] else None
    db = g.op("Neg", g.reduce_to(g.op("Mul", quotient, y), y, b)) if wants[1] else None
    return (da, db)


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

_Slope = Callable[[GradientBuilder, Op, str, str, str], str]


def _unary(*op_types: str) -> Callable[[_Slope], _Slope]:
    """Registers (g, op, x, y, dy) → dx."""

    def register(slope: _Slope) -> _Slope:
        def apply(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
            return (slope(g, op, op.inputs[0], op.outputs[0], one(dys)), *[None] * (len(op.inputs) - 1))

        rule(*op_types)(apply)
        return slope

    return register


@_unary("Identity")
def _identity(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return dy


@_unary("Dropout")
def _dropout(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    if len(op.inputs) > 2 and op.inputs[2]:
        training = g.constant(op.inputs[2])
        if training is None or training.any():
            raise NotDifferentiableError(op, "it drops in training mode", "export the model for inference")
    return dy


@_unary("Neg")
def _neg(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Neg", dy)


@_unary("Relu")
def _relu(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    # By 0 or 1 rather than by Where: NumPy multiplies in a vector loop and chooses one by one (measured: 3.4
    # against 5.3 µs at 32×32, 5 against 20 µs at 256×32).
    return g.op("Mul", dy, g.cast(g.op("Greater", y, g.scalar(0, y)), g.dtype(y)))


@_unary("LeakyRelu")
def _leaky_relu(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    alpha = _float(op, "alpha", 0.01)
    read = y if alpha > 0 else x  # a positive slope keeps the sign
    scaled = g.op("Mul", dy, g.scalar(alpha, x))
    return g.op("Where", g.op("Greater", read, g.scalar(0, x)), dy, scaled)


@_unary("ThresholdedRelu")
def _thresholded_relu(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    above = g.op("Greater", x, g.scalar(_float(op, "alpha", 1.0), x))
    return g.op("Mul", dy, g.cast(above, g.dtype(x)))


@_unary("Elu")
def _elu(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    below = g.op("Mul", dy, g.op("Add", y, g.scalar(_float(op, "alpha", 1.0), x)))
    return g.op("Where", g.op("Greater", x, g.scalar(0, x)), dy, below)


@_unary("Clip")
def _clip(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Only within the bounds, which themselves get none."""
    zero = g.scalar(0, x)
    for bound, order in zip(op.inputs[1:], ("Greater", "Less"), strict=False):
        if bound:
            dy = g.op("Where", g.op(order, x, bound), dy, zero)
    return dy


@_unary("Sigmoid")
def _sigmoid(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, g.op("Mul", y, g.op("Sub", g.scalar(1, y), y)))


@_unary("Tanh")
def _tanh(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, g.op("Sub", g.scalar(1, y), g.op("Mul", y, y)))


@_unary("HardSigmoid")
def _hard_sigmoid(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    inside = g.op("And", g.op("Greater", y, g.scalar(0, y)), g.op("Less", y, g.scalar(1, y)))
    slope = g.op("Mul", dy, g.scalar(_float(op, "alpha", 0.2), y))
    return g.op("Where", inside, slope, g.scalar(0, y))


@_unary("HardSwish")
def _hard_swish(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """x·clip(x/6 + 1/2, 0, 1): 0 below −3, 1 above 3, x/3 + 1/2 between."""
    middle = g.op("Add", g.op("Mul", x, g.scalar(1 / 3, x)), g.scalar(0.5, x))
    low = g.op("Where", g.op("Greater", x, g.scalar(-3, x)), middle, g.scalar(0, x))
    return g.op("Mul", dy, g.op("Where", g.op("Less", x, g.scalar(3, x)), low, g.scalar(1, x)))


@_unary("Softplus")
def _softplus(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, g.op("Sigmoid", x))


@_unary("Exp")
def _exp(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, y)


@_unary("Log")
def _log(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Div", dy, x)


@_unary("Sqrt")
def _sqrt(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Div", g.op("Mul", dy, g.scalar(0.5, y)), y)


@_unary("Reciprocal")
def _reciprocal(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Neg", g.op("Mul", dy, g.op("Mul", y, y)))


@_unary("Abs")
def _abs(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Where", g.op("Less", x, g.scalar(0, x)), g.op("Neg", dy), dy)


@_unary("Sin")
def _sin(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, g.op("Cos", x))


@_unary("Cos")
def _cos(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Neg", g.op("Mul", dy, g.op("Sin", x)))


def _bell(g: GradientBuilder, x: str, scale: float, width: float) -> str:
    """scale · exp(−width · x²)."""
    return g.op("Mul", g.op("Exp", g.op("Mul", g.op("Mul", x, x), g.scalar(-width, x))), g.scalar(scale, x))


@_unary("Erf")
def _erf(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    return g.op("Mul", dy, _bell(g, x, 2 / math.sqrt(math.pi), 1))


@_unary("Gelu")
def _gelu(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    half, whole = g.scalar(0.5, x), g.scalar(1, x)
    if _text(op, "approximate", "none") == "tanh":
        # t = tanh(c·(x + k·x³)); slope = (1 + t)/2 + x/2 · (1 − t²) · c·(1 + 3k·x²)
        c, k = math.sqrt(2 / math.pi), 0.044715
        square = g.op("Mul", x, x)
        bend = g.op("Add", g.op("Mul", square, g.scalar(c * k, x)), g.scalar(c, x))
        t = g.op("Tanh", g.op("Mul", x, bend))
        inner = g.op("Add", g.op("Mul", square, g.scalar(3 * c * k, x)), g.scalar(c, x))
        rise = g.op("Mul", g.op("Mul", x, g.op("Sub", whole, g.op("Mul", t, t))), inner)
        return g.op("Mul", dy, g.op("Mul", half, g.op("Add", g.op("Add", t, whole), rise)))
    level = g.op("Add", g.op("Erf", g.op("Mul", x, g.scalar(math.sqrt(0.5), x))), whole)
    bell = g.op("Mul", x, _bell(g, x, 1 / math.sqrt(2 * math.pi), 0.5))
    return g.op("Mul", dy, g.op("Add", g.op("Mul", half, level), bell))


@_unary("Softmax")
def _softmax(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    product = g.op("Mul", dy, y)
    total = g.op("ReduceSum", product, g.ints(int(_float(op, "axis", -1))), keepdims=1)
    return g.op("Sub", product, g.op("Mul", y, total))


@_unary("LogSoftmax")
def _log_softmax(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    total = g.op("ReduceSum", dy, g.ints(int(_float(op, "axis", -1))), keepdims=1)
    return g.op("Sub", dy, g.op("Mul", g.op("Exp", y), total))
