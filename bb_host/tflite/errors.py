"""What the TFLite lowering raises."""

from __future__ import annotations

__all__ = ["NotLowered"]


class NotLowered(Exception):
    """An operator that stays ONNX, and why; never leaves this room."""
