"""What a sender of durable envelopes writes down: records, and the numbers that they get.

    record    [3, id, record, when]                            `record` as in outbox.py; number 0 for none
    numbers   [3, peer, epoch, first, [id, …], [heard]]        the records have first, first + 1, …
    met       [3, peer, presence]                              no snapshot has the peer yet

Rows say the same in any order. The `numbers` with first = 1 begin an epoch: they list all records of the
peer that had a number and still need one, so any other record of an earlier epoch is settled, and no row has
to say so. Records of older versions stand for themselves, and are written down anew when they are read.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.wire import cbor
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.marks import NOTHING, Heard
from bb_edge.wire.outbox import NAMING_VERSION, OutboxRecord, OutboxRecordError, name_of
from bb_edge.wire.presence import PresenceError, decode_presence
from bb_edge.wire.resend import EnvelopeKey

ROW_VERSION: Final = 3


class RowName(NamedTuple):
    """The name of a row that gives numbers."""

    peer: PeerId
    epoch: int
    first: int


OutboxName: TypeAlias = "int | RowName | EnvelopeKey | BodyName"
"""What a row of the outbox is known by: an id, a row of numbers' name, a body's; of old ones a number."""


class Met(NamedTuple):
    """A peer that was heard of, and its presence in CBOR.

    Whoever sends to peers that are away has them on disk before it sends: a snapshot may be minutes ahead.
    """

    peer: PeerId
    presence: bytes

    @property
    def name(self) -> RowName:
        """The name of the row; numbers begin with 1."""
        return RowName(self.peer, 0, 0)

    def to_bytes(self) -> bytes:
        """The row as canonical CBOR."""
        return cbor.dumps([ROW_VERSION, self.peer.to_bytes(), self.presence])


_MET: Final = cbor.head(4, 3) + cbor.dumps(ROW_VERSION)
"""How such rows begin, and no others."""


class Numbers(NamedTuple):
    """A row that gives records their numbers; `first` 1 begins the epoch. Of epoch 0, they are over."""

    peer: PeerId
    epoch: int
    first: int
    ids: tuple[int, ...]
    heard: Heard = NOTHING

    @property
    def name(self) -> RowName:
        """The name of the row."""
        return RowName(*self[:3])

    def to_bytes(self) -> bytes:
        """The row as canonical CBOR."""
        return cbor.dumps([ROW_VERSION, self.peer.to_bytes(), *self[1:]])


@dataclass(slots=True)
class Flow:
    """What is on disk of one peer: its epoch, the last number of it, and what was heard in the end."""

    epoch: int = 0
    last: int = 0
    heard: Heard = NOTHING

    def reach(self, epoch: int, seq: int) -> None:
        """A number was given."""
        if (epoch, seq) > (self.epoch, self.last):
            self.epoch, self.last = epoch, seq


@dataclass(slots=True)
class Rows:
    """What is on disk. Records by id, their numbers in the epochs of their flows, and which are settled.

    `older` are the records of earlier versions that have no id yet; `replaced` names all of that kind.
    `orphans` are bodies that no record names, `stale` records that a snapshot has let go, `bodiless` those
    whose bodies are gone: nothing of them can be sent.
    """

    flows: dict[PeerId, Flow]
    records: dict[int, OutboxRecord] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    given: list[Numbers] = field(default_factory=list)
    older: list[OutboxRecord] = field(default_factory=list)
    replaced: list[EnvelopeKey] = field(default_factory=list)
    orphans: set[BodyName] = field(default_factory=set)
    stale: list[int] = field(default_factory=list)
    bodiless: list[int] = field(default_factory=list)

    def lack(self, number: int, record: OutboxRecord) -> bool:
        """Whether they say nothing of a record that a snapshot holds, so that it is the snapshot's alone."""
        return not (number in self.records or number in self.settled or record.key in self.replaced)

    def missing(self, live: Iterable[int], held: Iterable[int]) -> tuple[int, ...]:
        """The records that a snapshot names as `live`, and that are neither whole here nor `held` there.

        Of these some may be settled: they went with that snapshot if nothing could ask for them again.
        """
        return tuple(sorted({*live, *self.bodiless} - {*self.records, *self.settled, *held}))

    def number_of(self, number: int, record: OutboxRecord) -> int:
        """The number of such a record in its flow's epoch, 0 for none: a row may have given it one since."""
        peer, epoch, seq = record.key
        known = self.flows.get(peer)
        return self.numbers.get(number) or (seq if known is not None and epoch == known.epoch else 0)


def missed(missing: Iterable[int], over: Container[int] | None) -> tuple[int, ...]:
    """Those of missing records that a snapshot needs: not such as are `over`, which may have gone with it.

    None are where the snapshot does not tell which those are, as those of older runtimes do not.
    """
    return () if over is None else tuple([number for number in missing if number not in over])


def record_row(number: int, record: OutboxRecord) -> bytes:
    """A record under its id."""
    return cbor.dumps([ROW_VERSION, number, record.to_bytes(), record.written_s])


def over(dropped: Iterable[tuple[int, OutboxRecord]]) -> list[Numbers]:
    """What is to be on disk before records are dropped by hand that a snapshot holds: that they are over."""
    ids: dict[PeerId, list[int]] = {}
    for number, record in dropped:
        ids.setdefault(record.key.peer, []).append(number)
    return [Numbers(peer, 0, numbers[0], tuple(numbers)) for peer, numbers in ids.items()]


def keeping(
    dropped: Iterable[OutboxRecord], given: Iterable[Numbers], flows: Mapping[PeerId, Flow]
) -> list[Numbers]:
    """What is to be on disk before records are dropped by hand: that their numbers were given.

    Theirs may be the only rows that say so. Given again, a number that its receiver has taken would cost a
    record; and a sender that knows of fewer numbers than its receiver looks as if it had been put back.
    """
    known = {peer: replace(flow) for peer, flow in flows.items()}
    _reach(known, given)
    rows: dict[PeerId, Numbers] = {}
    for record in dropped:
        peer, epoch, seq = record.key
        flow = known.setdefault(peer, Flow())
        if (epoch, seq) > (flow.epoch, flow.last):
            flow.reach(epoch, seq)
            rows[peer] = Numbers(peer, epoch, seq + 1, ())
    return list(rows.values())


def read(
    rows: Iterable[bytes], flows: Mapping[PeerId, Flow], next_id: int = 1, live: Container[int] = ()
) -> Rows:
    """Reads rows in any order; `flows` are what a snapshot says. OutboxRecordError for other bytes.

    Of the records below the snapshot's `next_id` only the `live` ones count: what it let go may be on disk
    still, and the row with its number, or its body, may not.
    """
    found = Rows({peer: replace(flow) for peer, flow in flows.items()})
    bodies: dict[BodyName, bytes] = {}
    for data in rows:
        if data.startswith(_MET):
            continue
        row = _row(data)
        if len(row) == 2 and row[0] == NAMING_VERSION and isinstance(row[1], bytes):
            bodies[name_of(row[1])] = row[1]
        elif row[0] != ROW_VERSION:
            old = OutboxRecord.from_bytes(data)
            if not old.key.epoch:
                raise OutboxRecordError("an old record without a number")
            found.older.append(old)
        elif len(row) == 4 and type(row[1]) is type(row[3]) is int and isinstance(row[2], bytes):
            if row[1] < next_id and row[1] not in live:
                found.stale.append(row[1])
            else:
                found.records[row[1]] = replace(OutboxRecord.from_bytes(row[2]), written_s=row[3])
        else:
            found.given.append(_numbers(row))
    found.older = [_with_body(record, bodies) for record in found.older]
    found.bodiless = [n for n, record in found.records.items() if _lacks_body(record, bodies)]
    for number in found.bodiless:
        del found.records[number]
    found.records = {number: _with_body(record, bodies) for number, record in found.records.items()}
    found.orphans = set(bodies)
    for record in (*found.records.values(), *found.older):
        found.orphans.discard(record.body_name)
        if record.key.epoch:
            found.flows.setdefault(record.key.peer, Flow()).reach(record.key.epoch, record.key.seq)
    _reach(found.flows, found.given)
    _number(found, flows)
    return found


def met_in(rows: Iterable[bytes]) -> list[Met]:
    """The peers that rows tell of. OutboxRecordError for a row that begins like one and cannot be read."""
    found = []
    for row in [_row(data) for data in rows if data.startswith(_MET)]:
        try:
            _, peer, presence = row
            if not isinstance(peer, bytes) or not isinstance(presence, bytes):
                raise TypeError
            decode_presence(presence)
            found.append(Met(PeerId.from_bytes(peer), presence))
        except (ValueError, TypeError, PeerIdError, PresenceError) as error:
            raise OutboxRecordError("not a row of a peer") from error
    return found


def _reach(flows: dict[PeerId, Flow], given: Iterable[Numbers]) -> None:
    for row in given:
        flow = flows.setdefault(row.peer, Flow())
        if row.epoch:
            flow.reach(row.epoch, row.first + len(row.ids) - 1)


def _number(found: Rows, before: Mapping[PeerId, Flow]) -> None:
    """Finds who has a number of an epoch that has not ended; records of an ended one are settled."""
    over: set[int] = set()
    for row in found.given:
        flow = found.flows[row.peer]
        if not row.epoch:
            over.update(row.ids)
        elif row.epoch == flow.epoch:
            found.numbers.update({number: row.first + place for place, number in enumerate(row.ids)})
            if row.first == 1 and row.epoch > before.get(row.peer, Flow()).epoch:
                flow.heard = row.heard  # later than what the snapshot says
    for number, record in found.records.items():
        key = record.key
        if key.epoch and key.epoch == found.flows[key.peer].epoch:
            found.numbers[number] = key.seq
    for number in over:
        found.numbers.pop(number, None)
    numbered = {number for row in found.given for number in row.ids}
    numbered.update(number for number, record in found.records.items() if record.key.epoch)
    found.settled = numbered.difference(found.numbers)
    known = {found.records[number].key.peer: set[int]() for number in found.records}
    for number, seq in found.numbers.items():
        if number in found.records:
            known[found.records[number].key.peer].add(seq)
    found.replaced = [record.key for record in found.older]
    found.older = [
        record
        for record in found.older
        if record.key.epoch == found.flows[record.key.peer].epoch
        and record.key.seq not in known.get(record.key.peer, ())
    ]


def name_and_peer(row: bytes) -> tuple[str, PeerId]:
    """A record's id, as an operator knows it, and whom it is for. OutboxRecordError for another row."""
    fields = _row(row)
    if fields[0] == ROW_VERSION and len(fields) == 4 and isinstance(fields[2], bytes):
        return str(fields[1]), OutboxRecord.from_bytes(fields[2]).key.peer
    key = OutboxRecord.from_bytes(row).key
    return f"{key.peer}:{key.epoch}:{key.seq}", key.peer


def _lacks_body(record: OutboxRecord, bodies: Mapping[BodyName, bytes]) -> bool:
    return bool(record.body_name) and record.body_name not in bodies


def _with_body(record: OutboxRecord, bodies: Mapping[BodyName, bytes]) -> OutboxRecord:
    if not record.body_name:
        return record
    if _lacks_body(record, bodies):
        raise OutboxRecordError("the body that it names is missing")
    return record.with_body(bodies[record.body_name])


def _row(data: bytes) -> list[object]:
    try:
        row = cbor.loads(data, max_items=len(data) + 1, max_depth=2)  # an epoch begins with all that is open
    except cbor.CborError as error:
        raise OutboxRecordError(f"damaged: {error}") from error
    if not isinstance(row, list) or not row:
        raise OutboxRecordError("not a row of this version")
    return row


def _numbers(row: list[object]) -> Numbers:
    """Reads the row of `Numbers.to_bytes`. OutboxRecordError for anything else."""
    try:
        _, peer, epoch, first, ids, heard = row
        assert isinstance(ids, list) and isinstance(heard, list) and len(heard) == len(NOTHING)
        numbers = [epoch, first, *ids, *heard]
        if not isinstance(peer, bytes) or not all(type(number) is int for number in numbers):
            raise TypeError
        return Numbers(PeerId.from_bytes(peer), epoch, first, tuple(ids), Heard(*heard))  # type: ignore[arg-type]
    except (ValueError, TypeError, AssertionError, PeerIdError) as error:
        raise OutboxRecordError("not a row of numbers") from error
