"""What the outbox on disk holds, and its bytes (semantics §6 "Durable").

A durable envelope is written down before it is published. Its record stays, acknowledged or not, until the
next snapshot: should the node crash, the journal is replayed from the snapshot on, the same causes run again,
and each finds the number that its envelope went out under, instead of sending it twice under two numbers.

    ──add()──► WAITING ──settle()──► SETTLED ──snapshot_taken()──► gone
                  └──snapshot_taken()──► WAITING, without its cause (the snapshot holds the effect of that
                  cause)

A record that a restart found on disk is ahead of the node, which has gone back to its snapshot. It stays,
with its cause and whatever snapshots are taken meanwhile, until the cause has run again or cannot any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.wire import cbor
from bb_edge.wire.resend import EnvelopeKey

RECORD_VERSION = 1


class OutboxError(BBError):
    """Base of what can be wrong with an outbox."""


class OutboxFullError(OutboxError):
    """The records or their bytes are used up; acknowledgements and a snapshot make room."""


class OutboxRecordError(OutboxError):
    """Bytes on disk that are no record: damaged, or written by a newer version."""


class Cause(NamedTuple):
    """The inbound durable envelope whose execution sent something."""

    peer: PeerId
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """One durable envelope as it is written down.

    `expires_wall_ns` is wall time, because monotonic time does not outlive a restart; 0 is never. `cause` is
    None for what a timer, an invoke or the like set off.
    """

    key: EnvelopeKey
    encoded: bytes
    wire_id: int = 0
    cause: Cause | None = None
    expires_wall_ns: int = 0

    def to_bytes(self) -> bytes:
        """Canonical CBOR; `from_bytes` gives the record back."""
        cause = self.cause
        return cbor.dumps(
            [
                RECORD_VERSION,
                self.key.peer.to_bytes(),
                self.key.epoch,
                self.key.seq,
                self.encoded,
                self.wire_id,
                [cause.peer.to_bytes(), cause.epoch, cause.seq] if cause is not None else None,
                self.expires_wall_ns,
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> OutboxRecord:
        """Reads what `to_bytes` wrote. OutboxRecordError for anything else."""
        try:
            row = cbor.loads(data, max_items=16, max_depth=2)
            if not isinstance(row, list) or len(row) != 8 or row[0] != RECORD_VERSION:
                raise OutboxRecordError("no record of this version", "outbox", "drop the file")
            version, peer, epoch, seq, encoded, wire_id, cause, expires = row
            numbers = (version, epoch, seq, wire_id, expires)
            if not _typed((peer, encoded), bytes) or not _typed(numbers, int):
                raise OutboxRecordError("fields of other types", "outbox", "drop the file")
            found = None
            if cause is not None:
                if not isinstance(cause, list) or len(cause) != 3 or not _typed(cause[1:], int):
                    raise OutboxRecordError("a cause that is none", "outbox", "drop the file")
                found = Cause(PeerId.from_bytes(cause[0]), cause[1], cause[2])
            return cls(EnvelopeKey(PeerId.from_bytes(peer), epoch, seq), encoded, wire_id, found, expires)
        except (cbor.CborError, PeerIdError, TypeError) as error:
            raise OutboxRecordError(f"damaged: {error}", "outbox", "drop the file") from error


def _typed(values: Iterable[object], kind: type) -> bool:
    return all(type(value) is kind for value in values)


class Outbox:
    """The records of one node, as they are on disk; bounded in number and in bytes."""

    __slots__ = (
        "_ahead",
        "_by_cause",
        "_bytes",
        "_max_bytes",
        "_max_records",
        "_records",
        "_settled",
        "_settled_bytes",
    )

    def __init__(self, max_records: int = 4096, max_bytes: int = 64 << 20) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: dict[EnvelopeKey, OutboxRecord] = {}
        self._by_cause: dict[tuple[PeerId, Cause, int], EnvelopeKey] = {}
        self._settled: dict[EnvelopeKey, None] = {}  # gone with the next snapshot
        self._ahead: dict[EnvelopeKey, bool] = {}  # until the cause comes by; whether it is settled
        self._bytes = 0
        self._settled_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    @property
    def bytes_in_use(self) -> int:
        return self._bytes

    @property
    def wants_snapshot(self) -> bool:
        """Three quarters full, and a snapshot would drop enough of it (an eighth) to be worth its writing."""
        records, size = self._max_records, self._max_bytes
        full = 4 * len(self._records) >= 3 * records or 4 * self._bytes >= 3 * size
        return full and (8 * len(self._settled) >= records or 8 * self._settled_bytes >= size)

    @property
    def any_settled(self) -> bool:
        """Whether a snapshot would make any room."""
        return bool(self._settled)

    def find(self, peer: PeerId, cause: Cause, wire_id: int) -> OutboxRecord | None:
        """What this cause sent to the peer over this wire before; it keeps its number."""
        key = self._by_cause.get((peer, cause, wire_id))
        if key is None:
            return None
        self._caught_up(key)
        return self._records[key]

    def _caught_up(self, key: EnvelopeKey) -> None:
        if self._ahead.pop(key, False):
            self.settle(key)

    def settled(self, key: EnvelopeKey) -> bool:
        """Whether the record is acknowledged or expired: nothing need be published again."""
        return key in self._settled or self._ahead.get(key, False)

    def add(self, record: OutboxRecord, ahead: bool = False) -> None:
        """Takes a record over; once more for the same key is fine. OutboxFullError, changing nothing.

        `ahead`: it comes from disk, and what sent it is perhaps still to run.
        """
        if record.key in self._records:
            return
        size = len(record.encoded)
        if len(self._records) >= self._max_records or self._bytes + size > self._max_bytes:
            raise OutboxFullError(
                f"{len(self._records)} records with {self._bytes} bytes, {size} bytes requested",
                "outbox",
                f"at most {self._max_records} records and {self._max_bytes} bytes; take a snapshot",
            )
        self._records[record.key] = record
        self._bytes += size
        if record.cause is not None:
            self._by_cause[record.key.peer, record.cause, record.wire_id] = record.key
            if ahead:
                self._ahead[record.key] = False

    def remove(self, key: EnvelopeKey) -> bool:
        """Takes back what could not be written. False where there is no such record."""
        record = self._records.pop(key, None)
        if record is None:
            return False
        self._bytes -= len(record.encoded)
        self._ahead.pop(key, None)
        if key in self._settled:
            del self._settled[key]
            self._settled_bytes -= len(record.encoded)
        if record.cause is not None:
            self._by_cause.pop((key.peer, record.cause, record.wire_id), None)
        return True

    def settle(self, key: EnvelopeKey) -> bool:
        """The envelope is acknowledged or expired; its record stays. False where there is no such record."""
        record = self._records.get(key)
        if record is None:
            return False
        if key in self._ahead:
            self._ahead[key] = True
        elif key not in self._settled:
            self._settled[key] = None
            self._settled_bytes += len(record.encoded)
        return True

    def snapshot_taken(self, may_run: Callable[[Cause], bool]) -> list[EnvelopeKey]:
        """A snapshot is on disk: settled records go, and are named, so that their files can be deleted.

        The others keep their numbers, but what sent them is in the snapshot and does not run again. Of what
        is ahead `may_run` tells which causes are still to come: those records stay, settled or not.
        """
        for key in tuple(self._ahead):
            cause = self._records[key].cause
            if cause is None or not may_run(cause):
                self._caught_up(key)
        gone = list(self._settled)
        for key in gone:
            self.remove(key)
        self._by_cause = {what: key for what, key in self._by_cause.items() if key in self._ahead}
        return gone

    def __iter__(self) -> Iterator[EnvelopeKey]:
        """All records, settled or not, in the order in which they were added."""
        return iter(self._records)

    def waiting(self) -> list[OutboxRecord]:
        """Records that are not settled, in the order in which they were added."""
        return [record for key, record in self._records.items() if not self.settled(key)]
