"""Which contributions decide a mean by themselves, and which were shortened so that they do not.

Of each contribution its weight is kept, and its pull: weight × length of the update (of the contribution,
where nothing tells what it started from), as it counts. One that is far from the usual in either is named:
who has all the weight decides, also once the mean has come to where it wants it and its update is short.
Nothing is refused by it: a round may have one peer with all the data. One that was shortened pulls no farther
than the bound, but it does so in every round, and by its weight; so those are named, too, unless most are
shortened, as where a bound is part of the method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bb_edge.roles.contracts import Clipped, Dominant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bb_edge.ir.ids import PeerId

__all__ = ["FACTOR", "MOST", "Pulls"]

FACTOR = 100.0
"""Times the median from which a contribution is named. Honest peers differ by their samples and how far they
have learned, by tens; a wrong unit, a diverged training and an attack are off by thousands."""

LEAST = 3
"""Contributions of which a median of pulls says something: of two, nobody knows which is the usual one."""

MOST = 4096
"""Contributions of one sum whose pulls are kept, 32 KiB and as many peers; later ones are not looked at."""


class Pulls:
    """The pulls of one sum."""

    __slots__ = ("_clipped", "_pulls", "_weights", "_whose")

    def __init__(self) -> None:
        self._clipped: list[tuple[float, float, PeerId | None]] = []  # times the bound, weight, whose
        self._pulls: list[float] = []
        self._weights: list[float] = []
        self._whose: list[PeerId | None] = []

    def add(self, weight: float, length: float, whose: PeerId | None) -> None:
        """Notes a contribution. A length that is not a number is left out."""
        if length == length and len(self._pulls) < MOST:
            self._pulls.append(weight * length)
            self._weights.append(weight)
            self._whose.append(whose)

    def clip(self, times: float, weight: float, whose: PeerId | None) -> None:
        """Notes a contribution that was shortened, which had `times` the length that it may have."""
        if len(self._clipped) < MOST:
            self._clipped.append((times, weight, whose))

    def clipped(self, count: int, total: float, where: str) -> Clipped | None:
        """Returns what was shortened of a sum of `count` contributions with the weight `total`."""
        found = self._clipped
        if not found:
            return None
        times = max(times for times, _, _ in found)
        if 2 * len(found) > count:
            return Clipped("", len(found), times)
        share = sum(weight for _, weight, _ in found) / total
        why = (
            f"{where}: {len(found)} of {count} contributions were shortened to clip_norm, the longest of them"
            f" {times:.3g} times as long, with {share:.0%} of the weight"
        )
        return Clipped(why, len(found), times, tuple(whose for _, _, whose in found if whose is not None))

    def save_clipped(self, peers: Sequence[PeerId]) -> list[list[float | int | None]]:
        """Returns a row per contribution that was shortened, with the place in `peers` of whose it is."""
        places: dict[PeerId | None, int] = {peer: place for place, peer in enumerate(peers)}
        return [[times, weight, places.get(whose)] for times, weight, whose in self._clipped]

    def restore_clipped(self, rows: Any, peers: Sequence[PeerId]) -> None:
        """Takes what `save_clipped` gave. TypeError, ValueError or IndexError for other rows."""
        for times, weight, place in rows[:MOST]:
            self._clipped.append((float(times), float(weight), None if place is None else peers[place]))

    def save(self, peers: Sequence[PeerId]) -> list[list[float | int | None]]:
        """Returns a row per pull: it, the place in `peers` of whose it is, and the weight."""
        places: dict[PeerId | None, int] = {peer: place for place, peer in enumerate(peers)}
        rows = zip(self._pulls, self._whose, self._weights, strict=True)
        return [[pull, places.get(whose), weight] for pull, whose, weight in rows]

    def restore(self, rows: Any, peers: Sequence[PeerId]) -> None:
        """Takes what `save` gave. TypeError, ValueError or IndexError for other rows."""
        for pull, place, *weight in rows[:MOST]:
            self._pulls.append(float(pull))
            self._whose.append(None if place is None else peers[place])
            self._weights.append(float(weight[0]) if weight else 0.0)  # older states have none

    def far(self, where: str, remedy: str) -> Dominant | None:
        """Returns what counts more than `FACTOR` times as much as is usual, by its pull, else by its weight
        alone; None where nothing does.
        """
        pulls, weights = self._pulls, self._weights
        if len(pulls) < 2:
            return None
        usual, unit, values = _median(pulls) if len(pulls) >= LEAST else 0.0, "weight × length", pulls
        if not usual or max(pulls) <= FACTOR * usual:  # of updates that are all zero, any is far
            # Of two weights the smaller one is usual: both are numbers of samples.
            usual = _median(weights) if len(weights) >= LEAST else min(weights)
            unit, values = "weight", weights
        largest = max(values)
        if not usual or largest <= FACTOR * usual:
            return None
        far = [whose for value, whose in zip(values, self._whose, strict=True) if value > FACTOR * usual]
        times = largest / usual if math.isfinite(largest / usual) else math.inf
        why = (
            f"{where}: {len(far)} of {len(values)} contributions count more than {FACTOR:.0f} times"
            f" as much as is usual, {unit} {largest:.3g} and not {usual:.3g}; {remedy}"
        )
        return Dominant(why, len(far), times, tuple(whose for whose in far if whose is not None))


def _median(values: Sequence[float]) -> float:
    """As `statistics.median`, which would take half a megabyte to import."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
