"""What a backend must know of ONNX: the recorded opset, and the required primitives.

It is a module of its own because a device that only infers has no use for the catalog's tables.
"""

from __future__ import annotations

ONNX_VERSION = 21
"""The opset that the DSL records."""

PRIMITIVES = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs"),
    *("Sqrt", "Pow", "Exp", "Log"),
    "MatMul",
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    *("Reshape", "Transpose", "Concat", "Slice", "Split", "Squeeze", "Unsqueeze", "Identity", "Cast"),
    *("Equal", "Greater", "Less"),
    "Where",
    "Constant",
    "Gather",
)
"""The 30 operators that every Backend has as typed methods."""
