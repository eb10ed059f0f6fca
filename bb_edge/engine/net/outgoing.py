"""What leaves: the units of wire ops and components, packed into envelopes at the end of a poll."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.net.durable import RECORD_BYTES, Durable, Fate
from bb_edge.engine.net.never_left import WAITED, held_back
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import Joined, Unit, join_large
from bb_edge.engine.net.unsent import Unsent
from bb_edge.engine.plain import Shift
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import envelope
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.caps import UNTOLD_LIMITS, PeerLimits
from bb_edge.wire.delivery import DeliveryError, EnvelopeKey, Links, PendingFullError
from bb_edge.wire.delivery import Outgoing as Due
from bb_edge.wire.envelope import Envelope, Fill


@dataclass(slots=True, eq=False)
class Outgoing:
    """The queue between wire ops and the driver.

    `_local` takes the envelopes that the node sends to itself; False where it has no place. A request that is
    never sent is a fact in `unsent.lost`: whoever asked must not wait for the answer.
    """

    _runtime: Runtime
    _links: Links
    _peers: PeerStates
    durable: Durable
    _local: Callable[[bytes], bool]
    units: list[Unit] = field(default_factory=list)
    unsent: Unsent = field(init=False)
    held: list[Unit] = field(init=False)  # those that wait there
    _greeted: dict[PeerId, None] = field(default_factory=dict)  # told our addresses, longest ago first
    _planned: dict[bytes, int] = field(default_factory=dict)  # suffix -> largest planned payload (0: unknown)
    _asks: dict[int, EnvelopeKey | int] = field(default_factory=dict)  # open request -> envelope, or record

    def __post_init__(self) -> None:
        self.unsent = Unsent(self._runtime, self._peers, self._send, self._append)
        self.held = self.unsent.units

    @property
    def waits(self) -> bool:
        """Whether the next poll has something to send."""
        return bool(self.units or self.durable.busy or (self.held and not self._links.pending))

    @property
    def waiting(self) -> int:
        """Envelopes that wait for room, or in the outbox."""
        held = sum(1 if unit.to is None else len(unit.to) for unit in self.held)
        return len(self.durable.records.pending) + held + self.durable.unplaced

    @property
    def queued(self) -> Iterable[Unit]:
        """The units that no peer has been sent and no outbox holds."""
        return chain(self.units, self.held, self.durable.waiting)

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
        stored = unit.durable and unit.kind == envelope.NONE and not self.durable.quiet
        if not stored and not self._peers.knows(unit.peer):
            self.unsent.unresolved(unit.peer, target, execution, where)
            return False
        if self._peers.back_pressure.imposed and unit.kind == envelope.RESPONSE and self.unsent.put_off(unit):
            return True
        self._append(unit)
        return True

    def ask(
        self, unit: Unit, asked: Mapping[int, PeerId], execution: Execution, op: BoundOp
    ) -> dict[PeerId, MissingReason]:
        """Queues a request for all peers of `asked`, by request id, as far as they can be asked at all.

        They are asked in order, as earlier envelopes make room. Returns why, for peers that never will be.
        """
        unit.cause = execution.cause
        unit.to = {}
        never: dict[PeerId, MissingReason] = {}
        for number, peer in asked.items():
            if not self._peers.knows(peer):
                self.unsent.unresolved(peer, op.target, execution.id, op.spec.name)
                never[peer] = MissingReason.NOT_SENT
            elif why := _refused(unit, self._peers.limits_of(peer), self._planned):
                self.unsent.drop(peer, why, too_large=True)
                never[peer] = MissingReason.TAKES_LESS
            else:
                unit.to[number] = peer
        if unit.to:
            self._append(unit)
        return never

    def notify(self, peer: PeerId, fill: Fill) -> None:
        """Queues a notice of the engine's own, which no op stands behind; dropped where there is no room."""
        if len(self.units) < self._runtime.config.outbound_queue:
            self.units.append(Unit(peer, [fill]))

    def greet(self, peer: PeerId, life_ns: int) -> None:
        """Queues an envelope that says nothing, and that the peer acknowledges; it is not repeated."""
        until = self._runtime.now_ns + life_ns
        self._append(Unit(peer, (), kind=envelope.RESPONSE, deadline_ns=until))

    def _drop_one(self) -> None:
        """Makes place: the oldest best-effort unit for one peer goes, or the oldest of all without one."""
        index = next((i for i, u in enumerate(self.units) if not u.durable and u.to is None), 0)
        dropped = self.units[index]
        del self.units[index]
        self.unsent.lose(dropped, "outbound queue full")

    def _append(self, unit: Unit) -> None:
        if len(self.units) >= self._runtime.config.outbound_queue:
            self._drop_one()
        self.units.append(unit)

    # --- requests -------------------------------------------------------------------------------------

    def is_asking(self, req_id: int) -> bool:
        """Whether the request waits to leave, or for its acknowledgement."""
        key = self._asks.get(req_id)
        if isinstance(key, int):
            return self.durable.records.is_open(key)
        if key is not None:
            return self._links.is_pending(key)
        return any(unit.asks(req_id) for unit in self.queued)

    def forget_ask(self, req_id: int) -> str:
        """Nobody waits for the answer any more: it is not repeated. Returns why it never left, if so."""
        key = self._asks.pop(req_id, None)
        if isinstance(key, int):
            records = self.durable.records
            why = "" if records.published(key) else held_back(records.sender, key)
            records.drop(key)
        elif key is not None:
            why = "" if self._links.published(key) else WAITED
            self._links.cancel(key)
        else:
            why = WAITED if any(unit.forget(req_id) for unit in self.queued) else ""
        return why

    # --- sending --------------------------------------------------------------------------------------

    def flush(self, now_ns: int) -> None:
        """Sends envelopes for all queued units, then what is due for repetition or acknowledgement."""
        if not self.durable.quiet:
            self.durable.records.meet()
            for unit, fate in self.durable.resume(now_ns):  # what waited goes before what comes now
                self._follow(unit, fate)
            for due in chain(self.durable.publishable(now_ns), self.durable.records.due(now_ns)):
                self._emit(due)
        if self.held:
            self.unsent.go_on(now_ns)
        while self.units or self.unsent.instead:
            if self.unsent.instead:
                self.units.extend(self.unsent.take_instead())
            units = _joined(self.units, self._peers, self._planned, self.unsent.lose)
            self.units.clear()
            for unit, limits in units:
                if unit.durable and not self.durable.quiet:
                    for begun, fate in self.durable.send(unit, now_ns):
                        self._follow(begun, fate)
                elif self.held and unit.kind != envelope.NONE:
                    self.unsent.hold(unit)
                elif unit.to is not None:
                    if not self.unsent.ask_all(unit.to, unit, now_ns):
                        self.unsent.hold(unit)
                elif not self._send(unit, limits, now_ns):
                    self.unsent.hold(unit)
        if self._links.quiet:
            return
        due_now = self._links.due(now_ns)
        if self._links.expired:
            self._runtime.count("outbound.expired", len(self._links.take_expired()))
        for due in due_now:
            self._runtime.count("wire.resent" if due.key is not None else "wire.acks_alone")
            self._emit(due)

    def next_deadline_ns(self) -> int | None:
        """When `flush` has something at the latest; None while nothing waits."""
        times = self._links.next_deadline_ns(), self.durable.records.next_ns()
        return min((when for when in times if when is not None), default=None)

    def _emit(self, due: Due) -> None:
        """Hands out an envelope; what a node says to itself is repeated, too, where it finds no place."""
        if due.peer == self._runtime.own_peer:
            self._local(b"".join((due.body, due.payload)))
            return
        what = due.peer, due.payload, due.expires_in_ns, due.durable, due.resent, due.body
        self._runtime.emit(steps.SendEnvelope(*what, due.key is not None))

    def _follow(self, unit: Unit, fate: Fate) -> None:
        if fate.record:
            if unit.kind == envelope.REQUEST:
                self._asks[unit.wire_req_id] = fate.record
        elif fate.lost:
            self.unsent.lose(unit, fate.lost, fate.too_large)

    def _send(self, unit: Unit, limits: PeerLimits, now_ns: int) -> bool:
        """Sends a unit, or reports that it never leaves; False, with nothing changed, where it must wait."""
        size, remaining = 0, unit.deadline_ns - now_ns if unit.deadline_ns else 0
        if remaining <= 0 and unit.deadline_ns:
            self._runtime.count("deadlines.expired")
            return True
        message = Envelope(unit.fills, unit.kind, unit.wire_req_id, remaining, failure=unit.failure)
        to_self = unit.peer == self._runtime.own_peer
        greets = bool(self._runtime.local_addresses) and unit.peer not in self._greeted
        if greets:
            message.src_addresses = self._runtime.local_addresses
        resend = unit.wire_req_id != 0 and not to_self
        body = unit.body
        if resend and not body:
            for fill in unit.fills:
                size += len(fill.payload)
        try:
            until, about = unit.deadline_ns, size + RECORD_BYTES
            key = self._links.stamp(unit.peer, message, now_ns, resend, until, about, body)
        except PendingFullError:
            return False
        except DeliveryError as error:
            self.unsent.lose(unit, error.what)
            return True
        data = envelope.encode(message, not body)
        size = len(body) + len(data)
        if greets and size > limits.total_bytes:
            greets = False  # what it carries matters more; a smaller envelope tells the addresses
            message.src_addresses = ()
            data = envelope.encode(message, not body)
            size = len(body) + len(data)
        if size > limits.total_bytes:
            self.unsent.lose(unit, limits.too_large(size), too_large=True)
            if resend:
                self._links.cancel(key)
            return True
        if to_self:
            if not self._local(body + data):
                self.unsent.lose(unit, "own ingress queue full")
                return True
        else:
            if resend:
                self._links.sent(key.peer, key, data, body=body)
                if unit.kind == envelope.REQUEST:
                    self._asks[unit.wire_req_id] = key
            self._runtime.emit(steps.SendEnvelope(unit.peer, data, remaining, False, False, body, resend))
        self._runtime.count("wire.sent")
        self._runtime.count("wire.sent_bytes", size)
        if greets:
            forget_oldest(self._greeted, self._runtime.config.max_peers)
            self._greeted[unit.peer] = None
        return True

    def adopt(
        self, records: Iterable[bytes], now_ns: int, wall_ns: int, awaits: Callable[[int], bool]
    ) -> None:
        """Takes the rows of the outbox on disk, after a restart; see `Records.adopt`. OutboxError."""
        self._asks.update(self.durable.adopt(records, now_ns, wall_ns, awaits, self.queued))

    def save(self) -> dict[str, Any]:
        """All that waits to leave, as plain values; `restore` takes them.

        Without best-effort requests to many peers: a node that restores asks again.
        """
        units = (*self.held, *self.units)
        waiting = [u.save() for u in units if u.durable or u.to is None or u.wire_req_id]
        return {"units": waiting, **self.durable.save()}

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave; deadlines move by `shift`."""
        self.units.extend(Unit.restored(row, shift) for row in data["units"])
        self.durable.restore(data, shift)


def _refused(unit: Unit, limits: PeerLimits, planned: Mapping[bytes, int]) -> str:
    """Why a peer with these limits does not take the unit; "" where it does.

    `planned` maps destination suffixes to the planned sizes of payloads: most need not be looked up.
    """
    usual = limits.fill_bytes
    for fill in unit.fills:
        if len(fill.payload) > usual:
            return limits.refuse(unit.fills, planned)
    return limits.refuse(unit.fills, planned) if len(unit.fills) > limits.fills else ""


def _joined(
    units: Iterable[Unit],
    peers: PeerStates,
    planned: Mapping[bytes, int],
    lose: Callable[[Unit, str, bool], None],
) -> list[tuple[Unit, PeerLimits]]:
    """All units in order, with what their peers take; those that may travel together are one.

    `lose(unit, why, True)` is called for those that their peer does not take. Those for many peers are left
    as they are: who does not take them was told when they were queued.
    """
    found: list[tuple[Unit, PeerLimits]] = []
    large: dict[tuple[int, int], Joined] = {}  # by the identity of the two that it joins
    open_groups: dict[object, tuple[Unit, int]] = {}
    for unit in units:
        if unit.to is not None:
            found.append((unit, UNTOLD_LIMITS))
            continue
        # Before it is joined: what is too large must not take its siblings along.
        limits = peers.limits_of(unit.peer)
        if why := _refused(unit, limits, planned):
            lose(unit, why, True)
            continue
        if unit.group is None:
            found.append((unit, limits))
            continue
        key = (unit.peer, unit.group, unit.deadline_ns, unit.durable, unit.cause)
        size = sum(len(fill.payload) for fill in unit.fills)
        first, first_size = open_groups.get(key, (None, 0))
        fits = False
        if first is not None:
            told = peers.limits.told(unit.peer)
            together = len(first.fills) + len(unit.fills)
            fits = together <= told.fills and first_size + size <= told.total_bytes // 2
        if first is not None and fits:
            if first.body or unit.body:
                join_large(first, unit, large)
            else:
                first.fills = [*first.fills, *unit.fills]
            open_groups[key] = (first, first_size + size)
        else:
            found.append((unit, limits))
            open_groups[key] = (unit, size)
    return found
