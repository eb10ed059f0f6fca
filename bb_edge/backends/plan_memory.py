"""Where buffers lie in one arena, given when each is alive.

Greedy: buffers in some order, each into the smallest gap between those alive at the same time; then again
with the hard ones first, until the layout meets the lower bound or attempts run out. A heuristic (the problem
is NP-hard), measured against that bound, the largest sum of simultaneously live bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

__all__ = ["ALIGNMENT", "Layout", "Lifetime", "live_bytes", "plan_memory"]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""

_ATTEMPTS = 16
"""Layouts tried; the vision models that ship with ONNX meet the lower bound within six."""

_PAIRS = 2_000_000
"""Pairs of buffers compared in all attempts: some 0.2 s. The largest of those models has 418 buffers."""

_MANY = 1_400
"""Buffers from which one pass over time must do: the square of it is what may be compared."""


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

    An attempt is O(n²) in the number of buffers; more than `_MANY` are laid out in one pass over time.
    """
    if len(lifetimes) > _MANY:
        return _by_time(lifetimes)
    bound = live_bytes(lifetimes)
    attempts = max(1, min(_ATTEMPTS, _PAIRS // max(1, len(lifetimes)) ** 2))
    order = _by_pressure(lifetimes)
    best = layout = _greedy(lifetimes, order)
    for _ in range(attempts - 1):
        if best.total <= bound:
            break
        # What ended up on top goes first the next time: those are the buffers that are hard to place.
        top = {i for i in order if layout.offsets[i] + _aligned(lifetimes[i].nbytes) == layout.total}
        order = [i for i in order if i in top] + [i for i in order if i not in top]
        layout = _greedy(lifetimes, order)
        best = min(best, layout, key=lambda found: found.total)
    return best


def _by_pressure(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Buffers of the fullest steps first; among them the largest first."""
    at: dict[int, int] = {}
    for life in lifetimes:
        for step in range(life.first, life.last + 1):
            at[step] = at.get(step, 0) + _aligned(life.nbytes)
    pressure = [max(at[step] for step in range(life.first, life.last + 1)) for life in lifetimes]
    return sorted(range(len(lifetimes)), key=lambda i: (-pressure[i], -lifetimes[i].nbytes, i))


def _greedy(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> Layout:
    """Each buffer, in this order, into the smallest gap between those that are alive with it."""
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), sorted by offset
    total = 0
    for index in order:
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
        insort(placed, (best_offset, best_offset + size, life.first, life.last))
        total = max(total, best_offset + size)
    return Layout(tuple(offsets), total)


def _by_time(lifetimes: Sequence[Lifetime]) -> Layout:
    """One pass over time with a list of free blocks: O(n log n), and more waste."""
    offsets = [0] * len(lifetimes)
    ends: list[tuple[int, int, int]] = []  # (last step, offset, size) of what is alive
    free: list[tuple[int, int]] = []  # (size, offset)
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].first, i)):
        life = lifetimes[index]
        size = _aligned(life.nbytes)
        if size == 0:
            continue
        while ends and ends[0][0] < life.first:
            _, offset, freed = heappop(ends)
            insort(free, (freed, offset))
        at = bisect_left(free, (size, 0))
        if at < len(free):
            block, offset = free.pop(at)
            if block > size:
                insort(free, (block - size, offset + size))
        else:
            offset, total = total, total + size
        offsets[index] = offset
        heappush(ends, (life.last, offset, size))
    return Layout(tuple(offsets), total)
