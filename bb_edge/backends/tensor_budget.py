"""How many bytes a node may allocate in one run for shapes that depend on data, where nobody says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_edge.ir import keys

__all__ = ["LEAST", "tensor_budget"]

LEAST = 64 * 1024 * 1024
"""Bytes where an artifact plans less: what a board of 256 MB can lose for a moment."""

_MAX_DIGITS = 15
"""Digits of an arena, as in a memory plan."""


def tensor_budget(functions: Iterable[Any]) -> int:
    """Returns the larger of `LEAST` and twice the largest arena that the functions' memory plans have."""
    arenas = [
        int(arena)
        for function in functions
        for entry in function.metadata_props
        if entry.key == keys.MEMORY_PLAN_KEY
        for arena in _arenas(entry.value)
    ]
    return max(LEAST, 2 * max(arenas, default=0))


def _arenas(text: str) -> Iterable[str]:
    """The sizes of arenas in a memory plan; a damaged plan, which is refused elsewhere, may have none."""
    for entry in text.split("|")[3:]:
        fields = entry.split(" ")
        if len(fields) == 6 and fields[3].isascii() and fields[3].isdigit() and len(fields[3]) <= _MAX_DIGITS:
            yield fields[3]
