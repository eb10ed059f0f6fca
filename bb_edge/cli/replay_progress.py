"""Tells how far a node is that runs its journal again after a restart: what comes in waits meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.cli.render import Log

EVERY_NS = 10_000_000_000
"""Nanoseconds between two lines: often enough that somebody who looks sees it move."""
MESSAGE = "replaying the journal"


class ReplayProgress:
    """The journal of one start; says nothing of one that the first poll takes as a whole."""

    def __init__(self, waiting: Callable[[], int], log: Log) -> None:
        """`waiting()` is how many records are left; asked before the first poll, it is how many there are."""
        self._waiting = waiting
        self._log = log
        self._records = waiting()
        self._began_ns = self._next_ns = 0
        self._done = not self._records

    def beat(self, now_ns: int) -> None:
        """Writes a line where one is due; once per turn of the driver's loop, behind the poll."""
        if self._done:
            return
        left = self._waiting()
        if not left:
            self._end(now_ns)
        elif now_ns >= self._next_ns:
            self._began_ns = self._began_ns or now_ns
            self._next_ns = now_ns + EVERY_NS
            self._log("info", MESSAGE, done=self._records - left, records=self._records)

    def _end(self, now_ns: int) -> None:
        self._done = True
        if self._began_ns:
            seconds = round((now_ns - self._began_ns) / 1e9, 1)
            self._log("info", "the journal is replayed", records=self._records, seconds=seconds)
