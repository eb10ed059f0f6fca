"""What values weigh: the one measure of every byte budget (semantics §6 "Budgets")."""

from __future__ import annotations

import numpy as np

from bb_edge.roles import Composite

LEAF_BYTES = 8
"""Charge of a value that is neither an array nor a text."""


def payload_bytes(value: object) -> int:
    """Bytes of arrays and texts, through bundles and tuples; 8 for any other leaf."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    if isinstance(value, Composite):
        return sum(payload_bytes(child) for child in value.values)
    if isinstance(value, tuple):
        return sum(payload_bytes(child) for child in value)
    return LEAF_BYTES
