"""Quantization of a target: calibration, QDQ form in int8, weights in float16, what it costs in accuracy."""

from __future__ import annotations

from bb_host.errors import CalibrationError, QuantizeError
from bb_host.passes.device.quantize.accuracy import Accuracy
from bb_host.passes.device.quantize.calibration import read_calibration
from bb_host.passes.device.quantize.step import MODES, Quantization, quantize_program

__all__ = [
    "MODES",
    "Accuracy",
    "CalibrationError",
    "Quantization",
    "QuantizeError",
    "quantize_program",
    "read_calibration",
]
