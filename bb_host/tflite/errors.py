"""What the TFLite lowering raises."""

from __future__ import annotations

from bb_edge.ir.errors import CompileError

__all__ = ["LoweringError", "NotLowered"]


class LoweringError(CompileError):
    """A TFLite graph that cannot be written: a defect of the lowering, not of the program."""


class NotLowered(Exception):
    """An operator that stays ONNX, and why; never leaves this room."""
