"""What runs while its row of the journal is being written.

A durable request is delivered in the poll that it came in, so that one write and sync may do for its row and
for the answer's. Nothing that came of it leaves before the row is on disk: the driver writes what a poll asks
for before it sends what the poll has made, rows of the outbox go behind those of the journal, and the
acknowledgement is owed only then. After a crash before the write nobody has heard of it, and its sender
repeats it. Answers, and what only tells, wait: what a round has come to is told to the host as the poll ends.

What has run cannot be given back where the disk refuses its row. It is asked for again, a snapshot is wanted,
which would hold it as well, and until one of them is there nothing more is taken durably and no row of the
outbox is written, so that what leaves follows from what is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime

AHEAD_BYTES: Final = 64 << 10
"""So much runs before it is written, of what came together. A node that is asked by many at once rather reads
on while a thread writes (state/journaling.py)."""
RETRY_NS: Final = 1_000_000_000
RETRY_LONGEST_NS: Final = 64_000_000_000


@dataclass(slots=True, eq=False)
class Ahead:
    """The rows of what has run and is on no disk yet, by their tokens, in their order.

    `want` asks for a snapshot.
    """

    _runtime: Runtime
    _want: Callable[[str], None]
    _rows: dict[int, steps.Journal] = field(default_factory=dict)
    bytes: int = 0
    """How many bytes of envelopes have run and are on no disk yet."""
    failing: bool = False
    """Whether the disk has refused some of them."""
    _due_ns: int = 0  # when they are asked for again; 0: they are not to be
    _wait_ns: int = RETRY_NS

    def __post_init__(self) -> None:
        self._runtime.callbacks.register("journal.retry", self._retry)

    def __contains__(self, token: int) -> bool:
        """Whether the row of that token is one of them."""
        return token in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: steps.Journal, size: int) -> None:
        """Asks for the row of an envelope of `size` bytes, which is about to run."""
        self._rows[row.token] = row
        self.bytes += size
        self._runtime.emit(row)

    def written(self, token: int, size: int) -> None:
        """A row is on disk, in the journal or in a snapshot."""
        del self._rows[token]
        self.bytes -= size
        if not self._rows:
            self.failing, self._due_ns, self._wait_ns = False, 0, RETRY_NS

    def failed(self) -> None:
        """A row could not be written: all are asked for again, after a second, doubling."""
        self.failing = True
        self._want("journal")
        if not self._due_ns:
            self._due_ns = self._runtime.now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, RETRY_LONGEST_NS)
            self._runtime.timers.at(self._due_ns, self._retry, reserved=True)

    def _retry(self, now_ns: int) -> None:
        """It may be the timer of rows that are written by now, or of an earlier run."""
        if 0 < self._due_ns <= now_ns:
            self._due_ns = 0
            for row in self._rows.values():
                self._runtime.emit(row)
