"""The journal's rows on their way to the disk: several share one write and one sync.

Rows of one poll are written together. Such as are patient wait for each other for some milliseconds. Large
ones are written by a `Writer` beside the poller's thread, which goes on reading meanwhile; what it takes in
joins the next write. The order of the rows stays, and the node is told of each when it is on the medium. Old
files are removed there, too, or, where they are small, in a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from bb_edge.engine import steps
from bb_edge.state.errors import StateError
from bb_edge.state.store import StateStore
from bb_edge.state.writer import Writer

AHEAD_BYTES: Final = 4 << 20
"""So much may wait while a write is under way; then the poller waits, too.

It is the size at which cards write fastest, and what waits is in memory, and once more in a snapshot."""

GATHERED_NS: Final = 5_000_000
"""So long rows wait for others that are to come: about as long as a card takes for a sync."""
GATHERED_BYTES: Final = 128 << 10
"""So much does not wait: a writer's thread has something to do."""

Answer = Callable[[Sequence[steps.Journal], StateError | None], None]
"""Tells the node that rows are on the medium, or why they are not."""


class Journaling:
    """Writes the journal of a store. All methods belong to the poller's thread.

    While `under_way` is true nothing else may use the store, except to ask for its accounts: `finish` comes
    before. Without a `writer` everything is written at once.
    """

    def __init__(self, store: StateStore, answer: Answer, writer: Writer | None) -> None:
        self._store = store
        self._answer = answer
        self._writer = writer
        self._rows: deque[steps.Journal] = deque()
        self._bytes = 0  # of these
        self._batch: list[steps.Journal] = []  # what the writer writes
        self._failed: Callable[[StateError], None] | None = None  # who hears of work that is not a write
        self._chore: Callable[[], None] | None = None  # small work that waits for a pause
        self.due_ns = 0
        """When rows that wait for others are written at the latest, by `finish`; 0: none does."""

    @property
    def under_way(self) -> bool:
        """Whether the writer writes; then no row waits without being looked at again."""
        return self._writer is not None and self._writer.busy

    @property
    def tidying(self) -> bool:
        """Whether other work than a write is to be done: the store's accounts may be of before or after."""
        return self._failed is not None or self._chore is not None

    @property
    def has_chore(self) -> bool:
        """Whether `tidy` has something to do."""
        return self._chore is not None

    def tidy(self) -> None:
        """Does the small work that waits. Nothing else is done on the store before it."""
        if self._chore is not None:
            chore, self._chore = self._chore, None
            chore()

    @property
    def ahead_bytes(self) -> int:
        """How many bytes may wait beside a write. With those the journal stays below what it refuses at."""
        return min(AHEAD_BYTES, self._store.limits.journal_bytes // 4)

    def take(self, rows: Sequence[steps.Journal], now_ns: int, at_once: bool) -> None:
        """Takes rows; has them written, or writes them now, which is certain with `at_once`.

        It waits for more where all of them are patient.
        """
        self.tidy()
        self._rows.extend(rows)
        self._bytes += sum(map(_size, rows))
        if at_once:
            self.finish()
        elif not self.under_way:
            due_ns = self.due_ns or now_ns + GATHERED_NS
            if now_ns < due_ns and self._bytes < GATHERED_BYTES and all(row.patient for row in rows):
                self.due_ns = due_ns
            else:
                self._begin()
        elif self._bytes >= self.ahead_bytes:
            self._end_write()
            self._begin()

    def write(
        self, rows: Sequence[steps.Journal], outbox: Sequence[tuple[bytes, bytes]]
    ) -> StateError | None:
        """Writes rows now, behind all that were taken, with some of the outbox; answers none of them."""
        self.finish()
        try:
            self._store.append_journal([row.pieces for row in rows], outbox)
        except StateError as error:
            return error
        return None

    def settle(self, wait: bool) -> None:
        """Answers what the writer has written, and begins the next write.

        With `wait` it waits for the write that is under way, and for no other: what it answers makes room
        for whatever waits for some, and the next rows share one write and sync meanwhile.
        """
        assert self._writer is not None
        if wait or self._writer.done:
            self._end_write()
            self._begin()

    def _begin(self) -> None:
        self.due_ns = 0
        if not self._rows:
            return
        writer = self._writer
        small = writer is None or self._bytes < writer.least_bytes
        if writer is None or small or max(map(_size, self._rows)) > self.ahead_bytes:
            self._write_all()
        else:
            batch = self._batch = self._next_batch()
            writer.begin(lambda: self._write(batch))

    def finish(self) -> bool:
        """Writes what waits, and waits for what is under way; returns whether the node was told of rows."""
        self.tidy()
        rows = bool(self._batch or self._rows)
        if self.under_way:
            self._end_write()
        self._write_all()
        return rows

    def beside(self, work: Callable[[], None], size: int, failed: Callable[[StateError], None]) -> None:
        """Has other work done on the store, on some `size` bytes of it; `failed` hears of a StateError.

        Large work is done like a large write, of which none may be under way; small work when `tidy` is
        called, or before the store is used for something else. Without a writer it is done now.
        """
        writer = self._writer
        if writer is not None and size >= writer.least_bytes:
            self._failed = failed
            writer.begin(work)
            return

        def chore() -> None:
            try:
                work()
            except StateError as error:
                failed(error)

        self._chore = chore
        if writer is None:
            self.tidy()

    def close(self) -> None:
        """Waits for what is under way; no row is taken after that."""
        self.tidy()
        if self._failed is not None:
            self._end_write()
        if self._writer is not None:
            self._writer.close()

    def _end_write(self) -> None:
        assert self._writer is not None
        error = self._writer.finish()
        failed, self._failed = self._failed, None
        if failed is None:
            batch, self._batch = self._batch, []
            self._answer(batch, error)
        elif error is not None:
            failed(error)

    def _write_all(self) -> None:
        self.due_ns = 0
        while self._rows:
            batch = self._next_batch()
            try:
                self._write(batch)
            except StateError as error:
                self._answer(batch, error)
            else:
                self._answer(batch, None)

    def _write(self, batch: Sequence[steps.Journal]) -> None:
        self._store.append_journal([row.pieces for row in batch])

    def _next_batch(self) -> list[steps.Journal]:
        """The first rows that the journal has room for, or the first one alone, to be refused by itself."""
        limit = 2 * self._store.limits.journal_bytes - self._store.journal_bytes
        batch: list[steps.Journal] = []
        while self._rows:
            size = _size(self._rows[0])
            if batch and size > limit:
                break
            limit -= size
            self._bytes -= size
            batch.append(self._rows.popleft())
        return batch


def _size(row: steps.Journal) -> int:
    """The bytes of a row on disk, and a few."""
    return sum(map(len, row.pieces)) + 16
