"""The table of gradient rules, and how one is written.

A rule gets the forward op, the gradient of each of its outputs (None for one that the loss does not depend
on) and which of its inputs want one; it gives a gradient per input, in exactly the input's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder

Gradients = Sequence["str | None"]
Rule = Callable[[GradientBuilder, Op, Gradients, Sequence[bool]], Gradients]

RULES: dict[str, Rule] = {}
"""Operator → its rule."""

STOPS = frozenset(
    [
        "Shape",
        "Size",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "And",
        "Or",
        "Not",
        "Xor",
        "ArgMax",
        "ArgMin",
        "NonZero",
        "IsNaN",
        "IsInf",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Constant",
        "ConstantOfShape",
        "Range",
        "EyeLike",
        "OneHot",
        "Hardmax",
        "RandomNormalLike",
        "RandomUniformLike",
        "Bernoulli",
    ]
)
"""Operators whose results do not move with their inputs, or only in jumps: no gradient goes through them."""

SHAPE_INPUTS: dict[str, frozenset[int]] = {
    "Reshape": frozenset({1}),
    "Expand": frozenset({1}),
    "Squeeze": frozenset({1}),
    "Unsqueeze": frozenset({1}),
    "ReduceSum": frozenset({1}),
    "ReduceMean": frozenset({1}),
    "ReduceMax": frozenset({1}),
    "ReduceMin": frozenset({1}),
    "ReduceL1": frozenset({1}),
    "ReduceL2": frozenset({1}),
    "ReduceSumSquare": frozenset({1}),
    "ReduceLogSum": frozenset({1}),
    "ReduceLogSumExp": frozenset({1}),
    "ReduceProd": frozenset({1}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Pad": frozenset({1, 3}),
    "Split": frozenset({1}),
    "Tile": frozenset({1}),
    "Gather": frozenset({1}),
    "GatherElements": frozenset({1}),
    "GatherND": frozenset({1}),
    "ScatterElements": frozenset({1}),
    "ScatterND": frozenset({1}),
    "TopK": frozenset({1}),
    "Trilu": frozenset({1}),
    "CumSum": frozenset({1}),
    "ReverseSequence": frozenset({1}),
    "Resize": frozenset({1, 2, 3}),
    "CastLike": frozenset({1}),
    "RNN": frozenset({4}),
    "GRU": frozenset({4}),
    "LSTM": frozenset({4}),
    "QuantizeLinear": frozenset({1, 2}),
    "DequantizeLinear": frozenset({1, 2}),
    "Where": frozenset({0}),
    "Dropout": frozenset({1, 2}),
    "Clip": frozenset({1, 2}),
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
        def apply(g: GradientBuilder, op: Op, dys: Gradients, wants: Sequence[bool]) -> Gradients:
            return first_alone(op, slope(g, op, op.inputs[0], op.outputs[0], one(dys)))

        apply.__doc__, apply.__module__ = slope.__doc__, slope.__module__
        rule(*op_types)(apply)
        return slope

    return register


def one(gradients: Gradients) -> str:
    """The gradient of an op's only output."""
    found = gradients[0]
    assert found is not None
    return found


def first_alone(op: Op, gradient: str) -> Gradients:
    """The gradient of an op's first input, and none for the others."""
    return (gradient, *[None] * (len(op.inputs) - 1))


def int_attr(op: Op, name: str, default: int) -> int:
    """An integer attribute."""
    value = op.attrs.get(name, default)
    assert isinstance(value, int)
    return value


def float_attr(op: Op, name: str, default: float) -> float:
    """A number attribute."""
    value = op.attrs.get(name, default)
    assert isinstance(value, (int, float))
    return float(value)


def text_attr(op: Op, name: str, default: str) -> str:
    """A text attribute."""
    value = op.attrs.get(name)
    return value.decode() if isinstance(value, bytes) else default
