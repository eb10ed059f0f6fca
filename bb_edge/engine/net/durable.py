"""Durable envelopes on their way out (docs/design/durability.md).

    unit ──record──► on disk ──its peer is there, and has room: a number, on disk──► published, repeated until
      │                                                              │               acknowledged or expired
      └─ no room in the outbox: WAITING, or lost                     └─ a request ─► a snapshot first

`DurableSender` decides about records and numbers; here its effects are carried out. A record is written down
whether its peer is up or not. Nothing is published before it is on disk, and a request not before a snapshot
holds the execution that asks: a node that comes back would not know what the answers are for. What ran before
a crash and runs again after it finds what it sent (`Outbox.find`), and sends nothing new.

`Durable` publishes and loses nothing by itself: it says what became of a unit (`Fate`), and `Outgoing`, which
holds it, acts on that.

Rules D1 to D3 of the specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.engine import steps
from bb_edge.engine.net.never_left import LATE, WAITED
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.records import Records
from bb_edge.engine.net.units import Unit
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.bodies import NO_BODY, BodyName
from bb_edge.wire.durable_rows import OutboxName, missed
from bb_edge.wire.envelope import Ack, Envelope
from bb_edge.wire.outbox import Cause, OutboxFullError, OutboxRecord, name_of
from bb_edge.wire.resend import EnvelopeKey, Outgoing

RECORD_BYTES = 128
"""About the bytes of an envelope beside its payloads: addresses of sites, numbers, acknowledgements."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a durable unit: it has a record now, is lost, or neither, and nothing is to be done."""

    record: int = 0
    lost: str = ""
    too_large: bool = False


_NOTHING_TO_DO: Final = Fate()


def _size(unit: Unit) -> int:
    """About the bytes of the unit's envelope behind its body."""
    return RECORD_BYTES if unit.body else RECORD_BYTES + sum(len(fill.payload) for fill in unit.fills)


@dataclass(slots=True, eq=False)
class Durable:
    """The durable half of what leaves; every queue of it is bounded by the outbox or the outbound queue.

    `quiet` says that the driver keeps nothing on disk: then units that want it are sent like any other.
    """

    _runtime: Runtime
    _peers: PeerStates
    records: Records
    _wish: SnapshotWish
    quiet: bool = field(init=False)
    waiting: list[Unit] = field(default_factory=list)  # for room in the outbox
    _room: bool = False  # a snapshot has made some, for what waits
    _over: Sequence[int] | None = None  # records of the snapshot that may be gone with it: they are settled
    _named: tuple[bytes, BodyName] = (b"", NO_BODY)  # the last body, and its name

    def __post_init__(self) -> None:
        self.quiet = not self._wish.kept

    @property
    def open_bytes(self) -> int:
        """The bytes of the envelopes in the outbox that nobody has acknowledged."""
        return self.records.sender.room.open_bytes

    @property
    def open(self) -> frozenset[int]:
        """The numbers of the records that nobody has acknowledged."""
        return frozenset(pending.key.seq for pending in self.records.pending)

    @property
    def unplaced(self) -> int:
        """How many envelopes wait for room in the outbox."""
        return sum(1 if unit.to is None else len(unit.to) for unit in self.waiting)

    def unkept(self, gone: Callable[[int | BodyName], bool] | None = None) -> Counter[PeerId]:
        """How many durable envelopes are not on disk, by their peers: they wait for a place there, or for the
        disk. Or how many were there, and nobody has acknowledged them: the row of that name, a record's or
        that of its body, is `gone`.
        """
        if gone is not None:
            return self._removed(gone)
        found = Counter(unit.peer for unit in self.waiting if unit.to is None)
        for unit in self.waiting:
            found.update(() if unit.to is None else unit.to.values())
        found.update(row.record.key.peer for row in self.records.writing if row.record is not None)
        return found

    def _removed(self, gone: Callable[[int | BodyName], bool]) -> Counter[PeerId]:
        writing, sender = {row.name for row in self.records.writing}, self.records.sender
        found = Counter[PeerId]()
        for pending in self.records.pending:
            number, record = pending.key.seq, sender.record(pending.key.seq)
            if record is not None and number not in writing:
                found[pending.key.peer] += gone(number) or bool(record.body and gone(record.body_name))
        return +found

    @property
    def busy(self) -> bool:
        """Whether the next poll has something to publish."""
        return self._room or bool(self.records.needs_snapshot.ready)

    # --- sending --------------------------------------------------------------------------------------

    def send(self, unit: Unit, now_ns: int) -> Iterator[tuple[Unit, Fate]]:
        """Takes a unit: it leaves once, and not before it is on disk. Tells what became of it, or of those
        that it is for; the caller takes them all.
        """
        if unit.deadline_ns and unit.deadline_ns <= now_ns:
            self._runtime.count("deadlines.expired")
            if unit.kind == envelope.NONE:
                yield unit, Fate(lost=LATE)
            return
        # What waits for a peer leaves before what comes now, which may be small enough for the room there is.
        yield from self._try(unit, now_ns, {other.peer for other in self.waiting if other.to is None})
        if self.waiting and self.waiting[-1] is unit:
            if len(self.waiting) > self._runtime.config.outbound_queue:
                self.waiting.pop()
                yield unit, Fate(lost="too many durable envelopes wait")
            else:
                self._runtime.count("outbound.waiting")

    def _try(self, unit: Unit, now_ns: int, held_up: set[PeerId]) -> Iterator[tuple[Unit, Fate]]:
        """Begins a unit, or those that it is for; what finds no room waits, and holds its peer up."""
        if unit.deadline_ns and unit.deadline_ns <= now_ns:
            self._runtime.count("deadlines.expired")
            yield unit, Fate(lost=WAITED)
            return
        if unit.to is None:
            fate = None if unit.peer in held_up else self._begin(unit, now_ns)
            if fate is None:
                held_up.add(unit.peer)
                self.waiting.append(unit)
            else:
                yield unit, fate
            return
        for number, peer in tuple(unit.to.items()):
            alone = unit.alone(number, peer)
            fate = None if peer in held_up else self._begin(alone, now_ns)
            if fate is not None:
                del unit.to[number]
                yield alone, fate
            elif not self.records.sender.room.has_room(_size(unit), unit.body):
                break  # nor has any other of them
        if unit.to:
            self.waiting.append(unit)

    def _begin(self, unit: Unit, now_ns: int) -> Fate | None:
        """Has the envelope written down; None, with nothing changed, where it has to wait for room."""
        is_request = unit.kind == envelope.REQUEST
        # A request that runs again has another id: the answers to the old one would find nobody.
        cause = None if is_request else unit.cause
        remaining = unit.deadline_ns - now_ns if unit.deadline_ns else 0
        message = Envelope(unit.fills, unit.kind, unit.wire_req_id, remaining, failure=unit.failure)
        found = None if cause is None else self.records.outbox.find(unit.peer, cause, unit.wire_id)
        if found is not None and not self._is_news(found, unit, message):
            self.records.outbox.caught_up(found)
            self._runtime.count("outbound.reused")
            return _NOTHING_TO_DO
        data = envelope.encode(message, not unit.body)
        size, limits = len(unit.body) + len(data), self._peers.limits_of(unit.peer)
        if size > limits.total_bytes:
            return Fate(lost=limits.too_large(size), too_large=True)
        expires = unit.deadline_ns + self._runtime.clock_offset_ns if unit.deadline_ns else 0
        record = OutboxRecord(
            EnvelopeKey(unit.peer, 0, 0),
            data,
            unit.wire_id,
            cause,
            expires,
            unit.body,
            self._name_of(unit.body),
            (now_ns + self._runtime.clock_offset_ns) // 1_000_000_000,
        )
        try:
            number = self.records.add(record, unit.kind, unit.deadline_ns)
        except OutboxFullError as error:
            fate = self._no_room(unit, error)
            if found is not None and fate is not None:  # what waits is compared again
                self.records.outbox.caught_up(found)
            return fate
        if found is not None:
            self.records.outbox.caught_up(found)
            self._runtime.count("outbound.told_anew")
        if self.records.sender.room.wants_snapshot:
            self._wish.want("outbox")
        return Fate(record=number)

    def _is_news(self, number: int, unit: Unit, message: Envelope) -> bool:
        """Whether a round that runs again after a restart tells something else than its first run did.

        A sensor has read anew by then: both readings were taken, and both are told. What an envelope set off
        is told once, whatever it is by now.
        """
        is_own = unit.cause is not None and unit.cause.peer == self._runtime.own_peer
        is_again = is_own and unit.kind == envelope.NONE and self.records.outbox.is_ahead(number)
        record = self.records.sender.record(number) if is_again else None
        if record is None:
            return False
        told = envelope.decode(record.encoded, self._runtime.config.caps)
        if record.body_name != self._name_of(unit.body):
            return True
        return not unit.body and list(told.fills) != list(message.fills)

    def _no_room(self, unit: Unit, error: OutboxFullError) -> Fate | None:
        """A unit waits where a snapshot makes room, or its peer, which is up, or for its deadline."""
        sender = self.records.sender
        if len(unit.body) + _size(unit) <= sender.room.max_bytes:
            if sender.room.any_settled:
                self._wish.want("outbox full")
                return None
            if unit.deadline_ns or (sender.is_up(unit.peer) and self._peers.is_up(unit.peer)):
                return None
        return Fate(lost=f"{error.what}: {error.hint}")

    def _name_of(self, body: bytes) -> BodyName:
        """The name of a body; that of the last one is kept, because a fan-out asks for it once per peer."""
        if body is not self._named[0]:
            self._named = body, name_of(body) if body else NO_BODY
        return self._named[1]

    def resume(self, now_ns: int) -> Iterator[tuple[Unit, Fate]]:
        """Takes what waited for room, and tells what became of each; the caller takes them all."""
        self._room = False
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        held_up: set[PeerId] = set()  # what waits for one peer leaves in order
        for unit in waiting:
            yield from self._try(unit, now_ns, held_up)

    def publishable(self, now_ns: int) -> Iterator[Outgoing]:
        """The envelopes that are on disk and may leave. The caller takes them all."""
        ready = self.records.needs_snapshot.ready
        while ready:
            outgoing = self.records.publish(ready.pop(0), now_ns)
            if outgoing is not None:  # else it has expired, or nobody waits for it any more
                self._runtime.count("wire.sent")
                self._runtime.count("wire.sent_bytes", len(outgoing.body) + len(outgoing.payload))
                yield outgoing

    # --- peers and what comes back -----------------------------------------------------------------------

    def peer_up(self, peer: PeerId) -> None:
        """A peer has come up, or answers again."""
        if not self.quiet:
            self.records.peer_up(peer)

    def peer_down(self, peer: PeerId) -> None:
        """A peer has gone down, or does not answer. One that is there is asked on for its marks: it may have
        nothing else to say, and wait for what waits for it.
        """
        if not (self.quiet or self._peers.presences.is_present(peer)):
            self.records.peer_down(peer)

    def acknowledged(self, peer: PeerId, acks: Sequence[Ack]) -> None:
        """The peer acknowledges durable numbers; counts the acks that are of nothing here."""
        if acks:
            self.records.acknowledged(peer, acks)

    def needs_row(self, name: int | BodyName) -> bool:
        """Whether a record needs the row, or the body, of that name: one that is not settled, or that what
        runs again after a restart is to find.
        """
        if isinstance(name, BodyName):
            return self.records.outbox.needs_body(name)
        return self.records.is_open(name) or self.records.outbox.is_ahead(name)

    def snapshot_written(self, may_run: Callable[[Cause], bool]) -> list[OutboxName]:
        """A snapshot is on disk; names the rows of the outbox that may go, and bodies."""
        gone = self.records.snapshot_written(may_run)
        self._room = bool(gone and self.waiting)
        return gone

    # --- restarts -------------------------------------------------------------------------------------

    def adopt(
        self,
        rows: Iterable[bytes],
        now_ns: int,
        wall_ns: int,
        awaits: Callable[[int], bool],
        queued: Iterable[Unit],
    ) -> list[tuple[int, int]]:
        """Takes the rows on disk; see `Records.adopt`. Nothing is taken where nothing is kept.

        A request that a snapshot has among those that are `queued` may have been written down after it.
        """
        if self.quiet:
            return []
        asks = self.records.adopt(rows, now_ns, wall_ns, awaits)
        if missing := missed(self.records.sender.missing, self._over):
            self._runtime.count("outbound.missing", len(missing))
            self._runtime.emit(steps.RecordsMissing(missing))
        waiting = [unit for unit in queued if unit.to is not None]
        for req_id, _ in asks:
            for unit in waiting:
                unit.forget(req_id)
        return asks

    def save(self) -> dict[str, Any]:
        """What waits for room, and what is known of records, as plain values; `restore` takes them."""
        if self.quiet:
            return {}
        saved = self.records.save()
        over = [number for number in saved["flows"][2] if self.records.outbox.settled(number)]
        return {"waiting": [unit.save() for unit in self.waiting], **saved, "over": over}

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave. What was being written is asked for again."""
        if self.quiet or "flows" not in data:  # this node keeps nothing, or the one that wrote did not
            return
        self.waiting.extend(Unit.restored(row, shift) for row in data["waiting"])
        self.records.restore(data, shift)
        self._over = data.get("over")  # older runtimes did not tell, and then nothing is missed
