"""What leaves: units of wire ops, packed into envelopes in phase 8 (semantics §6 "Sending", "Once")."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bb_edge.engine import steps
from bb_edge.engine.net.durable import DurableSends
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.caps import UNTOLD_LIMITS, PeerLimits
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.outbox import Cause, Outbox

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.wire.delivery import Links


@dataclass(slots=True)
class Unit:
    """Fills for one peer from one firing of one op.

    `group` lets plain sends of one burst share an envelope. `wire_id` and `cause` (the durable envelope, or
    the round, that the sending execution came from) tell a durable one from its repetition after a restart.
    """

    peer: PeerId
    fills: Sequence[Fill]
    kind: int
    wire_req_id: int
    deadline_ns: int
    durable: bool
    group: tuple[object, ...] | None
    wire_id: int = 0
    cause: Cause | None = None


class Outbound:
    """The queue between wire ops and the driver."""

    def __init__(self, engine: Scheduler, links: Links, local: Callable[[bytes], bool]) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._links = links
        self._local = local
        self.units: deque[Unit] = deque()
        # Peers that an envelope has told our addresses, the one told longest ago first.
        self._greeted: dict[PeerId, None] = {}
        # Destination suffix -> largest planned payload, of the ops that send there (0: unknown).
        self.planned: dict[bytes, int] = {}
        self._own_limits = PeerLimits.of(engine.runtime.config.caps)
        self._asks: dict[int, EnvelopeKey] = {}  # open request id -> its envelope, while it may be repeated
        # None on a node whose driver keeps nothing on disk.
        self.durable: DurableSends | None = None
        engine.runtime.callbacks.register("reply.put_off", self._put_off_is_over)
        # Told (request id, peer) of each request that could not be sent.
        self.on_lost: Callable[[int, PeerId], None] = _nothing_with

    def keep_durable(self, outbox: Outbox) -> DurableSends:
        """Durable units go through an outbox on disk from now on; called once, at install."""
        self.durable = DurableSends(self._engine, self._links, outbox, self)
        return self.durable

    def publish(self, peer: PeerId, data: bytes, expires_in_ns: int) -> None:
        self._runtime.count("wire.sent")
        self._runtime.count("wire.sent_bytes", len(data))
        if peer == self._runtime.own_peer:
            self._local(data)  # where it finds no place it is repeated, as to any peer
        else:
            self._runtime.emit(steps.SendEnvelope(peer, data, expires_in_ns, True, False))

    def settled(self, keys: Iterable[EnvelopeKey]) -> None:
        """A peer has acknowledged these."""
        if self.durable is not None:
            self.durable.settled(keys)

    @property
    def waits(self) -> bool:
        """Whether the next poll has something to send."""
        return bool(self.units) or (self.durable is not None and self.durable.busy)

    def __len__(self) -> int:
        return len(self.units)

    def add(self, unit: Unit, ctx: Any) -> bool:
        """Queues a unit of the op that runs, as `queue` does."""
        unit.cause = ctx.execution.cause
        return self.queue(unit, ctx.op.target, ctx.execution.id, ctx.op.spec.name)

    def queue(self, unit: Unit, target: str, execution: int, where: str) -> bool:
        """Queues a unit. False, with a PeerResolveFailed, where the address book does not know the peer."""
        engine = self._engine
        if unit.peer != self._runtime.own_peer and engine.neighbours.address_book.lookup(unit.peer) is None:
            self._runtime.count("wire.unresolved")
            self._runtime.emit(steps.PeerResolveFailed(unit.peer, target, execution, where))
            return False
        if unit.kind == envelope.RESPONSE and self._put_off(unit):
            return True
        self._append(unit)
        return True

    def _append(self, unit: Unit) -> None:
        if len(self.units) >= self._runtime.config.outbound_queue:
            self._drop_one()
        self.units.append(unit)

    def _put_off(self, unit: Unit) -> bool:
        """Replies pass no Tx gate: where the peer has asked for patience they wait as long (semantics §6)."""
        engine = self._engine
        until = engine.neighbours.patience_until(unit.peer)
        if until <= self._runtime.now_ns or self._runtime.timers.full:
            return False
        self._runtime.count("outbound.put_off")
        self._runtime.timers.at(until, self._put_off_is_over, unit)
        return True

    def _put_off_is_over(self, _now_ns: int, unit: Unit) -> None:
        self._append(unit)

    def add_notice(self, unit: Unit) -> None:
        """Queues a unit of the engine's own, which no op stands behind; dropped where there is no room."""
        if len(self.units) < self._runtime.config.outbound_queue:
            self.units.append(unit)

    def forget_ask(self, req_id: int) -> None:
        """Nobody waits for the answer any more: the request is not repeated."""
        key = self._asks.pop(req_id, None)
        if key is not None:
            self._links.cancel(key)
            self.settled((key,))

    def _drop_one(self) -> None:
        """Makes place: the oldest best-effort unit goes, or the oldest of all where all are durable."""
        index = next((i for i, u in enumerate(self.units) if not u.durable), 0)
        dropped = self.units[index]
        del self.units[index]
        self.lost(dropped, "outbound queue full")

    def _limits(self, peer: PeerId) -> PeerLimits:
        """What a peer takes: as it says, as the node itself does, or whatever any node does."""
        engine = self._engine
        if peer == self._runtime.own_peer:
            return self._own_limits
        found: PeerLimits = engine.neighbours.limits.get(peer, UNTOLD_LIMITS)
        return found

    def lost(self, unit: Unit, reason: str, too_large: bool = False) -> None:
        """A unit that never leaves: said aloud, and a request does not wait for its answer."""
        count = self._runtime.count
        count("outbound.dropped")
        if too_large:
            count("outbound.too_large")
        self._runtime.emit(steps.OutboundDropped(unit.peer, reason))
        if unit.kind == envelope.REQUEST:
            self.on_lost(unit.wire_req_id, unit.peer)

    def flush(self, now_ns: int) -> None:
        """Phase 8: envelopes for all queued units, then what is due for repetition or acknowledgement."""
        durable = self.durable
        if durable is not None:
            durable.flush(now_ns)  # what waited goes before what comes now
        if self.units:
            for unit in self._joined():
                if durable is not None and unit.durable:
                    durable.send(unit, now_ns)
                else:
                    self._send(unit, now_ns)
        if self._links.quiet:
            return
        due_now = self._links.due(now_ns)
        if expired := self._links.take_expired():
            self._runtime.count("outbound.expired", len(expired))
            self.settled(expired)
        for due in due_now:
            self._runtime.count("wire.resent" if due.key is not None else "wire.acks_alone")
            if due.peer == self._runtime.own_peer:
                self._local(due.payload)
                continue
            self._runtime.emit(
                steps.SendEnvelope(due.peer, due.payload, due.expires_in_ns, due.durable, due.resent)
            )

    def _joined(self) -> list[Unit]:
        """All queued units in order, those that may travel together made one (semantics §6 "Sending").

        Those that their peer does not take are dropped.
        """
        own = self._own_limits
        found: list[Unit] = []
        open_groups: dict[object, tuple[Unit, int]] = {}
        for unit in self.units:
            # Before it is joined: what is too large must not take its siblings along.
            if why := self._limits(unit.peer).refuse(unit.fills, self.planned):
                self.lost(unit, why, too_large=True)
                continue
            if unit.group is None:
                found.append(unit)
                continue
            key = (unit.peer, unit.group, unit.deadline_ns, unit.durable, unit.cause)
            size = sum(len(fill.payload) for fill in unit.fills)
            first, first_size = open_groups.get(key, (None, 0))
            fits = False
            if first is not None:
                limits = self._engine.neighbours.limits.get(unit.peer, own)
                together = len(first.fills) + len(unit.fills)
                fits = together <= limits.fills and first_size + size <= limits.total_bytes // 2
            if first is not None and fits:
                first.fills = [*first.fills, *unit.fills]
                open_groups[key] = (first, first_size + size)
            else:
                found.append(unit)
                open_groups[key] = (unit, size)
        self.units.clear()
        return found

    def _send(self, unit: Unit, now_ns: int) -> None:
        remaining = 0
        if unit.deadline_ns:
            remaining = unit.deadline_ns - now_ns
            if remaining <= 0:
                self._runtime.count("deadlines.expired")
                return
        message = Envelope(
            fills=unit.fills, kind=unit.kind, wire_req_id=unit.wire_req_id, remaining_deadline_ns=remaining
        )
        to_self = unit.peer == self._runtime.own_peer
        greets = bool(self._runtime.local_addresses) and unit.peer not in self._greeted
        if greets:
            message.src_addresses = self._runtime.local_addresses
        resend = unit.kind != envelope.NONE and not to_self
        try:
            key = self._links.stamp(unit.peer, message, now_ns, resend=resend, deadline_ns=unit.deadline_ns)
        except DeliveryError as error:
            self.lost(unit, error.what)
            return
        data = envelope.encode(message)
        if greets and len(data) > self._limits(unit.peer).total_bytes:
            greets = False  # what it carries matters more; a smaller envelope tells the addresses
            message.src_addresses = ()
            data = envelope.encode(message)
        if self.too_large(unit, len(data)):
            if resend:
                self._links.cancel(key)
            return
        self._runtime.count("wire.sent")
        self._runtime.count("wire.sent_bytes", len(data))
        if to_self:
            if not self._local(data):
                self.lost(unit, "own ingress queue full")
                return
        else:
            if resend:
                self._keep(key, data)
                self.asked(unit, key)
            self._runtime.emit(steps.SendEnvelope(unit.peer, data, remaining, False, False))
        if greets:
            self._has_greeted(unit.peer)

    def _has_greeted(self, peer: PeerId) -> None:
        """Remembers that an envelope with our addresses has left for the peer."""
        if len(self._greeted) >= self._runtime.config.max_peers:
            del self._greeted[next(iter(self._greeted))]
        self._greeted[peer] = None

    def too_large(self, unit: Unit, size: int) -> bool:
        """Whether the peer would refuse an envelope of that size; it is lost then, and said so."""
        limit = self._limits(unit.peer).total_bytes
        if size > limit:
            self.lost(unit, f"an envelope of {size} bytes, the peer takes {limit}", too_large=True)
        return size > limit

    def asks_again(self, req_id: int, key: EnvelopeKey) -> None:
        """A durable request that was on disk: it ends with its cohort, as any other."""
        self._asks[req_id] = key

    def asked(self, unit: Unit, key: EnvelopeKey) -> None:
        """A request has its number: it is not repeated once nobody waits for the answer."""
        if unit.kind == envelope.REQUEST:
            self._asks[unit.wire_req_id] = key

    def _keep(self, key: EnvelopeKey, data: bytes) -> None:
        """Keeps the bytes for repetition; without room for them this one goes out once only, counted."""
        try:
            self._links.sent(key.peer, key, data)
        except DeliveryError:
            self._links.cancel(key)
            self._runtime.count("outbound.not_kept")


def _nothing_with(*_: object) -> None:
    return None
