"""What the TFLite lowering raises."""

from __future__ import annotations


class NotLowered(Exception):
    """An operator that stays ONNX, and why; never leaves this room."""
