"""The table of gradient rules, and how one is written.

A rule gets the forward op, the gradient of each of its outputs (None for one that the loss does not depend
on) and which of its inputs want one; it gives a gradient per input, in exactly the input's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_host.ir.operator_kinds import REDUCTIONS
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder

Gradients = Sequence["str | None"]
Wants = Sequence[bool]
Rule = Callable[[GradientBuilder, Op, Gradients, Wants], Gradients]

RULES: dict[str, Rule] = {}
"""Operator → its rule."""

STOPS = frozenset(
    [
        *("Shape", "Size", "Constant", "ConstantOfShape", "Range", "EyeLike", "OneHot", "Hardmax"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor"),
        *("ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "Sign", "Floor", "Ceil", "Round"),
        *("RandomNormalLike", "RandomUniformLike", "Bernoulli"),
    ]
)
"""Operators whose results do not move with their inputs, or only in jumps: no gradient goes through them."""

_SECOND, _SECOND_AND_THIRD = frozenset({1}), frozenset({1, 2})

SHAPE_INPUTS: dict[str, frozenset[int]] = {
    **dict.fromkeys(REDUCTIONS, _SECOND),
    **dict.fromkeys(("Reshape", "Expand", "Squeeze", "Unsqueeze", "Split", "Tile", "TopK"), _SECOND),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"), _SECOND),
    **dict.fromkeys(("Trilu", "CumSum", "ReverseSequence", "CastLike", "AffineGrid"), _SECOND),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Dropout", "Clip"), _SECOND_AND_THIRD),
    "Col2Im": _SECOND_AND_THIRD,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), frozenset({4})),
    "Where": frozenset({0}),
    "Pad": frozenset({1, 3}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Resize": frozenset({1, 2, 3}),
}
"""Inputs that steer an op and never get a gradient."""

CARRIERS = frozenset(
    ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Concat", "Slice", "Clip"]
)
"""Operators that a gradient passes also where they work on the integers of a fake quantization."""


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[op_type] = function
        return function

    return register


Slope = Callable[[GradientBuilder, Op, str, str, str], str]
"""(g, op, x, y, dy) → dx, of an op whose first input alone gets a gradient."""


def unary(*op_types: str) -> Callable[[Slope], Slope]:
    """Registers a slope as the rule for operators."""

    def register(slope: Slope) -> Slope:
        def apply(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
            return first_alone(op, slope(g, op, op.inputs[0], op.outputs[0], one(dys)))

        apply.__doc__, apply.__module__ = slope.__doc__, slope.__module__
        rule(*op_types)(apply)
        return slope

    return register


def slopes(**table: Slope) -> None:
    """Registers slopes of one expression, by operator."""
    for op_type, slope in table.items():
        unary(op_type)(slope)


def one(gradients: Gradients) -> str:
    """The gradient of an op's only output."""
    found = gradients[0]
    assert found is not None
    return found


def first_alone(op: Op, gradient: str) -> Gradients:
    """The gradient of an op's first input, and none for the others."""
    return (gradient, *[None] * (len(op.inputs) - 1))
