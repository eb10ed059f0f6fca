"""Durable envelopes on their way out (semantics §6 "Durable"; docs/design/durability.md).

    unit ──room, number──► PERSISTING ──persisted──► published, repeated until acknowledged or expired
      │                        ▲  │ └─ a request ─► NEEDS SNAPSHOT ──snapshot written──► published
      └─ no room: WAITING ─────┘  └─ not persisted: asked for again after a back-off

Nothing is published before its record is on disk, and a request not before a snapshot holds the execution
that asks: a node that comes back would not know what the answers are for. What ran before a crash and runs
again after it finds the number that its envelope went out under (`Outbox.find`), and sends nothing new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bb_edge.engine import steps
from bb_edge.engine.net.until_snapshot import UntilSnapshot
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import Cause, Outbox, OutboxError, OutboxRecord

if TYPE_CHECKING:
    from bb_edge.engine.net.outgoing import Unit
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.wire.delivery import Links

RETRY_NS = 1_000_000_000
RETRY_LONGEST_NS = 64_000_000_000


class Doors(Protocol):
    """What the outbound side does for its durable half."""

    def publish(self, peer: PeerId, data: bytes, expires_in_ns: int) -> None:
        """Hands an envelope out; `expires_in_ns` is how long it is worth delivering, 0: for ever."""

    def too_large(self, unit: Unit, size: int) -> bool:
        """Whether the peer would refuse it; it is lost then."""

    def asked(self, unit: Unit, key: EnvelopeKey) -> None:
        """The envelope of a unit has its number."""

    def lost(self, unit: Unit, reason: str) -> None:
        """The unit never leaves."""


@dataclass(slots=True)
class Writing:
    """A record that the driver was asked to write."""

    record: OutboxRecord
    is_request: bool
    retry_ns: int = RETRY_NS


class DurableSends:
    """The durable half of what leaves; every queue of it is bounded by the outbox or the outbound queue."""

    def __init__(self, engine: Scheduler, links: Links, outbox: Outbox, doors: Doors) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._links = links
        self.outbox = outbox
        self._doors = doors
        self.waiting: deque[Unit] = deque()  # for room in the peer's window, or in the outbox
        self.writing: dict[int, Writing] = {}
        self.needs_snapshot: UntilSnapshot[EnvelopeKey] = UntilSnapshot()  # requests
        self._ready = self.needs_snapshot.ready  # all that is on disk, to be published in the next poll
        self._room = False  # a snapshot has made some, for what waits
        self.next_token = 1
        self.snapshot_wanted = False
        engine.runtime.callbacks.register("outbox.retry", self._retry)

    @property
    def busy(self) -> bool:
        """Whether the next poll has something to publish."""
        return self._room or bool(self._ready)

    # --- sending --------------------------------------------------------------------------------------

    def send(self, unit: Unit, now_ns: int) -> None:
        """Takes a unit: it leaves once, and not before it is on disk."""
        if unit.deadline_ns and unit.deadline_ns <= now_ns:
            self._runtime.count("deadlines.expired")
        elif any(other.peer == unit.peer for other in self.waiting) or not self._begin(unit, now_ns):
            self._wait(unit)  # behind what came before

    def _begin(self, unit: Unit, now_ns: int) -> bool:
        """Numbers the envelope and asks the driver to write it; False, with nothing changed, without room."""
        links, engine = self._links, self._engine
        is_request = unit.kind == envelope.REQUEST
        # A request that runs again has another id: the answers to the old one would find nobody.
        cause = None if is_request else unit.cause
        if cause is not None and self.outbox.find(unit.peer, cause, unit.wire_id) is not None:
            engine.runtime.count("outbound.reused")
            return True
        if not links.durable_room(unit.peer):
            return False
        remaining = unit.deadline_ns - now_ns if unit.deadline_ns else 0
        made = Envelope(
            fills=unit.fills, kind=unit.kind, wire_req_id=unit.wire_req_id, remaining_deadline_ns=remaining
        )
        try:
            key = links.stamp(unit.peer, made, now_ns, durable=True, deadline_ns=unit.deadline_ns)
        except DeliveryError:
            return False
        data = envelope.encode(made)
        if self._doors.too_large(unit, len(data)):
            links.cancel(key)
            return True
        expires = unit.deadline_ns + engine.runtime.clock_offset_ns if unit.deadline_ns else 0
        record = OutboxRecord(key, data, unit.wire_id, cause, expires)
        try:
            links.sent(unit.peer, key, data, armed=False)
            self.outbox.add(record)
        except (DeliveryError, OutboxError):
            links.cancel(key)
            if self.outbox.any_settled:
                self.want_snapshot("outbox full")
            return False
        self._doors.asked(unit, key)
        self._write(Writing(record, is_request))
        if self.outbox.wants_snapshot:
            self.want_snapshot("outbox")
        return True

    def _write(self, writing: Writing) -> None:
        token = self.next_token
        self.next_token += 1
        self.writing[token] = writing
        self._ask(token, writing)

    def _ask(self, token: int, writing: Writing) -> None:
        self._runtime.count("outbound.persisting")
        record = writing.record
        self._runtime.emit(steps.PersistOutbox(token, record.key.peer, record.to_bytes()))

    def _wait(self, unit: Unit) -> None:
        if len(self.waiting) >= self._runtime.config.outbound_queue:
            self._doors.lost(unit, "too many durable envelopes wait")
            return
        self._runtime.count("outbound.waiting")
        self.waiting.append(unit)

    def flush(self, now_ns: int) -> None:
        """Publishes what is on disk, and takes what waited for room."""
        self._room = False
        if self.waiting:
            waiting, self.waiting = self.waiting, deque()
            held_up: set[PeerId] = set()  # what waits for one peer leaves in order
            for unit in waiting:
                if unit.deadline_ns and unit.deadline_ns <= now_ns:
                    self._runtime.count("deadlines.expired")
                elif unit.peer in held_up or not self._begin(unit, now_ns):
                    held_up.add(unit.peer)
                    self.waiting.append(unit)
        while self._ready:
            key = self._ready.popleft()
            found = self._links.publish(key, now_ns)
            if found is not None:  # else it has expired meanwhile, or nobody waits for it any more
                self._doors.publish(key.peer, *found)

    # --- the driver's answers -------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The record is on disk. A token that is none of ours is fine."""
        writing = self.writing.pop(token, None)
        if writing is None:
            return
        key = writing.record.key
        if writing.is_request:
            self.needs_snapshot.add(key)
            self.want_snapshot("a durable request")
        else:
            self._ready.append(key)

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
        for key in keys:
            self.outbox.settle(key)
            self.needs_snapshot.drop(key)

    # --- snapshots ------------------------------------------------------------------------------------

    def want_snapshot(self, reason: str) -> None:
        """Asks the driver for a snapshot, once until it is written."""
        if not self.snapshot_wanted:
            self.snapshot_wanted = True
            self._runtime.emit(steps.SnapshotWanted(reason))

    def snapshot_taken(self) -> None:
        """The node is being written down: what asks is in it."""
        self.needs_snapshot.taken()

    def snapshot_written(self, may_run: Callable[[Cause], bool]) -> list[EnvelopeKey]:
        """The snapshot is on disk: requests leave; names the records that may go, as of the outbox."""
        self.snapshot_wanted = False
        self.needs_snapshot.written()
        if self.needs_snapshot.waiting:
            self.want_snapshot("a durable request")
        gone = self.outbox.snapshot_taken(may_run)
        self._room = bool(gone and self.waiting)
        return gone

    # --- restart --------------------------------------------------------------------------------------

    def write_again(self, token: int, writing: Writing) -> None:
        """A record that a snapshot brings and that was not on disk when it was taken."""
        self.outbox.add(writing.record)
        self.writing[token] = writing
        self._ask(token, writing)

    def adopt(self, record: OutboxRecord, now_ns: int, wall_ns: int, answers_awaited: bool) -> None:
        """Takes a record over from disk. It is due at once, unless it has expired or nobody waits for the
        answers to it.
        """
        self.outbox.add(record, ahead=True)
        limited, remaining = record.expires_wall_ns > 0, record.expires_wall_ns - wall_ns
        over = limited and remaining <= 0
        expires_ns = now_ns + remaining if limited and not over else 0
        key = record.key
        gone = over or not answers_awaited
        self._links.adopt(key.peer, key.epoch, key.seq, record.encoded, now_ns, expires_ns, gone)
        if gone:
            self.outbox.settle(key)
