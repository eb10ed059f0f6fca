"""What the outbox on disk holds, and the bytes of its records (docs/design/durability.md).

A durable envelope is written down before it is published. Its record stays, acknowledged or not, until the
next snapshot: after a crash, the journal is replayed from the snapshot on, the same causes run again, and
each finds the number that its envelope went out under, instead of sending it twice under two numbers.

A record that a restart found on disk is ahead of the node, which has gone back to its snapshot. It stays,
with its cause and whatever snapshots are taken meanwhile, until the cause has run again or cannot any more.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.ir.transitions import Table
from bb_edge.wire import cbor
from bb_edge.wire.bodies import NO_BODY, BodyName, HeldBodies
from bb_edge.wire.resend import EnvelopeKey

RECORD_VERSION = 1
NAMING_VERSION = 2
"""Of records that name a body, and of bodies: a node reads both versions."""


class RecordState(enum.IntEnum):
    """What a record waits for."""

    WAITING = 0
    """For its envelope to be acknowledged or to expire."""
    SETTLED = 1
    """For the next snapshot, which holds the effect of its cause."""
    AHEAD = 2
    """As WAITING; besides, its cause may run again and look for it."""
    AHEAD_SETTLED = 3
    """For its cause to run again."""
    GONE = 4


class RecordEvent(enum.IntEnum):
    """What happens to a record."""

    SETTLE = 0
    """Its envelope is acknowledged or expired."""
    SNAPSHOT = 1
    """A snapshot is on disk."""
    CAUGHT_UP = 2
    """Its cause has run again, or cannot any more."""
    FOUND = 3
    """A restart found it on disk, and its cause may still run."""


_WAITING, _SETTLED, _AHEAD = RecordState.WAITING, RecordState.SETTLED, RecordState.AHEAD
_AHEAD_SETTLED = RecordState.AHEAD_SETTLED

RECORD: Final = Table(
    "outbox record",
    _WAITING,
    {
        (_WAITING, RecordEvent.SETTLE): _SETTLED,
        (_WAITING, RecordEvent.SNAPSHOT): _WAITING,
        (_WAITING, RecordEvent.CAUGHT_UP): _WAITING,
        (_WAITING, RecordEvent.FOUND): _AHEAD,
        (_SETTLED, RecordEvent.SETTLE): _SETTLED,
        (_SETTLED, RecordEvent.SNAPSHOT): RecordState.GONE,
        (_SETTLED, RecordEvent.CAUGHT_UP): _SETTLED,
        (_AHEAD, RecordEvent.SETTLE): _AHEAD_SETTLED,
        (_AHEAD, RecordEvent.SNAPSHOT): _AHEAD,
        (_AHEAD, RecordEvent.CAUGHT_UP): _WAITING,
        (_AHEAD_SETTLED, RecordEvent.SETTLE): _AHEAD_SETTLED,
        (_AHEAD_SETTLED, RecordEvent.SNAPSHOT): _AHEAD_SETTLED,
        (_AHEAD_SETTLED, RecordEvent.CAUGHT_UP): _SETTLED,
    },
)


class OutboxError(BBError):
    """Base of what can be wrong with an outbox."""


class OutboxFullError(OutboxError):
    """The places of records, or their bytes, are used up; acknowledgements and a snapshot free them."""


class OutboxRecordError(OutboxError):
    """Bytes on disk that are not a record: damaged, or written by a newer version."""


class Cause(NamedTuple):
    """The inbound durable envelope whose execution sent an envelope."""

    peer: PeerId
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """A durable envelope as it is written down.

    Its bytes are `body`, which it may share with others, and then `encoded`. `expires_wall_ns` is wall time,
    because monotonic time does not outlive a restart; 0 is never. `cause` is None for an envelope that a
    timer, the host or the like set off.
    """

    key: EnvelopeKey
    encoded: bytes
    wire_id: int = 0
    cause: Cause | None = None
    expires_wall_ns: int = 0
    body: bytes = b""
    body_name: BodyName = NO_BODY

    def to_bytes(self) -> bytes:
        """Returns the record as canonical CBOR, which `from_bytes` reads; of a body it has the name alone."""
        cause = self.cause
        row = [
            NAMING_VERSION if self.body_name else RECORD_VERSION,
            self.key.peer.to_bytes(),
            self.key.epoch,
            self.key.seq,
            self.encoded,
            self.wire_id,
            [cause.peer.to_bytes(), cause.epoch, cause.seq] if cause is not None else None,
            self.expires_wall_ns,
        ]
        return cbor.dumps([*row, bytes(self.body_name)] if self.body_name else row)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> OutboxRecord:
        """Reads what `to_bytes` returned, without a body. OutboxRecordError for anything else."""
        row = _row(data)
        if len(row) not in (8, 9) or row[0] != (RECORD_VERSION if len(row) == 8 else NAMING_VERSION):
            raise OutboxRecordError("not a record of this version", "outbox", "drop the file")
        version, peer, epoch, seq, encoded, wire_id, cause, expires, *named = row
        numbers = (version, epoch, seq, wire_id, expires)
        if not _typed((peer, encoded, *named), bytes) or not _typed(numbers, int):
            raise OutboxRecordError("fields of other types", "outbox", "drop the file")
        known = None
        try:
            if cause is not None:
                if not isinstance(cause, list) or len(cause) != 3 or not _typed(cause[1:], int):
                    raise OutboxRecordError("its cause is not a cause", "outbox", "drop the file")
                known = Cause(PeerId.from_bytes(cause[0]), cause[1], cause[2])
            key = EnvelopeKey(PeerId.from_bytes(peer), epoch, seq)
        except (PeerIdError, TypeError) as error:
            raise OutboxRecordError(f"damaged: {error}", "outbox", "drop the file") from error
        return cls(key, encoded, wire_id, known, expires, body_name=BodyName(*named))


def _row(data: bytes | memoryview) -> list[Any]:
    try:
        row = cbor.loads(data, max_items=16, max_depth=2)
    except cbor.CborError as error:
        raise OutboxRecordError(f"damaged: {error}", "outbox", "drop the file") from error
    if not isinstance(row, list):
        raise OutboxRecordError("not a record of this version", "outbox", "drop the file")
    return row


def name_of(body: bytes) -> BodyName:
    """The name under which records refer to a body."""
    return BodyName(hashlib.sha256(body).digest())


def body_record(body: bytes) -> bytes:
    """A body as a record of its own, which comes before those that name it."""
    return cbor.dumps([NAMING_VERSION, body])


def read_all(records: Iterable[bytes]) -> tuple[list[OutboxRecord], set[BodyName]]:
    """Reads what is on disk: the records, with their bodies, and the bodies that no record names.

    OutboxRecordError for other bytes, and for a record whose body is missing.
    """
    found: list[OutboxRecord] = []
    bodies: dict[BodyName, bytes] = {}
    for data in records:
        row = _row(data)
        if len(row) == 2 and row[0] == NAMING_VERSION and type(row[1]) is bytes:
            bodies[name_of(row[1])] = row[1]
        else:
            found.append(OutboxRecord.from_bytes(data))
    for index, record in enumerate(found):
        if record.body_name:
            if record.body_name not in bodies:
                raise OutboxRecordError("the body that it names is missing", "outbox", "drop the file")
            found[index] = replace(record, body=bodies[record.body_name])
    return found, bodies.keys() - {record.body_name for record in found}


def _typed(values: Iterable[object], kind: type) -> bool:
    return all(type(value) is kind for value in values)


class Outbox:
    """The records of one node, as they are on disk; bounded in number and in bytes."""

    __slots__ = (
        "_bodies",
        "_by_cause",
        "_bytes",
        "_free_bodies",
        "_max_bytes",
        "_max_records",
        "_named",
        "_records",
        "_settled",
        "_settled_bytes",
        "_states",
    )

    def __init__(self, max_records: int = 4096, max_bytes: int = 64 << 20) -> None:
        """At most `max_records` records with `max_bytes` bytes of envelopes.

        4096 is enough for 64 peers with 64 unacknowledged durable envelopes each; 64 MiB is also the limit of
        these records on disk.
        """
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: dict[EnvelopeKey, OutboxRecord] = {}
        self._states: dict[EnvelopeKey, RecordState] = {}  # of the same keys
        self._by_cause: dict[tuple[PeerId, Cause, int], EnvelopeKey] = {}
        self._settled: dict[EnvelopeKey, None] = {}  # the keys in state SETTLED, in the order of settling
        self._bodies = HeldBodies()
        self._named: dict[BodyName, int] = {}  # bodies on disk, and how many records name them
        self._free_bodies: set[BodyName] = set()  # those that no record names any more
        self._bytes = 0
        self._settled_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    @property
    def bytes_in_use(self) -> int:
        """How many bytes of envelopes the records hold."""
        return self._bytes

    @property
    def wants_snapshot(self) -> bool:
        """Whether it is three quarters full, and a snapshot would free an eighth of it or more.

        A quarter is left for what is sent while the snapshot is written; freeing less than an eighth would
        not be worth the wear of writing a snapshot.
        """
        records, size = self._max_records, self._max_bytes
        full = 4 * len(self._records) >= 3 * records or 4 * self._bytes >= 3 * size
        return full and (8 * len(self._settled) >= records or 8 * self._settled_bytes >= size)

    @property
    def any_settled(self) -> bool:
        """Whether a snapshot would free anything."""
        return bool(self._settled)

    def has_room(self, size: int, body: bytes = b"") -> bool:
        """Whether one more record with `size` bytes behind its body would find room."""
        size += self._bodies.adds(body)
        return len(self._records) < self._max_records and self._bytes + size <= self._max_bytes

    def find(self, peer: PeerId, cause: Cause, wire_id: int) -> OutboxRecord | None:
        """Returns what this cause sent to the peer over this wire before, under the number that it keeps."""
        key = self._by_cause.get((peer, cause, wire_id))
        if key is None:
            return None
        self._turn(key, RecordEvent.CAUGHT_UP)
        return self._records[key]

    def settled(self, key: EnvelopeKey) -> bool:
        """Returns whether the record's envelope is acknowledged or expired, and need not be published."""
        return self._states.get(key) in (_SETTLED, _AHEAD_SETTLED)

    def add(self, record: OutboxRecord, ahead: bool = False) -> None:
        """Takes a record over; nothing happens where its key is known. OutboxFullError changes nothing.

        `ahead` says that it comes from disk, and that its cause may still run.
        """
        key = record.key
        if key in self._records:
            return
        size = len(record.encoded) + self._bodies.adds(record.body)
        if len(self._records) >= self._max_records or self._bytes + size > self._max_bytes:
            raise OutboxFullError(
                f"{len(self._records)} records with {self._bytes} bytes, {size} bytes requested",
                "outbox",
                f"at most {self._max_records} records and {self._max_bytes} bytes; take a snapshot",
            )
        self._records[key] = record
        self._states[key] = RECORD.start
        self._bytes += size
        self._bodies.hold(record.body)
        if record.body_name:
            self._named[record.body_name] = self._named.get(record.body_name, 0) + 1
        if record.cause is not None:
            self._by_cause[key.peer, record.cause, record.wire_id] = key
            if ahead:
                self._turn(key, RecordEvent.FOUND)

    def remove(self, key: EnvelopeKey) -> bool:
        """Takes back a record that could not be written. Returns False where there is no such record."""
        record = self._records.pop(key, None)
        if record is None:
            return False
        self._bytes -= len(record.encoded) + self._bodies.drop(record.body)
        del self._states[key]
        if record.body_name:
            self._named[record.body_name] -= 1
            if not self._named[record.body_name]:
                del self._named[record.body_name]
                self._free_bodies.add(record.body_name)
        if key in self._settled:
            del self._settled[key]
            self._settled_bytes -= len(record.encoded)
        if record.cause is not None:
            self._by_cause.pop((key.peer, record.cause, record.wire_id), None)
        return True

    def settle(self, key: EnvelopeKey) -> bool:
        """Takes note that the envelope is acknowledged or expired; its record stays for now.

        Returns False where there is no such record.
        """
        if key not in self._records:
            return False
        self._turn(key, RecordEvent.SETTLE)
        return True

    def snapshot_taken(self, may_run: Callable[[Cause], bool]) -> list[EnvelopeKey]:
        """Removes the settled records, now that a snapshot is on disk, and returns their keys.

        Their files can be deleted. The other records keep their numbers, but what sent them is in the
        snapshot and does not run again: they lose their causes. Records that are ahead stay, settled or not,
        with their causes, while `may_run(cause)` says that these are still to come.
        """
        for key, state in tuple(self._states.items()):
            cause = self._records[key].cause
            if state in (_AHEAD, _AHEAD_SETTLED) and (cause is None or not may_run(cause)):
                self._turn(key, RecordEvent.CAUGHT_UP)
        gone = list(self._settled)
        for key in tuple(self._states):
            self._turn(key, RecordEvent.SNAPSHOT)
        ahead = (_AHEAD, _AHEAD_SETTLED)
        self._by_cause = {sent: key for sent, key in self._by_cause.items() if self._states[key] in ahead}
        return gone

    def take_free_bodies(self, orphans: Iterable[BodyName] = ()) -> list[BodyName]:
        """The bodies that no record names any more: they may go with the records that did."""
        free = [name for name in self._free_bodies.union(orphans) if name not in self._named]
        self._free_bodies.clear()
        return free

    def __iter__(self) -> Iterator[EnvelopeKey]:
        """The keys of all records, settled or not, in the order in which they were added."""
        return iter(self._records)

    def waiting(self) -> list[OutboxRecord]:
        """Returns the records that are not settled, in the order in which they were added."""
        return [record for key, record in self._records.items() if not self.settled(key)]

    def _turn(self, key: EnvelopeKey, event: RecordEvent) -> None:
        """Moves a record to the state that the table gives."""
        before = self._states[key]
        after = RECORD.rows[before, event]
        if after is before:
            return
        if after is RecordState.GONE:
            self.remove(key)
            return
        self._states[key] = after
        if after is _SETTLED:
            self._settled[key] = None
            self._settled_bytes += len(self._records[key].encoded)
