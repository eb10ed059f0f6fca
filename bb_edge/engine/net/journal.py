"""Durable envelopes on their way in: written down before they count (docs/design/durability.md).

    NEW ──marked, no ack──► HELD ──persisted──► ACCEPTED (ack owed) ──next poll──► delivered
                              └──not persisted──► withdrawn: never received, its sender repeats it

A node that comes back is given the journal; what its snapshot does not know yet is delivered as on the first
day, in the same order, and before anything new is let in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bb_edge.engine import steps
from bb_edge.engine.net.ingress import Raw
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.wire import cbor
from bb_edge.wire.envelope import Envelope

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.wire.delivery import Links

RECORD_VERSION = 1


class JournalRecordError(BBError):
    """Bytes that are no journal record: damaged, or written by a newer version."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One envelope as it came. `wall_ns` is when, because monotonic time does not outlive a restart."""

    peer: PeerId
    data: bytes
    wall_ns: int
    observed: bytes | None = None

    def to_bytes(self) -> bytes:
        """Canonical CBOR; `from_bytes` gives the record back."""
        return cbor.dumps([RECORD_VERSION, self.peer.to_bytes(), self.data, self.wall_ns, self.observed])

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> JournalRecord:
        """Reads what `to_bytes` wrote. JournalRecordError for anything else."""
        try:
            row = cbor.loads(data, max_items=8, max_depth=1)
            if not isinstance(row, list) or len(row) != 5 or row[0] != RECORD_VERSION:
                raise JournalRecordError("no record of this version", "journal", "drop the file")
            version, peer, envelope, wall_ns, observed = row
            typed = type(peer) is bytes and type(envelope) is bytes and type(version) is type(wall_ns) is int
            if not typed or not (observed is None or type(observed) is bytes):
                raise JournalRecordError("fields of other types", "journal", "drop the file")
            return cls(PeerId.from_bytes(peer), envelope, wall_ns, observed)
        except (cbor.CborError, PeerIdError) as error:
            raise JournalRecordError(f"damaged: {error}", "journal", "drop the file") from error


@dataclass(frozen=True, slots=True)
class Taken:
    """An envelope that has its place; `deadline_ns` is absolute, 0: none."""

    raw: Raw
    message: Envelope
    deadline_ns: int


class Journaling:
    """What waits to be written, and what is written and waits for the next poll; bounded by the ingress."""

    def __init__(self, engine: Scheduler, links: Links) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._links = links
        self.held: dict[int, Taken] = {}
        self.accepted: deque[Taken] = deque()
        self.replaying: deque[JournalRecord] = deque()
        self._next_token = -1  # below 0: the outbox has the numbers above

    @property
    def busy(self) -> bool:
        """Whether the next poll has something to deliver."""
        return bool(self.accepted or self.replaying)

    def hold(self, taken: Taken, now_ns: int) -> None:
        """Takes the envelope's number, and asks the driver to write it down."""
        raw = taken.raw
        self._links.mark(raw.peer, taken.message, now_ns, hold_ack=True)
        token = self._next_token
        self._next_token -= 1
        self.held[token] = taken
        self._runtime.count("ingress.journaled")
        record = JournalRecord(
            raw.peer, bytes(raw.data), now_ns + self._runtime.clock_offset_ns, raw.observed
        )
        self._runtime.emit(steps.Journal(token, raw.peer, record.to_bytes()))

    def persisted(self, token: int, now_ns: int) -> bool:
        """It is on disk: it is owed its acknowledgement, and delivered. False where the token is not ours."""
        taken = self.held.pop(token, None)
        if taken is None:
            return False
        message = taken.message
        self._links.journaled(taken.raw.peer, message.epoch, message.seq, now_ns)
        self.accepted.append(taken)
        return True

    def persist_failed(self, token: int, error: BaseException) -> Taken | None:
        """It could not be written, and counts as never received; None where the token is not ours."""
        taken = self.held.pop(token, None)
        if taken is None:
            return None
        self._links.not_journaled(taken.raw.peer, taken.message.epoch, taken.message.seq)
        self._runtime.count("storage.failed")
        self._runtime.emit(steps.StorageFailed("journal", error))
        return taken

    def replay(self, records: Iterable[bytes]) -> None:
        """Queues the records of a journal, in their order. JournalRecordError, queueing none."""
        self.replaying.extend([JournalRecord.from_bytes(data) for data in records])
