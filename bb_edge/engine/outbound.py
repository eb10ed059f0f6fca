"""What leaves: units of wire ops, packed into envelopes in phase 8 (semantics §6 "Sending", "Once")."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey
from bb_edge.wire.envelope import Envelope, Fill

if TYPE_CHECKING:
    from bb_edge.engine.core import Engine
    from bb_edge.wire.delivery import Links


@dataclass(slots=True)
class Unit:
    """Fills for one peer from one firing of one op.

    `group` lets plain sends of one burst share an envelope.
    """

    peer: PeerId
    fills: Sequence[Fill]
    kind: int
    wire_req_id: int
    deadline_ns: int
    durable: bool
    group: tuple[object, ...] | None


class Outbound:
    """The queue between wire ops and the driver."""

    def __init__(self, engine: Engine, links: Links, local: Callable[[bytes], bool]) -> None:
        self._engine = engine
        self._links = links
        self._local = local
        self._units: deque[Unit] = deque()
        self._greeted: dict[PeerId, int] = {}  # peer -> version of our addresses that it has seen
        self._asks: dict[int, EnvelopeKey] = {}  # open request id -> its envelope, while it may be repeated
        self.addresses_version = 1

    def __len__(self) -> int:
        return len(self._units)

    def add(self, unit: Unit, ctx: Any) -> bool:
        """Queues a unit. False, with a PeerResolveFailed, where the address book does not know the peer."""
        engine = self._engine
        if unit.peer != engine.own_peer and engine.address_book.lookup(unit.peer) is None:
            engine.count("wire.unresolved")
            engine.emit(steps.PeerResolveFailed(unit.peer, ctx.op.target, ctx.execution.id, ctx.op.spec.name))
            return False
        if len(self._units) >= engine.config.outbound_queue:
            self._drop_one()
        self._units.append(unit)
        return True

    def add_notice(self, unit: Unit) -> None:
        """Queues a unit of the engine's own, which no op stands behind; dropped where there is no room."""
        if len(self._units) < self._engine.config.outbound_queue:
            self._units.append(unit)

    def forget_ask(self, req_id: int) -> None:
        """Nobody waits for the answer any more: the request is not repeated."""
        key = self._asks.pop(req_id, None)
        if key is not None:
            self._links.cancel(key)

    def _drop_one(self) -> None:
        """Makes place: the oldest best-effort unit goes, or the oldest of all where all are durable."""
        index = next((i for i, u in enumerate(self._units) if not u.durable), 0)
        dropped = self._units[index]
        del self._units[index]
        self._engine.count("outbound.dropped")
        self._engine.emit(steps.OutboundDropped(dropped.peer, "outbound queue full"))

    def flush(self, now_ns: int) -> None:
        """Phase 8: envelopes for all queued units, then what is due for repetition or acknowledgement."""
        while self._units:
            unit = self._units.popleft()
            fills = list(unit.fills)
            if unit.group is not None and self._units:
                fills += self._take_group(unit)
            self._send(unit, fills, now_ns)
        for due in self._links.due(now_ns):
            self._engine.count("wire.resent" if due.resent else "wire.acks_alone")
            self._engine.emit(
                steps.SendEnvelope(due.peer, due.payload, due.expires_in_ns, due.durable, due.resent)
            )

    def _take_group(self, first: Unit) -> list[Fill]:
        """The fills of further units that may travel in the same envelope."""
        found: list[Fill] = []
        rest: deque[Unit] = deque()
        room = self._engine.config.caps.fills - len(first.fills)
        for unit in self._units:
            same = (unit.peer, unit.group, unit.deadline_ns, unit.durable) == (
                first.peer,
                first.group,
                first.deadline_ns,
                first.durable,
            )
            if same and len(unit.fills) <= room:
                found += unit.fills
                room -= len(unit.fills)
            else:
                rest.append(unit)
        self._units = rest
        return found

    def _send(self, unit: Unit, fills: list[Fill], now_ns: int) -> None:
        engine = self._engine
        remaining = 0
        if unit.deadline_ns:
            remaining = unit.deadline_ns - now_ns
            if remaining <= 0:
                engine.count("deadlines.expired")
                return
        made = Envelope(
            fills=fills, kind=unit.kind, wire_req_id=unit.wire_req_id, remaining_deadline_ns=remaining
        )
        to_self = unit.peer == engine.own_peer
        if engine.local_addresses and self._greeted.get(unit.peer) != self.addresses_version:
            made.src_addresses = engine.local_addresses
            if len(self._greeted) >= engine.config.max_peers:
                self._greeted.pop(next(iter(self._greeted)))
            self._greeted[unit.peer] = self.addresses_version
        resend = (unit.kind != envelope.NONE or unit.durable) and not to_self
        try:
            key = self._links.stamp(
                unit.peer, made, now_ns, durable=unit.durable, resend=resend, deadline_ns=unit.deadline_ns
            )
        except DeliveryError as error:
            engine.count("outbound.dropped")
            engine.emit(steps.OutboundDropped(unit.peer, error.what))
            return
        data = envelope.encode(made)
        engine.count("wire.sent")
        engine.count("wire.sent_bytes", len(data))
        if to_self:
            if not self._local(data):
                engine.emit(steps.OutboundDropped(unit.peer, "own ingress queue full"))
            return
        if resend:
            self._keep(key, data)
            if unit.kind == envelope.REQUEST:
                self._asks[unit.wire_req_id] = key
        engine.emit(steps.SendEnvelope(unit.peer, data, remaining, unit.durable, False))

    def _keep(self, key: EnvelopeKey, data: bytes) -> None:
        """Keeps the bytes for repetition; without room for them this one goes out once only, counted."""
        try:
            self._links.sent(key.peer, key, data)
        except DeliveryError:
            self._links.cancel(key)
            self._engine.count("outbound.not_kept")
