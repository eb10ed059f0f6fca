"""What leaves: the units of wire ops and components, packed into envelopes at the end of a poll."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bb_edge.engine import steps
from bb_edge.engine.callbacks import Written
from bb_edge.engine.net.durable import Durable, Fate
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import Unit
from bb_edge.engine.plain import Shift
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey, Links
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.envelope_records import Failure, FailureCode
from bb_edge.wire.outbox import OutboxRecord

_UNIT = Written(lambda args: [args[0].save()], lambda plain, shift: (Unit.restored(plain[0], shift),))
"""How the argument of a reply that was put off is written."""


class Outgoing:
    """The queue between wire ops and the driver.

    `local` takes the envelopes that the node sends to itself; False where it has no place. A request that is
    never sent is a fact in `take_lost`: whoever asked must not wait for the answer.
    """

    def __init__(
        self,
        runtime: Runtime,
        links: Links,
        peers: PeerStates,
        durable: Durable,
        local: Callable[[bytes], bool],
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._peers = peers
        self._local = local
        self.durable = durable
        self.units: deque[Unit] = deque()
        self._max_units = runtime.config.outbound_queue
        # Peers that an envelope has told our addresses, the one told longest ago first.
        self._greeted: dict[PeerId, None] = {}
        # Destination suffix -> largest planned payload, of the ops that send there (0: unknown).
        self._planned: dict[bytes, int] = {}
        self._asks: dict[int, EnvelopeKey] = {}  # open request id -> its envelope, while it may be repeated
        self.lost: list[tuple[int, PeerId]] = []
        self._instead: list[Unit] = []  # failures, in place of replies that their askers do not take
        runtime.callbacks.register("reply.put_off", self._put_off_is_over, _UNIT)

    @property
    def waits(self) -> bool:
        """Whether the next poll has something to send."""
        return bool(self.units) or self.durable.busy

    def plan(self, suffix: bytes, payload_bytes: int) -> None:
        """An op sends payloads of that size to that suffix, says its plan."""
        self._planned[suffix] = max(self._planned.get(suffix, 0), payload_bytes)

    # --- queueing -------------------------------------------------------------------------------------

    def add(self, unit: Unit, execution: Execution, op: BoundOp) -> bool:
        """Queues a unit of the op that runs, as `queue` does."""
        unit.cause = execution.cause
        return self.queue(unit, op.target, execution.id, op.spec.name)

    def queue(self, unit: Unit, target: str, execution: int, where: str) -> bool:
        """Queues a unit. False, with a PeerResolveFailed, where the address book does not know the peer."""
        if not self._peers.knows(unit.peer):
            self._runtime.count("wire.unresolved")
            self._runtime.emit(steps.PeerResolveFailed(unit.peer, target, execution, where))
            return False
        if self._peers.imposed and unit.kind == envelope.RESPONSE and self._put_off(unit):
            return True
        self._append(unit)
        return True

    def notify(self, peer: PeerId, fill: Fill) -> None:
        """Queues a notice of the engine's own, which no op stands behind; dropped where there is no room."""
        if len(self.units) < self._max_units:
            self.units.append(Unit(peer, [fill]))

    def _drop_one(self) -> None:
        """Makes place: the oldest best-effort unit goes, or the oldest of all where all are durable."""
        index = next((i for i, u in enumerate(self.units) if not u.durable), 0)
        dropped = self.units[index]
        del self.units[index]
        self._lose(dropped, "outbound queue full")

    def _put_off(self, unit: Unit) -> bool:
        """Replies pass no Tx gate: where the peer has asked for patience they wait as long."""
        until = self._peers.patience_until(unit.peer)
        if until <= self._runtime.now_ns or self._runtime.timers.full:
            return False
        self._runtime.count("outbound.put_off")
        self._runtime.timers.at(until, self._put_off_is_over, unit)
        return True

    def _put_off_is_over(self, _now_ns: int, unit: Unit) -> None:
        self._append(unit)

    def _append(self, unit: Unit) -> None:
        if len(self.units) >= self._max_units:
            self._drop_one()
        self.units.append(unit)

    # --- requests -------------------------------------------------------------------------------------

    def take_lost(self, among: Container[int] | None = None) -> list[tuple[int, PeerId]]:
        """The requests that will never be sent, as (request id, peer); each is told once.

        `among` limits them to some request ids.
        """
        lost, self.lost = self.lost, []
        if among is None or not lost:
            return lost
        self.lost = [one for one in lost if one[0] not in among]
        return [one for one in lost if one[0] in among]

    def is_asking(self, req_id: int) -> bool:
        """Whether the request waits to leave, or for its acknowledgement."""
        key = self._asks.get(req_id)
        if key is not None:
            return self._links.is_pending(key)
        return any(unit.wire_req_id == req_id and unit.kind == envelope.REQUEST for unit in self.units)

    def forget_ask(self, req_id: int) -> None:
        """Nobody waits for the answer any more: the request is not repeated."""
        key = self._asks.pop(req_id, None)
        if key is not None:
            self._links.cancel(key)
            self.durable.settled((key,))

    def _lose(self, unit: Unit, reason: str, too_large: bool = False) -> None:
        """Reports a unit that never leaves."""
        count = self._runtime.count
        count("outbound.dropped")
        if too_large:
            count("outbound.too_large")
        self._runtime.emit(steps.OutboundDropped(unit.peer, reason))
        if unit.kind == envelope.REQUEST:
            self.lost.append((unit.wire_req_id, unit.peer))
        elif too_large and unit.kind == envelope.RESPONSE and self._peers.reads_failures(unit.peer):
            failure = Failure.of(FailureCode.TOO_LARGE, reason)
            self._instead.append(replace(unit, fills=(), body=b"", failure=failure))

    # --- sending --------------------------------------------------------------------------------------

    def flush(self, now_ns: int) -> None:
        """Sends envelopes for all queued units, then what is due for repetition or acknowledgement."""
        if not self.durable.quiet:
            for unit, fate in self.durable.resume(now_ns):  # what waited goes before what comes now
                self._follow(unit, fate)
            for peer, body, data, expires_in_ns in self.durable.publishable(now_ns):
                self._publish(peer, body, data, expires_in_ns)
        while self.units:
            for unit, limits in self._joined():
                taken = self.durable.send(unit, now_ns) if unit.durable else None
                if taken is None:
                    self._send(unit, limits, now_ns)
                else:
                    self._follow(unit, taken)
            self.units.extend(self._instead)
            self._instead.clear()
        if self._links.quiet:
            return
        due_now = self._links.due(now_ns)
        if self._links.expired:
            expired = self._links.take_expired()
            self._runtime.count("outbound.expired", len(expired))
            self.durable.settled(expired)
        for due in due_now:
            self._runtime.count("wire.resent" if due.key is not None else "wire.acks_alone")
            if due.peer == self._runtime.own_peer:
                self._local(due.body + due.payload)
                continue
            self._runtime.emit(
                steps.SendEnvelope(
                    due.peer, due.payload, due.expires_in_ns, due.durable, due.resent, due.body
                )
            )

    def _follow(self, unit: Unit, fate: Fate) -> None:
        if fate.number is not None:
            if unit.kind == envelope.REQUEST:
                self._asks[unit.wire_req_id] = fate.number
        elif fate.lost:
            self._lose(unit, fate.lost, fate.too_large)

    def _publish(self, peer: PeerId, body: bytes, data: bytes, expires_in_ns: int) -> None:
        """Hands out a durable envelope for the first time."""
        self._runtime.count("wire.sent")
        self._runtime.count("wire.sent_bytes", len(body) + len(data))
        if peer == self._runtime.own_peer:
            self._local(body + data)  # where it finds no place it is repeated, as to any peer
        else:
            self._runtime.emit(steps.SendEnvelope(peer, data, expires_in_ns, True, False, body))

    def _joined(self) -> list[tuple[Unit, PeerLimits]]:
        """All queued units in order, with what their peers take; those that may travel together are one.

        Those that their peer does not take are dropped.
        """
        joined: list[tuple[Unit, PeerLimits]] = []
        large: dict[tuple[int, int], _Joined] = {}  # by the identity of the two that it joins
        open_groups: dict[object, tuple[Unit, int]] = {}
        for unit in self.units:
            # Before it is joined: what is too large must not take its siblings along.
            limits = self._peers.limits_of(unit.peer)
            if _may_exceed(unit, limits) and (why := limits.refuse(unit.fills, self._planned)):
                self._lose(unit, why, too_large=True)
                continue
            if unit.group is None:
                joined.append((unit, limits))
                continue
            key = (unit.peer, unit.group, unit.deadline_ns, unit.durable, unit.cause)
            size = sum(len(fill.payload) for fill in unit.fills)
            first, first_size = open_groups.get(key, (None, 0))
            fits = False
            if first is not None:
                told = self._peers.limits_told(unit.peer)
                together = len(first.fills) + len(unit.fills)
                fits = together <= told.fills and first_size + size <= told.total_bytes // 2
            if first is not None and fits:
                if first.body or unit.body:
                    _join_large(first, unit, large)
                else:
                    first.fills = [*first.fills, *unit.fills]
                open_groups[key] = (first, first_size + size)
            else:
                joined.append((unit, limits))
                open_groups[key] = (unit, size)
        self.units.clear()
        return joined

    def _send(self, unit: Unit, limits: PeerLimits, now_ns: int) -> None:
        remaining = 0
        if unit.deadline_ns:
            remaining = unit.deadline_ns - now_ns
            if remaining <= 0:
                self._runtime.count("deadlines.expired")
                return
        message = Envelope(unit.fills, unit.kind, unit.wire_req_id, remaining, failure=unit.failure)
        to_self = unit.peer == self._runtime.own_peer
        greets = bool(self._runtime.local_addresses) and unit.peer not in self._greeted
        if greets:
            message.src_addresses = self._runtime.local_addresses
        resend = unit.kind != envelope.NONE and not to_self
        try:
            key = self._links.stamp(unit.peer, message, now_ns, resend=resend, deadline_ns=unit.deadline_ns)
        except DeliveryError as error:
            self._lose(unit, error.what)
            return
        body = unit.body
        data = envelope.encode(message, not body)
        size = len(body) + len(data)
        if greets and size > limits.total_bytes:
            greets = False  # what it carries matters more; a smaller envelope tells the addresses
            message.src_addresses = ()
            data = envelope.encode(message, not body)
            size = len(body) + len(data)
        if size > limits.total_bytes:
            self._lose(unit, limits.too_large(size), too_large=True)
            if resend:
                self._links.cancel(key)
            return
        self._runtime.count("wire.sent")
        self._runtime.count("wire.sent_bytes", size)
        if to_self:
            if not self._local(body + data):
                self._lose(unit, "own ingress queue full")
                return
        else:
            if resend:
                try:
                    self._links.sent(key.peer, key, data, body=body)
                except DeliveryError:  # no room to keep it for repetition: it goes out once only
                    self._links.cancel(key)
                    self._runtime.count("outbound.not_kept")
                if unit.kind == envelope.REQUEST:
                    self._asks[unit.wire_req_id] = key
            self._runtime.emit(steps.SendEnvelope(unit.peer, data, remaining, False, False, body))
        if greets:
            forget_oldest(self._greeted, self._runtime.config.max_peers)
            self._greeted[unit.peer] = None

    def adopt(
        self, records: Iterable[OutboxRecord], now_ns: int, wall_ns: int, awaits: Callable[[int], bool]
    ) -> None:
        """Takes the records of the outbox on disk, after a restart; see `Durable.adopt`."""
        self._asks.update(self.durable.adopt(records, now_ns, wall_ns, awaits))

    def save(self) -> dict[str, Any]:
        """All that waits to leave, as plain values; `restore` takes them."""
        return {"units": [unit.save() for unit in self.units], **self.durable.save()}

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave; deadlines move by `shift`."""
        self.units.extend(Unit.restored(row, shift) for row in data["units"])
        self.durable.restore(data, shift)


class _Joined(NamedTuple):
    """Large fills that travel together to several peers, and the two lists that they were."""

    fills: list[Fill]
    body: bytes
    of: tuple[Sequence[Fill], Sequence[Fill]]


def _join_large(first: Unit, unit: Unit, known: dict[tuple[int, int], _Joined]) -> None:
    """Adds a unit's fills to the first of its group; those that go to several peers are joined once."""
    names = id(first.fills), id(unit.fills)
    joined = known.get(names)
    if joined is None:
        fills = [*first.fills, *unit.fills]
        joined = known[names] = _Joined(fills, envelope.shared_body(fills), (first.fills, unit.fills))
    first.fills, first.body = joined.fills, joined.body


def _may_exceed(unit: Unit, limits: PeerLimits) -> bool:
    """Whether the plans of sites decide if the peer takes the fills; most are within what any site takes."""
    usual = limits.fill_bytes
    for fill in unit.fills:
        if len(fill.payload) > usual:
            return True
    return len(unit.fills) > limits.fills
