"""Kinds of ONNX operators that several rooms ask for: shapes, transposes, gradients."""

from __future__ import annotations

from collections.abc import Mapping

UNARY = frozenset((
    *("Abs", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Sin", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
))  # fmt: skip
"""Of one input, element by element: the result has its shape, and a transpose may stand behind them too."""

BROADCAST = frozenset((
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
    *("Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where"),
))  # fmt: skip
"""Of several inputs, element by element, by NumPy's rule."""

REDUCTIONS = frozenset(
    f"Reduce{kind}"
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
)
"""Over axes that are an input, or of older opsets the attribute `axes`."""

LISTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(REDUCTIONS, (1,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Expand", "Reshape", "Split"), (1,)),
    **dict.fromkeys(("Squeeze", "Tile", "TopK", "Unsqueeze"), (1,)),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Inputs that ONNX wants with one dimension, by position: axes, sizes, places. Its schemas say so in prose.

Recording makes a list of one of a number there, and the lowering reads a number so: files have both.
"""
