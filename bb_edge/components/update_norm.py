"""Norms of updates: whether a vector is finite, how long an update is, and a shorter one in its direction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir.quiet import hush, unhush

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

CHUNK = 16 * 1024
"""Elements that are worked on at a time, so that scratch memory stays in a second-level cache."""


def is_finite(values: Array) -> bool:
    """Returns whether a 1-D vector of floating point holds neither inf nor nan, in float32 at most.

    Squares do not cancel each other, so that a finite sum of them is proof, at two thirds of the time of
    looking at each element; only large values overflow it, and are then looked at.
    """
    token = hush()
    try:
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        return math.isfinite(values.dot(values)) or bool(np.isfinite(values).all())
    finally:
        unhush(token)


def largest_of(values: Array) -> float:
    """Returns the largest magnitude in a 1-D vector; inf where one is inf or nan, 0 for an empty one."""
    if not values.size:
        return 0.0
    token = hush()
    try:
        largest = max(float(values.max()), -float(values.min()))  # nan where an element is
    finally:
        unhush(token)
    return largest if math.isfinite(largest) else math.inf


def update_norm(values: Array, base: Array | None) -> float:
    """Returns the L2 norm of values − base (of the values, where there is no base), all 1-D.

    nan where an element is nan; inf where one is, or where the norm is larger than a float64.
    """
    token = hush()
    try:
        squares = _squares(values, base, values.dtype)
        if not math.isfinite(squares):
            squares = _squares(values, base, np.dtype(np.float64))
    finally:
        unhush(token)
    return math.sqrt(squares)


def _squares(values: Array, base: Array | None, dtype: np.dtype[Any]) -> float:
    if values.dtype == dtype and (base is None or (base.dtype == dtype and values.size <= CHUNK)):
        update = values if base is None else values - base
        return float(update.dot(update))
    total, scratch = 0.0, np.empty(min(CHUNK, values.size), dtype)
    for start in range(0, values.size, CHUNK):
        part = values[start : start + CHUNK]
        room = scratch[: part.size]
        if base is None:
            room[:] = part
        else:
            np.subtract(part, base[start : start + CHUNK], out=room, dtype=dtype, casting="same_kind")
        total += float(room.dot(room))
    return total


def clipped(values: Array, base: Array | None, share: float) -> Array:
    """Returns base + share · (values − base), f32; without a base share · values."""
    if base is None:
        shorter: Array = (values * np.float64(share)).astype(np.float32)
        return shorter
    result = np.empty(values.size, np.float32)
    for start in range(0, values.size, CHUNK):
        end = start + CHUNK
        part = base[start:end].astype(np.float64)
        result[start:end] = part + (values[start:end] - part) * share
    return result
