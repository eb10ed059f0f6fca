"""Records and windows of a node of another program, for one that takes its place (docs/design/durability.md).

A window says which numbers of a peer were taken, and a flow which numbers a peer was given: neither knows a
program. A record is for sites of its peer, so what one op sent in it is taken where an op of the new program
sends the same to the same sites.
What sent it belongs to the old program, and does not run again: its cause is forgotten.

Rule D15 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from bb_edge.engine.net.units import PUT_OFF, Unit
from bb_edge.engine.plain import Shift
from bb_edge.ir.ids import PeerId
from bb_edge.wire import durable_rows, envelope
from bb_edge.wire.bodies import NO_BODY
from bb_edge.wire.caps import EnvelopeCaps
from bb_edge.wire.durable_rows import Flow, Met, OutboxName
from bb_edge.wire.durable_saved import Saved
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.outbox import OutboxRecord, body_record, name_of
from bb_edge.wire.presence import decode_presence, encode_presence
from bb_edge.wire.programs import CLAIM
from bb_edge.wire.resend import EnvelopeKey

_TRUSTED: Final = EnvelopeCaps(1 << 40, 1 << 20, 1 << 40, 1 << 20)
"""For bytes that the old node itself has encoded."""
_NOBODY: Final = "nobody waits for the answers: the execution that asked belongs to the old program"
_EXPIRED: Final = "its deadline has passed"


class Part(NamedTuple):
    """What one op sent in an envelope, which several may share: for people what it is, and why the new
    program does not take it ("": it does).
    """

    what: str
    why: str
    fills: tuple[Fill, ...]


Judge = Callable[[Envelope], Sequence[Part]]
"""The parts of an envelope: one at least."""


class Record(NamedTuple):
    """A record that nobody is known to have acknowledged; `number` is that of its flow, 0: none."""

    id: int
    number: int
    record: OutboxRecord


class Left(NamedTuple):
    """A record that is not taken: for whom, what it is, and why."""

    peer: PeerId
    what: str
    why: str


@dataclass(slots=True)
class FormerRecords:
    """What a node has under way durably, by its snapshot `body` and the rows of its outbox on disk.

    `met` are the peers that it knows, as if they were away, and without what they said of their programs:
    whoever has come up since, and with which program, they say themselves.
    `windows` are the rows of `DurableReceiver.restore`. `flows` is what the new node's `Records.restore`
    takes, and `rows` are the rows that have to be in its outbox then, both filled by `take`; `taken` says how
    many records that are, by peer.
    """

    records: list[Record]
    windows: list[Any]
    met: list[Met]
    _known: Mapping[PeerId, Flow]
    _next_id: int
    flows: list[Any] = field(default_factory=list)
    rows: list[tuple[OutboxName, bytes]] = field(default_factory=list)
    taken: dict[PeerId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, Any], outbox: Iterable[bytes], wall_ns: int) -> FormerRecords:
        """Reads both. OutboxRecordError for rows that are not records; what the snapshot lacks raises as it
        comes.

        `wall_ns` is the time now: what waited for room, and had a deadline, has as much of it left as then.
        """
        outbox = tuple(outbox)
        outbound = body["outbound"]
        saved = Saved.of(outbound.get("flows", ()))
        read = saved.rows(outbox)
        shift = Shift(0, body["bodies"])
        found = [
            Record(number, read.numbers.get(number, 0), record)
            for number, record in sorted(read.records.items())
            if number not in read.settled
        ]
        known = {*read.records, *(number for row in read.given for number in row.ids)}
        unwritten = []
        for number, row, place, written_s in outbound.get("unwritten", ()):
            record = replace(OutboxRecord.from_bytes(row), written_s=written_s)
            if read.lack(number, record):
                seq = read.number_of(number, record)
                unwritten.append(Record(number, seq, record.with_body(shift.body(place))))
            known.add(number)
        next_id = max([saved.next_id - 1, *known]) + 1
        for record in read.older:
            found.append(Record(next_id, record.key.seq, record))
            next_id += 1
        found += unwritten
        for record in _waiting(outbound, body["timers"][1], int(body["now_ns"]), wall_ns, shift):
            found.append(Record(next_id, 0, record))
            next_id += 1
        met = [Met(PeerId.from_bytes(raw), said) for raw, said, _ in body["neighbours"]["peers"]]
        met = [_away(one) for one in (*met, *durable_rows.met_in(outbox))]
        return cls(found, list(body["links"]["sources"]), met, read.flows, next_id)

    def take(self, judge: Judge, wall_ns: int) -> list[Left]:
        """Takes what has not expired by `wall_ns` and `judge` lets through; returns what is left."""
        left = []
        live = []
        bodies = set()
        for number, seq, record in self.records:
            message = envelope.decode(record.body + record.encoded, _TRUSTED)
            peer, parts, of_all = record.key.peer, judge(message), ""
            if message.kind == envelope.REQUEST:
                of_all = _NOBODY
            elif 0 < record.expires_wall_ns <= wall_ns:
                of_all = _EXPIRED
            taken = [] if of_all else [part for part in parts if not part.why]
            left += [Left(peer, part.what, of_all or part.why) for part in parts if part not in taken]
            if not taken:
                continue
            if len(taken) < len(parts):
                message.fills = [fill for part in taken for fill in part.fills]
                record = replace(record, encoded=envelope.encode(message), body=b"", body_name=NO_BODY)
            flow = self._known.get(peer)
            key = EnvelopeKey(peer, flow.epoch, seq) if seq and flow is not None else EnvelopeKey(peer, 0, 0)
            if record.body_name and record.body_name not in bodies:
                bodies.add(record.body_name)
                self.rows.append((record.body_name, body_record(record.body)))
            kept = replace(record, key=key, cause=None)
            self.rows.append((number, durable_rows.record_row(number, kept)))
            self.taken[peer] = self.taken.get(peer, 0) + 1
            live.append(number)
        flows = [
            [peer.to_bytes(), flow.epoch, flow.last, list(flow.heard)] for peer, flow in self._known.items()
        ]
        self.flows = [self._next_id, flows, live]
        return left


def _away(met: Met) -> Met:
    said = decode_presence(met.presence)
    meta = {name: value for name, value in said.meta.items() if name not in CLAIM}
    said = said._replace(up=False, epoch=None, session=0, seq=0, meta=meta)
    return met._replace(presence=encode_presence(said))


def _waiting(
    outbound: Mapping[str, Any], timers: Sequence[Any], then_ns: int, wall_ns: int, shift: Shift
) -> Iterator[OutboxRecord]:
    """The durable units that had no record yet, as records. A request to many peers is one per peer."""
    put_off = [plain[0] for _, _, name, plain in timers if name == PUT_OFF]
    for row in (*outbound.get("waiting", ()), *outbound["units"], *put_off):
        whole = Unit.restored(row, shift)
        if not whole.durable:
            continue
        for unit in (
            [whole] if whole.to is None else [whole.alone(number, p) for number, p in whole.to.items()]
        ):
            remaining = max(1, unit.deadline_ns - then_ns) if unit.deadline_ns else 0
            message = Envelope(unit.fills, unit.kind, unit.wire_req_id, remaining, failure=unit.failure)
            yield OutboxRecord(
                EnvelopeKey(unit.peer, 0, 0),
                envelope.encode(message, not unit.body),
                unit.wire_id,
                None,
                wall_ns + remaining if remaining else 0,
                unit.body,
                name_of(unit.body) if unit.body else NO_BODY,
                wall_ns // 1_000_000_000,
            )
