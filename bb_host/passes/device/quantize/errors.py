"""What quantization refuses."""

from __future__ import annotations

from bb_edge.ir.errors import CompileError

__all__ = ["CalibrationError", "NothingToQuantizeError", "QuantizeError"]


class QuantizeError(CompileError):
    """A program, or an option, that quantization cannot follow; nothing was written."""


class NothingToQuantizeError(QuantizeError):
    """A target without constant weights; others of the program may have some."""


class CalibrationError(QuantizeError):
    """Calibration data that are missing, or do not fit the program's inputs."""
