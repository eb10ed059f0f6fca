"""Whether the disk refuses what is written: from the first refusal until all that it refused is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CALM_NS: Final = 5_000_000_000
"""Nanoseconds without a refusal after which it is over: on a disk that is nearly full, small records still
find room between large ones that do not."""
GIVEN_UP_NS: Final = 70_000_000_000
"""Nanoseconds after which it is over though some of it was never written: nobody asks for what has expired,
and what somebody asks for is tried again after 64 s at the latest."""


class Refusals:
    """What the disk has refused and not taken since."""

    # Known from the first refusal on.
    _wrote: bool  # whether anything was written since the last one
    _first_ns: int
    _last_ns: int

    def __init__(self) -> None:
        self._tokens: set[int] = set()  # of records; bounded by those that the node has under way
        self._snapshot = False
        self._count = 0

    def refused(self, tokens: Iterable[int], now_ns: int) -> None:
        """The disk has refused records that are asked for again."""
        self._refused(now_ns)
        self._tokens.update(tokens)

    def snapshot_refused(self, now_ns: int) -> None:
        """The disk has refused a snapshot."""
        self._refused(now_ns)
        self._snapshot = True

    def _refused(self, now_ns: int) -> None:
        if not self._count:
            self._first_ns = now_ns
        self._count += 1
        self._last_ns, self._wrote = now_ns, False

    def written(self, tokens: Iterable[int]) -> None:
        """Records are on disk."""
        if self._count:
            self._wrote = True
            self._tokens.difference_update(tokens)

    def snapshot_written(self) -> None:
        """A snapshot is on disk."""
        self._wrote, self._snapshot = True, False

    def end(self, now_ns: int) -> tuple[int, int] | None:
        """How many refusals there were, and over how many nanoseconds, once they are over; else None."""
        if not self._count or not self._wrote or self._snapshot:
            return None
        if now_ns - self._last_ns < (GIVEN_UP_NS if self._tokens else CALM_NS):
            return None
        ended = self._count, self._last_ns - self._first_ns
        self._count = 0
        self._tokens.clear()
        return ended
