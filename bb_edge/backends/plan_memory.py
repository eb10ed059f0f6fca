"""Where buffers lie in one arena, given when each is alive. Greedy by size: the largest first, each into the
smallest gap between buffers that are alive at the same time. A heuristic (the problem is NP-hard); its
quality is measured against the lower bound, the largest sum of simultaneously live bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Layout", "Lifetime", "live_bytes", "plan_memory"]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `nbytes` that is alive from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Offset of every buffer, and the arena's size."""

    offsets: tuple[int, ...]
    total: int


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of (aligned) bytes alive at one step: no layout can be smaller."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + _aligned(life.nbytes)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - _aligned(life.nbytes)
    largest = now = 0
    for step in sorted(changes):
        now += changes[step]
        largest = max(largest, now)
    return largest


def plan_memory(lifetimes: Sequence[Lifetime]) -> Layout:
    """Lays the buffers out; two that are alive at the same step never overlap.

    O(n²) in the number of buffers, which is some hundreds for the largest graphs that a device runs.
    """
    best = _greedy(lifetimes, lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i))
    if best.total > live_bytes(lifetimes):
        # Order of birth wins where long chains of equal sizes alternate.
        other = _greedy(lifetimes, lambda i: (lifetimes[i].first, -lifetimes[i].nbytes, i))
        best = min(best, other, key=lambda layout: layout.total)
    return best


def _greedy(lifetimes: Sequence[Lifetime], order: Callable[[int], tuple[int, ...]]) -> Layout:
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), sorted by offset
    total = 0
    for index in sorted(range(len(lifetimes)), key=order):
        life = lifetimes[index]
        size = _aligned(life.nbytes)
        if size == 0:
            continue
        best_offset, best_gap, cursor = -1, 0, 0
        for offset, end, first, last in placed:
            if last < life.first or first > life.last:
                continue
            gap = offset - cursor
            if gap >= size and (best_offset < 0 or gap < best_gap):
                best_offset, best_gap = cursor, gap
            cursor = max(cursor, end)
        if best_offset < 0:
            best_offset = cursor
        offsets[index] = best_offset
        placed.append((best_offset, best_offset + size, life.first, life.last))
        placed.sort()
        total = max(total, best_offset + size)
    return Layout(tuple(offsets), total)
