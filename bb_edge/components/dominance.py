"""Which contributions decide a mean by themselves, and which were shortened so that they do not.

Of each contribution one number is kept, its pull: weight × length of the update (of the contribution, where
nothing tells what it started from), as it counts. Nothing is refused by it: a round may have one peer with
all the data. One that was shortened pulls no farther than the bound, but it does so in every round, and by
its weight; so those are named, too, unless most are shortened, as where a bound is part of the method.
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
"""Contributions of which a median says something: of two, nobody knows which is the usual one."""

MOST = 4096
"""Contributions of one sum whose pulls are kept, 32 KiB and as many peers; later ones are not looked at."""


class Pulls:
    """The pulls of one sum."""

    __slots__ = ("_clipped", "_pulls", "_whose")

    def __init__(self) -> None:
        self._clipped: list[tuple[float, float, PeerId | None]] = []  # times the bound, weight, whose
        self._pulls: list[float] = []
        self._whose: list[PeerId | None] = []

    def add(self, weight: float, length: float, whose: PeerId | None) -> None:
        """Notes a contribution. A length that is no number is left out."""
        if length == length and len(self._pulls) < MOST:
            self._pulls.append(weight * length)
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
        """Returns a row per pull: it, and the place in `peers` of whose it is."""
        places: dict[PeerId | None, int] = {peer: place for place, peer in enumerate(peers)}
        return [[pull, places.get(whose)] for pull, whose in zip(self._pulls, self._whose, strict=True)]

    def restore(self, rows: Any, peers: Sequence[PeerId]) -> None:
        """Takes what `save` gave. TypeError, ValueError or IndexError for other rows."""
        for pull, place in rows[:MOST]:
            self._pulls.append(float(pull))
            self._whose.append(None if place is None else peers[place])

    def far(self, where: str) -> Dominant | None:
        """Returns what weighs more than `FACTOR` times the median; None where nothing does."""
        pulls = self._pulls
        if len(pulls) < LEAST:
            return None
        usual = _median(pulls)
        largest = max(pulls)
        if not usual or largest <= FACTOR * usual:
            return None  # of updates that are all zero, any is far
        far = [whose for pull, whose in zip(pulls, self._whose, strict=True) if pull > FACTOR * usual]
        times = largest / usual if math.isfinite(largest / usual) else math.inf
        why = (
            f"{where}: {len(far)} of {len(pulls)} contributions count more than {FACTOR:.0f} times"
            f" as much as is usual, weight × length {largest:.3g} and not {usual:.3g};"
            " set clip_norm and max_weight"
        )
        return Dominant(why, len(far), times, tuple(whose for whose in far if whose is not None))


def _median(values: Sequence[float]) -> float:
    """As `statistics.median`, which would take half a megabyte to import."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
