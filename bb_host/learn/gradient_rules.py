"""The table of gradient rules, and how one is written.

A rule gets the forward op, the gradient of each of its outputs (None for one that the loss does not depend
on) and which of its inputs want one; it gives a gradient per input, in exactly the input's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.program import Op

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
    "Slice": frozenset({1, 2, 3, 4}),
    "Pad": frozenset({1, 3}),
    "Split": frozenset({1}),
    "Tile": frozenset({1}),
    "Gather": frozenset({1}),
    "Where": frozenset({0}),
    "Dropout": frozenset({1, 2}),
    "Clip": frozenset({1, 2}),
}
"""Inputs that steer an op and never get a gradient."""


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[op_type] = function
        return function

    return register


def one(gradients: Gradients) -> str:
    """The gradient of an op's only output."""
    found = gradients[0]
    assert found is not None
    return found
