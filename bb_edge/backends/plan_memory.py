"""Lays buffers out in one arena, given the steps at which each is alive.

The problem is NP-hard, so this is a heuristic; it stops when a layout meets the lower bound, the largest sum
of bytes that are alive at one step. A greedy pass puts each buffer into the smallest gap between buffers that
are alive at the same time. It is repeated with the buffers first that were hard to place, from several
orders. The compiler, which has time, then changes the best order in small steps.

A layout that comes from elsewhere is checked by `first_overlap` before it is used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

__all__ = ["ALIGNMENT", "THOROUGH", "Layout", "Lifetime", "first_overlap", "live_bytes", "plan_memory"]

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

_ATTEMPTS = 16
"""Layouts that are tried; the vision models that ship with ONNX meet the lower bound within six."""

THOROUGH = 400
"""Layouts that are tried at compile time, where 25 times as long does not matter."""

_PAIRS = 125_000
"""Pairs of buffers that may be compared per attempt: 16 attempts take about 0.2 s.

The largest of these models has 418 buffers.
"""

_MANY = 1_400
"""Buffers above which there is only one pass over time; the square of it is 16 times `_PAIRS`."""


class Lifetime(NamedTuple):
    """A buffer of `nbytes` that is alive from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


class Layout(NamedTuple):
    """The offset of every buffer and the size of the arena, in bytes."""

    offsets: tuple[int, ...]
    total: int


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of aligned bytes that are alive at one step; no layout can be smaller."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + _aligned(life.nbytes)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - _aligned(life.nbytes)
    largest = now = 0
    for step in sorted(changes):
        now += changes[step]
        largest = max(largest, now)
    return largest


def plan_memory(lifetimes: Sequence[Lifetime], attempts: int = _ATTEMPTS) -> Layout:
    """Lays the buffers out so that no two that are alive at the same step overlap.

    An attempt is O(n²) in the number of buffers; more than `_MANY` are laid out in one pass over time. The
    result depends on the arguments only.
    """
    if len(lifetimes) > _MANY:
        return _by_time(lifetimes)
    bound = live_bytes(lifetimes)
    attempts = max(1, min(attempts, attempts * _PAIRS // max(1, len(lifetimes)) ** 2))
    order = _by_pressure(lifetimes)
    best_order, best = _hard_ones_first(lifetimes, order, bound, min(attempts, _ATTEMPTS))
    attempts -= _ATTEMPTS
    for key in (_size, _area, _duration):
        if best.total <= bound or attempts <= 0:
            return best
        order = _largest_first([key(life) for life in lifetimes])
        new_order, layout = _hard_ones_first(lifetimes, order, bound, min(attempts, _ATTEMPTS))
        attempts -= _ATTEMPTS
        if layout.total < best.total:
            best_order, best = new_order, layout
    return _climb(lifetimes, best_order, best, bound, attempts)


def _largest_first(keys: Sequence[int]) -> list[int]:
    return sorted(range(len(keys)), key=lambda i: (-keys[i], i))


def _size(life: Lifetime) -> int:
    return life.nbytes


def _duration(life: Lifetime) -> int:
    return life.last - life.first


def _area(life: Lifetime) -> int:
    return life.nbytes * (life.last - life.first + 1)


def _hard_ones_first(
    lifetimes: Sequence[Lifetime], order: list[int], bound: int, attempts: int
) -> tuple[list[int], Layout]:
    """The best layout that follows from this order, and the order that gave it."""
    layout = _greedy(lifetimes, order)
    best_order, best = order, layout
    for _ in range(attempts - 1):
        if best.total <= bound:
            break
        # The buffers at the top of the arena were hard to place, so they go first the next time.
        top = {i for i in order if layout.offsets[i] + _aligned(lifetimes[i].nbytes) == layout.total}
        order = [i for i in order if i in top] + [i for i in order if i not in top]
        layout = _greedy(lifetimes, order)
        if layout.total < best.total:
            best_order, best = order, layout
    return best_order, best


def _climb(
    lifetimes: Sequence[Lifetime], order: list[int], best: Layout, bound: int, attempts: int
) -> Layout:
    """Changes the order in small random steps, and keeps those that do not make it worse."""
    import random  # few plans need it, and its import is slow

    rng = random.Random(len(lifetimes))
    for _ in range(attempts):
        if best.total <= bound:
            break
        changed = list(order)
        top = [i for i in order if best.offsets[i] + _aligned(lifetimes[i].nbytes) == best.total]
        moved = changed.pop(
            changed.index(rng.choice(top)) if rng.random() < 0.5 else rng.randrange(len(order))
        )
        changed.insert(rng.randrange(len(order)), moved)
        layout = _greedy(lifetimes, changed)
        if layout.total <= best.total:
            order, best = changed, layout
    return best


def first_overlap(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two buffers that are alive at the same step and share bytes; None if there are none. O(n log n)."""
    starts = sorted(
        (i for i, life in enumerate(lifetimes) if life.nbytes), key=lambda i: (lifetimes[i].first, i)
    )
    ends: list[tuple[int, int]] = []  # (last step, buffer) of buffers that are alive
    alive: list[tuple[int, int, int]] = []  # (offset, end, buffer), sorted; disjoint so far
    for i in starts:
        life = lifetimes[i]
        while ends and ends[0][0] < life.first:
            _, gone = heappop(ends)
            offset = offsets[gone]
            del alive[bisect_left(alive, (offset, offset + lifetimes[gone].nbytes, gone))]
        entry = (offsets[i], offsets[i] + life.nbytes, i)
        at = bisect_left(alive, entry)
        if at and alive[at - 1][1] > entry[0]:
            return alive[at - 1][2], i
        if at < len(alive) and alive[at][0] < entry[1]:
            return alive[at][2], i
        alive.insert(at, entry)
        heappush(ends, (life.last, i))
    return None


def _by_pressure(lifetimes: Sequence[Lifetime]) -> list[int]:
    """An order with the buffers of the fullest steps first, the largest of them first."""
    at: dict[int, int] = {}
    for life in lifetimes:
        for step in range(life.first, life.last + 1):
            at[step] = at.get(step, 0) + _aligned(life.nbytes)
    pressure = [max(at[step] for step in range(life.first, life.last + 1)) for life in lifetimes]
    return sorted(range(len(lifetimes)), key=lambda i: (-pressure[i], -lifetimes[i].nbytes, i))


def _greedy(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> Layout:
    """Puts each buffer, in this order, into the smallest gap between those that are alive with it."""
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
    """Lays the buffers out in one pass over time with a list of free blocks: O(n log n), with more waste."""
    offsets = [0] * len(lifetimes)
    ends: list[tuple[int, int, int]] = []  # (last step, offset, size) of buffers that are alive
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
