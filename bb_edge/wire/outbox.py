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
from bb_edge.wire.bodies import NO_BODY, BodyName
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
    """A snapshot is on disk, and holds what its cause did."""
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
        (_WAITING, RecordEvent.CAUGHT_UP): _WAITING,
        (_WAITING, RecordEvent.FOUND): _AHEAD,
        (_SETTLED, RecordEvent.SETTLE): _SETTLED,
        (_SETTLED, RecordEvent.SNAPSHOT): RecordState.GONE,
        (_SETTLED, RecordEvent.CAUGHT_UP): _SETTLED,
        (_AHEAD, RecordEvent.SETTLE): _AHEAD_SETTLED,
        (_AHEAD, RecordEvent.CAUGHT_UP): _WAITING,
        (_AHEAD_SETTLED, RecordEvent.SETTLE): _AHEAD_SETTLED,
        (_AHEAD_SETTLED, RecordEvent.CAUGHT_UP): _SETTLED,
    },
)


class OutboxError(BBError):
    """Base of what can be wrong with an outbox."""


class OutboxFullError(OutboxError):
    """The places of records, or their bytes, are used up; acknowledgements and a snapshot free them."""


class OutboxRecordError(OutboxError):
    """Bytes on disk that are not a record: damaged, or written by a newer version."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "outbox", "drop the file")


ROUNDS: Final = 1 << 63
"""Of the epoch of a cause that is a round or a tick: no epoch of an envelope has that bit."""
TICKS: Final = ROUNDS | 1 << 62
"""Of the epoch of a cause that is a tick of an interval."""


class Cause(NamedTuple):
    """The inbound durable envelope whose execution sent an envelope; or a round or tick of this node."""

    peer: PeerId
    epoch: int
    seq: int

    @property
    def round(self) -> int | None:
        """The number of the round that it is, from 1; None for an envelope, and for a tick."""
        return self.seq >> 32 if self.epoch & TICKS == ROUNDS else None


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """A durable envelope as it is written down.

    Its bytes are `body`, which it may share with others, and then `encoded`. `expires_wall_ns` is wall time,
    because monotonic time does not outlive a restart; 0 is never. `cause` is None for an envelope that a
    timer, the host or the like set off. `written_s`, seconds of wall time, is for people who look, 0 where it
    is not known; it stands beside the record in its row.
    """

    key: EnvelopeKey
    encoded: bytes
    wire_id: int = 0
    cause: Cause | None = None
    expires_wall_ns: int = 0
    body: bytes = b""
    body_name: BodyName = NO_BODY
    written_s: int = 0

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

    def with_body(self, body: bytes) -> OutboxRecord:
        """The same with the body that it names."""
        return replace(self, body=body) if body else self

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> OutboxRecord:
        """Reads what `to_bytes` returned, without a body. OutboxRecordError for anything else."""
        row = _row(data)
        if len(row) not in (8, 9) or row[0] != (RECORD_VERSION if len(row) == 8 else NAMING_VERSION):
            raise OutboxRecordError("not a record of this version")
        version, peer, epoch, seq, encoded, wire_id, cause, expires, *named = row
        numbers = (version, epoch, seq, wire_id, expires)
        if not _typed((peer, encoded, *named), bytes) or not _typed(numbers, int):
            raise OutboxRecordError("fields of other types")
        known = None
        try:
            if cause is not None:
                shaped = isinstance(cause, list) and len(cause) == 3
                if not shaped or not _typed(cause[:1], bytes) or not _typed(cause[1:], int):
                    raise OutboxRecordError("its cause is not a cause")
                known = Cause(PeerId.from_bytes(cause[0]), cause[1], cause[2])
            key = EnvelopeKey(PeerId.from_bytes(peer), epoch, seq)
        except (PeerIdError, TypeError) as error:
            raise OutboxRecordError(f"damaged: {error}") from error
        return cls(key, encoded, wire_id, known, expires, body_name=BodyName(*named))


def _row(data: bytes | memoryview) -> list[Any]:
    try:
        row = cbor.loads(data, max_items=16, max_depth=2)
    except cbor.CborError as error:
        raise OutboxRecordError(f"damaged: {error}") from error
    if not isinstance(row, list):
        raise OutboxRecordError("not a record of this version")
    return row


def name_of(body: bytes) -> BodyName:
    """The name under which records refer to a body."""
    return BodyName(hashlib.sha256(body).digest())


def body_record(body: bytes) -> bytes:
    """A body as a record of its own, which comes before those that name it."""
    return cbor.dumps([NAMING_VERSION, body])


def _typed(values: Iterable[object], kind: type) -> bool:
    return all(type(value) is kind for value in values)


class Outbox:
    """What of a node's records comes beside their numbers: causes, what snapshots need of them, and bodies.

    `DurableSender` holds the records themselves, under the same ids.
    """

    __slots__ = ("_by_cause", "_causes", "_free_bodies", "_named", "_names", "_settled", "_states")

    def __init__(self) -> None:
        self._states: dict[int, RecordState] = {}
        self._causes: dict[int, tuple[PeerId, Cause, int]] = {}  # of those that have one
        self._by_cause: dict[tuple[PeerId, Cause, int], int] = {}
        self._settled: dict[int, None] = {}  # the ids in state SETTLED, in the order of settling
        self._names: dict[int, BodyName] = {}  # of those that name a body
        self._named: dict[BodyName, int] = {}  # bodies on disk, and how many records name them
        self._free_bodies: set[BodyName] = set()  # those that no record names any more

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, number: object) -> bool:
        return number in self._states

    def __iter__(self) -> Iterator[int]:
        """The ids of all records, settled or not, in the order in which they were added."""
        return iter(self._states)

    def find(self, peer: PeerId, cause: Cause, wire_id: int) -> int | None:
        """Returns what this cause sent to the peer over this wire before; `caught_up` is to be told of it."""
        return self._by_cause.get((peer, cause, wire_id))

    def caught_up(self, number: int) -> None:
        """Takes note that the cause of a record has run again."""
        self._turn(number, RecordEvent.CAUGHT_UP)

    def settled(self, number: int) -> bool:
        """Returns whether the record's envelope is acknowledged or expired, and need not be published."""
        return self._states.get(number) in (_SETTLED, _AHEAD_SETTLED)

    def is_ahead(self, number: int) -> bool:
        """Returns whether the record stays for its cause, which is still to come, though it be settled."""
        return self._states.get(number) in (_AHEAD, _AHEAD_SETTLED)

    def add(self, number: int, record: OutboxRecord, ahead: bool = False) -> None:
        """Takes note of a record under a new id.

        `ahead` says that it comes from disk, and that its cause may still run.
        """
        self._states[number] = RECORD.start
        if record.body_name:
            self._names[number] = record.body_name
            self._named[record.body_name] = self._named.get(record.body_name, 0) + 1
        if record.cause is not None:
            sent = self._causes[number] = record.key.peer, record.cause, record.wire_id
            self._by_cause[sent] = number
            if ahead:
                self._turn(number, RecordEvent.FOUND)

    def settle(self, number: int) -> bool:
        """Takes note that the envelope is acknowledged or expired; its record stays for now.

        Returns False where there is no such record.
        """
        if number not in self._states:
            return False
        self._turn(number, RecordEvent.SETTLE)
        return True

    def snapshot_taken(self, may_run: Callable[[Cause], bool]) -> list[int]:
        """Names the settled records that a snapshot on disk does not need any more; `remove` takes each out.

        The other records stay, but what sent them is in the snapshot and does not run again: they lose their
        causes. Records that are ahead keep theirs, settled or not, while `may_run(cause)` says that these are
        still to come.
        """
        ahead = (_AHEAD, _AHEAD_SETTLED)
        for number, state in tuple(self._states.items()):
            if state in ahead and not may_run(self._causes[number][1]):
                self._turn(number, RecordEvent.CAUGHT_UP)
        self._by_cause = {sent: n for sent, n in self._by_cause.items() if self._states[n] in ahead}
        return list(self._settled)

    def remove(self, number: int) -> None:
        """The snapshot needs it no more, and its row may go. TransitionError where it is not SETTLED."""
        self._turn(number, RecordEvent.SNAPSHOT)

    def needs_body(self, name: BodyName) -> bool:
        """Whether a record names the body that is not settled, or is ahead."""
        numbers = [number for number, named in self._names.items() if named == name]
        return any(self.is_ahead(number) or not self.settled(number) for number in numbers)

    def take_free_bodies(self, orphans: Iterable[BodyName] = ()) -> list[BodyName]:
        """The bodies that no record names any more: they may go with the records that did."""
        free = [name for name in self._free_bodies.union(orphans) if name not in self._named]
        self._free_bodies.clear()
        return free

    def _turn(self, number: int, event: RecordEvent) -> None:
        """Moves a record to the state that the table gives."""
        before = self._states[number]
        after = RECORD.rows[before, event]
        if after is before:
            return
        if after is RecordState.GONE:
            self._forget(number)
            return
        self._states[number] = after
        if after is _SETTLED:
            self._settled[number] = None

    def _forget(self, number: int) -> None:
        del self._states[number], self._settled[number]
        self._causes.pop(number, None)  # `snapshot_taken` has taken it out of `_by_cause`
        name = self._names.pop(number, None)
        if name is not None:
            self._named[name] -= 1
            if not self._named[name]:
                del self._named[name]
                self._free_bodies.add(name)
