"""The rows of the outbox that the driver was asked to write, until it has."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final

from bb_edge.engine import steps
from bb_edge.engine.net.ahead import Ahead
from bb_edge.engine.runtime import Runtime
from bb_edge.wire.durable_flows import Write
from bb_edge.wire.durable_rows import OutboxName, RowName

RETRY_NS: Final = 1_000_000_000
RETRY_LONGEST_NS: Final = 64_000_000_000


@dataclass(slots=True)
class Writing:
    """It is asked for again where it could not be written: after a second, doubling."""

    row: Write
    retry_ns: int = RETRY_NS
    due_ns: int = 0  # when it is tried again; 0: the disk has been asked

    def put_off(self, now_ns: int) -> int:
        """The disk has refused it: when it is tried again."""
        self.due_ns = now_ns + self.retry_ns
        self.retry_ns = min(2 * self.retry_ns, RETRY_LONGEST_NS)
        return self.due_ns

    def due(self, now_ns: int) -> bool:
        """A timer is over: whether the disk is to be asked again. It may be that of an earlier run, whose
        tokens were the same, and of another row.
        """
        if not 0 < self.due_ns <= now_ns:
            return False
        self.due_ns = 0
        return True


class RowWriter:
    """Asks for rows until the disk has taken them.

    `over(row)` tells, before a row is asked for again, that nobody needs it any more: then `end(token)` is
    called as if it had been written. `held(name)` tells that what the row says waits for a snapshot
    that is wanted anyway, `alone(name)` that it says all of its record. While rows of the journal that have
    run (`ahead`) are missing on the disk, no row is asked for but with a snapshot, which would hold those:
    `want` asks for one.
    """

    __slots__ = ("_alone", "_end", "_held", "_over", "_rows", "_runtime", "ahead")

    def __init__(
        self,
        runtime: Runtime,
        over: Callable[[Write], bool],
        end: Callable[[int], None],
        held: Callable[[OutboxName], bool],
        alone: Callable[[OutboxName], bool],
        want: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self.ahead = Ahead(runtime, want)
        self._alone = alone
        self._over = over
        self._end = end
        self._held = held
        self._rows: dict[int, Writing] = {}  # by token
        runtime.callbacks.register("outbox.retry", self._retry)

    def __iter__(self) -> Iterator[Write]:
        return (writing.row for writing in self._rows.values())

    def write(self, row: Write) -> None:
        """Has a row written."""
        writing = self._rows[row.token] = Writing(row)
        self._ask(writing)

    def written(self, token: int) -> bool:
        """A row is on disk. False where it is another's token."""
        return self._rows.pop(token, None) is not None

    def failed(self, token: int, error: BaseException) -> None:
        """A row could not be written: it is asked for again later."""
        writing = self._rows.get(token)
        if writing is None:
            return
        self._runtime.count("storage.failed")
        self._runtime.emit(steps.StorageFailed("outbox", error))
        self._put_off(token, writing)

    def _put_off(self, token: int, writing: Writing) -> None:
        self._runtime.timers.at(writing.put_off(self._runtime.now_ns), self._retry, token, reserved=True)

    def leave(self, names: Container[OutboxName]) -> None:
        """The rows of these names are not asked for any more."""
        for token in [token for token, writing in self._rows.items() if writing.row.name in names]:
            del self._rows[token]

    def _ask(self, writing: Writing) -> None:
        row = writing.row
        name, record = row.name, row.record
        held = record is not None and self._held(name)
        if self.ahead.failing and not held:
            self._put_off(row.token, writing)
            return
        self._runtime.count("outbound.persisting")
        if record is None:
            assert isinstance(name, RowName)
            step = steps.PersistOutbox(row.token, name.peer, row.row, name=name)
        else:
            peer, body = record.key.peer, record.body
            shared = self._alone(name)
            step = steps.PersistOutbox(row.token, peer, row.row, body, record.body_name, name, held, shared)
        self._runtime.emit(step)

    def _retry(self, now_ns: int, token: int) -> None:
        writing = self._rows.get(token)
        if writing is None or not writing.due(now_ns):
            return
        if self._over(writing.row):
            self._end(token)
        else:
            self._ask(writing)
