"""Scales and zero points of int8: real = scale · (stored - zero_point).

Activations are asymmetric over [-128, 127] with zero in range; weights symmetric in [-127, 127] per output
channel; biases int32 at input scale · weight scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bb_host.ir.program import Array
from bb_host.passes.device.quantize.calibration import Range

_TINY = 1e-8
BIAS_MOST = 2**31 - 1
_BIAS_LIMIT = 2.0**30
"""A bias stays below it, so that the accumulator has room for the products."""


class Parameters(NamedTuple):
    """Of one activation."""

    scale: np.float32
    zero_point: np.int8


LOGISTIC = Parameters(np.float32(1 / 256), np.int8(-128))
"""What TFLite's kernels fix for results in [0, 1]: Softmax and Sigmoid."""

TANH = Parameters(np.float32(1 / 128), np.int8(0))


def of_range(found: Range) -> Parameters:
    """Of an activation that lies in a range, zero always included."""
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    # What was nothing but zero may be anything: a grid as fine as that would be none that kernels compute on.
    scale = (high - low if high - low > _TINY else 1.0) / 255
    zero = min(max(round(-128 - low / scale), -128), 127)
    return Parameters(np.float32(scale), np.int8(zero))


def weights_of(
    weight: Array, axis: int | None, bias: Array | None = None, scale: float = 1.0
) -> tuple[Array, Array]:
    """int8 weights, and their scales: one per index of `axis`, or one where it is None.

    Where a channel's bias would pass int32 at `scale` · weight scale, that channel's scale is raised.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    peak = np.atleast_1d(np.abs(weight).max(axis=others)).astype(np.float64)
    scales = np.maximum(peak, _TINY) / 127
    if bias is not None and bias.size == scales.size:
        scales = np.maximum(scales, np.abs(bias.reshape(-1)) / (scale * _BIAS_LIMIT))
    scales = scales.astype(np.float32)
    grid = scales if axis is None else scales.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    stored = np.clip(np.round(weight / grid.astype(np.float64)), -127, 127)
    return stored.astype(np.int8), scales


def bias_of(bias: Array, scale: np.float32, scales: Array) -> tuple[Array, Array]:
    """int32 bias and its scales."""
    own = (scales * scale).astype(np.float32)
    return np.clip(np.round(bias / own.astype(np.float64)), -BIAS_MOST, BIAS_MOST).astype(np.int32), own
