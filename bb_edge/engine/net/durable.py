"""Durable envelopes on their way out (docs/design/durability.md).

    unit ──room, number──► PERSISTING ──persisted──► published, repeated until acknowledged or expired
      │                        ▲  │ └─ a request ─► NEEDS SNAPSHOT ──snapshot written──► published
      └─ no room: WAITING ─────┘  └─ not persisted: asked for again after a back-off

Nothing is published before its record is on disk, and a request not before a snapshot holds the execution
that asks: a node that comes back would not know what the answers are for. What ran before a crash and runs
again after it finds the number that its envelope went out under (`Outbox.find`), and sends nothing new.

`Durable` publishes and loses nothing by itself: it says what became of a unit (`Fate`), and `Outgoing`, which
holds it, acts on that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bb_edge.engine import steps
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import Unit
from bb_edge.engine.net.until_snapshot import SnapshotWish, UntilSnapshot
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.bodies import NO_BODY, BodyName, shelved
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey, Links
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import Cause, Outbox, OutboxError, OutboxRecord, name_of

NOT_SENT = "not sent before its deadline: what is not acknowledged yet, or not on disk, leaves no room"
RECORD_BYTES = 128
"""About the bytes of an envelope beside its payloads: addresses of sites, numbers, acknowledgements."""
RETRY_NS = 1_000_000_000
RETRY_LONGEST_NS = 64_000_000_000


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a durable unit: it has a number now, is lost, or neither, and nothing is to be done."""

    number: EnvelopeKey | None = None
    lost: str = ""
    too_large: bool = False


_NOTHING_TO_DO: Final = Fate()


def _size(unit: Unit) -> int:
    """About the bytes of the unit's envelope behind its body."""
    return RECORD_BYTES if unit.body else RECORD_BYTES + sum(len(fill.payload) for fill in unit.fills)


@dataclass(slots=True)
class Writing:
    """A record that the driver was asked to write."""

    record: OutboxRecord
    is_request: bool
    retry_ns: int = RETRY_NS


@dataclass(slots=True, eq=False)
class Durable:
    """The durable half of what leaves; every queue of it is bounded by the outbox or the outbound queue.

    `quiet` says that the driver keeps nothing on disk: then units that want it are sent like any other.
    """

    _runtime: Runtime
    _links: Links
    _peers: PeerStates
    outbox: Outbox
    _wish: SnapshotWish
    quiet: bool = field(init=False)
    needs_snapshot: UntilSnapshot[EnvelopeKey] = field(init=False)
    waiting: deque[Unit] = field(default_factory=deque)  # for room in the peer's window, or in the outbox
    writing: dict[int, Writing] = field(default_factory=dict)
    _room: bool = False  # a snapshot has made some, for what waits
    _next_token: int = 1
    _named: tuple[bytes, BodyName] = (b"", NO_BODY)  # the last body, and its name
    _orphans: set[BodyName] = field(default_factory=set)  # bodies on disk that no record names

    def __post_init__(self) -> None:
        self.quiet = not self._wish.kept
        self.needs_snapshot = self._wish.until("a durable request")
        self._runtime.callbacks.register("outbox.retry", self._retry)

    @property
    def busy(self) -> bool:
        """Whether the next poll has something to publish."""
        return self._room or bool(self.needs_snapshot.ready)

    # --- sending --------------------------------------------------------------------------------------

    def send(self, unit: Unit, now_ns: int) -> Iterator[tuple[Unit, Fate]]:
        """Takes a unit: it leaves once, and not before it is on disk. Tells what became of it, or of those
        that it is for; the caller takes them all.
        """
        if unit.deadline_ns and unit.deadline_ns <= now_ns:
            self._runtime.count("deadlines.expired")
            return
        if not any(other.peer == unit.peer and other.to is None for other in self.waiting):
            yield from self._try(unit, now_ns, set())
        else:
            self.waiting.append(unit)
        if self.waiting and self.waiting[-1] is unit:
            if len(self.waiting) > self._runtime.config.outbound_queue:
                self.waiting.pop()
                yield unit, Fate(lost="too many durable envelopes wait")
            else:
                self._runtime.count("outbound.waiting")

    def _try(self, unit: Unit, now_ns: int, held_up: set[PeerId]) -> Iterator[tuple[Unit, Fate]]:
        """Begins a unit, or those that it is for; what finds no room waits, and holds its peer up."""
        if unit.to is None:
            if unit.deadline_ns and unit.deadline_ns <= now_ns:
                self._runtime.count("deadlines.expired")
                yield unit, Fate(lost=NOT_SENT)
                return
            fate = None if unit.peer in held_up else self._begin(unit, now_ns)
            if fate is None:
                held_up.add(unit.peer)
                self.waiting.append(unit)
            else:
                yield unit, fate
            return
        for number, peer in tuple(unit.to.items()):
            if not self._fits(_size(unit), unit.body):
                break
            alone = unit.alone(number, peer)
            fate = None if peer in held_up else self._begin(alone, now_ns)
            if fate is not None:
                del unit.to[number]
                yield alone, fate
        if unit.to:
            self.waiting.append(unit)

    def _fits(self, size: int, body: bytes) -> bool:
        """Whether the outbox has room for one more record like this."""
        if self.outbox.has_room(size, body):
            return True
        if self.outbox.any_settled:
            self._wish.want("outbox full")
        return False

    def _begin(self, unit: Unit, now_ns: int) -> Fate | None:
        """Numbers the envelope and asks the driver to write it; None, with nothing changed, without room."""
        links = self._links
        is_request = unit.kind == envelope.REQUEST
        # A request that runs again has another id: the answers to the old one would find nobody.
        cause = None if is_request else unit.cause
        if cause is not None and self.outbox.find(unit.peer, cause, unit.wire_id) is not None:
            self._runtime.count("outbound.reused")
            return _NOTHING_TO_DO
        size, body = _size(unit), unit.body
        if not links.durable_room(unit.peer) or not self._fits(size, body):
            return None
        remaining = unit.deadline_ns - now_ns if unit.deadline_ns else 0
        message = Envelope(unit.fills, unit.kind, unit.wire_req_id, remaining, failure=unit.failure)
        try:
            until = unit.deadline_ns
            key = links.stamp(
                unit.peer, message, now_ns, durable=True, deadline_ns=until, size=size, body=body
            )
        except DeliveryError:
            return None
        data = envelope.encode(message, not body)
        size, limits = len(body) + len(data), self._peers.limits_of(unit.peer)
        if size > limits.total_bytes:
            links.cancel(key)
            return Fate(lost=limits.too_large(size), too_large=True)
        expires = unit.deadline_ns + self._runtime.clock_offset_ns if unit.deadline_ns else 0
        record = OutboxRecord(key, data, unit.wire_id, cause, expires, body, self._name_of(body))
        links.sent(unit.peer, key, data, armed=False, body=body)
        try:
            self.outbox.add(record)
        except OutboxError:
            links.cancel(key)
            return None
        token = self._next_token
        self._next_token += 1
        writing = self.writing[token] = Writing(record, is_request)
        self._ask(token, writing)
        if self.outbox.wants_snapshot:
            self._wish.want("outbox")
        return Fate(number=key)

    def _name_of(self, body: bytes) -> BodyName:
        """The name of a body; that of the last one is kept, because a fan-out asks for it once per peer."""
        if body is not self._named[0]:
            self._named = body, name_of(body) if body else NO_BODY
        return self._named[1]

    def _ask(self, token: int, writing: Writing) -> None:
        self._runtime.count("outbound.persisting")
        record = writing.record
        self._runtime.emit(
            steps.PersistOutbox(token, record.key.peer, record.to_bytes(), record.body, record.body_name)
        )

    def resume(self, now_ns: int) -> Iterator[tuple[Unit, Fate]]:
        """Takes what waited for room, and tells what became of each; the caller takes them all."""
        self._room = False
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, deque()
        held_up: set[PeerId] = set()  # what waits for one peer leaves in order
        for unit in waiting:
            yield from self._try(unit, now_ns, held_up)

    def publishable(self, now_ns: int) -> Iterator[tuple[PeerId, bytes, bytes, int]]:
        """The envelopes that are on disk and may leave: (peer, body, the rest of the bytes, how long they are
        worth delivering).

        The time is 0 where an envelope is worth delivering for ever. The caller takes them all.
        """
        ready = self.needs_snapshot.ready
        while ready:
            key = ready.popleft()
            envelope_left = self._links.publish(key, now_ns)
            if envelope_left is not None:  # else it has expired, or nobody waits for it any more
                yield (key.peer, *envelope_left)

    # --- the driver's answers -------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The record is on disk. A token that is none of ours is fine."""
        writing = self.writing.pop(token, None)
        if writing is None:
            return
        if writing.is_request:
            self.needs_snapshot.add(writing.record.key)
        else:
            self.needs_snapshot.pass_by(writing.record.key)

    def persist_failed(self, token: int, error: BaseException) -> None:
        """The record could not be written: it is asked for again later."""
        writing = self.writing.get(token)
        if writing is None:
            return
        self._runtime.count("storage.failed")
        self._runtime.emit(steps.StorageFailed("outbox", error))
        self._runtime.timers.at(self._runtime.now_ns + writing.retry_ns, self._retry, token, reserved=True)
        writing.retry_ns = min(2 * writing.retry_ns, RETRY_LONGEST_NS)

    def _retry(self, _now_ns: int, token: int) -> None:
        writing = self.writing.get(token)
        if writing is None:
            return
        if self._links.is_pending(writing.record.key):
            self._ask(token, writing)
        else:  # expired, and never written
            del self.writing[token]
            self.outbox.remove(writing.record.key)

    def settled(self, keys: Iterable[EnvelopeKey]) -> None:
        """These are acknowledged, expired, or nobody waits for them any more."""
        if self.quiet:
            return
        for key in keys:
            self.outbox.settle(key)
            self.needs_snapshot.drop(key)

    def snapshot_written(self, may_run: Callable[[Cause], bool]) -> list[EnvelopeKey | BodyName]:
        """A snapshot is on disk; names the records that may go, and bodies. `may_run` is as in `Outbox`."""
        gone: list[EnvelopeKey | BodyName] = [*self.outbox.snapshot_taken(may_run)]
        gone += self.outbox.take_free_bodies(self._orphans)
        self._orphans = set()
        self._room = bool(gone and self.waiting)
        return gone

    def adopt(
        self,
        records: Iterable[OutboxRecord],
        now_ns: int,
        wall_ns: int,
        awaits: Callable[[int], bool],
        orphans: Iterable[BodyName] = (),
    ) -> list[tuple[int, EnvelopeKey]]:
        """Takes records over from disk. Each is due at once, unless it has expired or `awaits` says that
        nobody waits for the answers to its request id. Gives the requests that are repeated.

        What the links hold and the disk does not is not sent again. Nothing is taken where nothing is kept.
        """
        if self.quiet:
            return []
        self._orphans.update(orphans)
        asks: list[tuple[int, EnvelopeKey]] = []
        for record in records:
            message = envelope.decode(record.encoded, self._runtime.config.caps)  # the body has fills alone
            is_request = message.kind == envelope.REQUEST
            awaited = not is_request or awaits(message.wire_req_id)
            self._adopt(record, now_ns, wall_ns, awaited)
            if is_request and awaited:
                asks.append((message.wire_req_id, record.key))
        for key in self._links.durable_keys():
            if key not in self.outbox:
                self._links.cancel(key)
        return asks

    def _adopt(self, record: OutboxRecord, now_ns: int, wall_ns: int, awaited: bool) -> None:
        self.outbox.add(record, ahead=True)
        limited, remaining = record.expires_wall_ns > 0, record.expires_wall_ns - wall_ns
        over = limited and remaining <= 0
        expires_ns = now_ns + remaining if limited and not over else 0
        key = record.key
        gone = over or not awaited
        self._links.adopt(key.peer, key.epoch, key.seq, record.encoded, now_ns, expires_ns, gone, record.body)
        if gone:
            self.outbox.settle(key)

    def save(self) -> dict[str, Any]:
        """What waits for room, and what is being written, as plain values; `restore` takes them."""
        if self.quiet:
            return {}
        return {
            "waiting": [unit.save() for unit in self.waiting],
            "writing": [
                [token, w.record.to_bytes(), w.is_request, w.retry_ns, shelved(w.record.body)]
                for token, w in self.writing.items()
            ],
            "next_token": self._next_token,
        }

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave. What was being written is asked for again."""
        if self.quiet or "writing" not in data:  # this node keeps nothing, or the one that wrote did not
            return
        self.waiting.extend(Unit.restored(row, shift) for row in data["waiting"])
        for token, row, is_request, retry_ns, body in data["writing"]:
            record = replace(OutboxRecord.from_bytes(row), body=shift.body(body))
            self.outbox.add(record)
            writing = self.writing[token] = Writing(record, is_request, retry_ns)
            self._ask(token, writing)
        self._next_token = data["next_token"]
