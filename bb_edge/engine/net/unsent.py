"""Units that have not left: those that wait for room, in order, and those that never will, with a reason.

Requests and replies are kept until they are acknowledged, within `outbound_queue` and as many bytes as
`ingress_bytes`. What finds no room waits here until earlier ones are acknowledged or over. So a request to
many peers asks them in a window as wide as the bounds, and none of it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bb_edge.engine import steps
from bb_edge.engine.callbacks import Written
from bb_edge.engine.net.never_left import BY_DEADLINE, WAITED
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import PUT_OFF, Unit
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import envelope
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.envelope_records import Failure, FailureCode

_UNIT = Written(lambda args: [args[0].save()], lambda plain, shift: (Unit.restored(plain[0], shift),))
"""How the argument of a reply that was put off is written."""


@dataclass(slots=True, eq=False)
class Unsent:
    """Units that wait for room (`units`, the same object for ever), and requests that are lost.

    `send(unit, limits, now_ns)` gives False where a unit finds no room; `queue(unit)` has it sent at the end
    of the poll. `lost` names requests that will never be sent, as (request id, peer, why); `instead` are
    failures in place of replies that their askers do not take.
    """

    _runtime: Runtime
    _peers: PeerStates
    _send: Callable[[Unit, PeerLimits, int], bool]
    _queue: Callable[[Unit], None]
    units: list[Unit] = field(default_factory=list)
    lost: list[tuple[int, PeerId, MissingReason]] = field(default_factory=list)
    instead: list[Unit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._runtime.callbacks.register(PUT_OFF, self._put_off_is_over, _UNIT)

    # --- what waits -----------------------------------------------------------------------------------

    def put_off(self, unit: Unit) -> bool:
        """Replies pass no Tx gate: where the peer has asked for patience they wait as long."""
        until = self._peers.back_pressure.patience_until(unit.peer)
        if until <= self._runtime.now_ns or self._runtime.timers.full:
            return False
        self._runtime.count("outbound.put_off")
        self._runtime.timers.at(until, self._put_off_is_over, unit)
        return True

    def _put_off_is_over(self, _now_ns: int, unit: Unit) -> None:
        self._queue(unit)

    def hold(self, unit: Unit) -> None:
        """Keeps a unit until there is room: it leaves in its turn."""
        if len(self.units) >= self._runtime.config.outbound_queue:
            self.lose(unit, f"{len(self.units)} envelopes wait for room already")
            return
        if unit.kind == envelope.REQUEST and unit.to is None:
            unit.to = {unit.wire_req_id: unit.peer}
        self._runtime.count("outbound.waiting")
        self.units.append(unit)

    def go_on(self, now_ns: int) -> None:
        """Sends what waits, as far as there is room now."""
        while self.units:
            unit = self.units[0]
            if unit.to is not None:
                if not self.ask_all(unit.to, unit, now_ns):
                    return
            elif unit.deadline_ns and unit.deadline_ns <= now_ns:
                self._runtime.count("deadlines.expired")
                self.lose(unit, WAITED)
            elif not self._send(unit, self._peers.limits_of(unit.peer), now_ns):
                return
            self.units.pop(0)

    def ask_all(self, to: dict[int, PeerId], unit: Unit, now_ns: int) -> bool:
        """Sends a request to those of its peers that are left; False where one finds no room."""
        for number in tuple(to):
            peer = to[number]
            if not self._send(unit.alone(number, peer), self._peers.limits_of(peer), now_ns):
                return False
            del to[number]
        return True

    # --- what never leaves ----------------------------------------------------------------------------

    def take_lost(self) -> list[tuple[int, PeerId, MissingReason]]:
        """The requests that will never be sent; each is told once."""
        lost, self.lost = self.lost, []
        return lost

    def take_instead(self) -> list[Unit]:
        """The failures that go in place of replies; each is given once."""
        instead, self.instead = self.instead, []
        return instead

    def lose(self, unit: Unit, reason: str, too_large: bool = False) -> None:
        """Reports a unit that never leaves."""
        for number, peer in ((unit.wire_req_id, unit.peer),) if unit.to is None else unit.to.items():
            self.drop(peer, reason, too_large, unit)
            if unit.kind == envelope.REQUEST:
                why = MissingReason.TAKES_LESS if too_large else MissingReason.NOT_SENT
                self.lost.append((number, peer, why))
            elif too_large and unit.kind == envelope.RESPONSE and self._peers.reads_failures(peer):
                failure = Failure.of(FailureCode.TOO_LARGE, reason)
                self.instead.append(replace(unit, fills=(), body=b"", failure=failure))

    def drop(self, peer: PeerId, reason: str, too_large: bool = False, unit: Unit | None = None) -> None:
        """Reports an envelope to the peer that never leaves, `unit` where there was one."""
        count = self._runtime.count
        count("outbound.dropped")
        if too_large:
            count("outbound.too_large")
        if unit is None or not unit.durable or reason in BY_DEADLINE:
            self._runtime.emit(steps.OutboundDropped(peer, reason))
        else:
            number = None if unit.cause is None else unit.cause.round
            self._runtime.emit(steps.OutboundDropped(peer, reason, durable=True, round=number))

    def not_sent(self, peer: PeerId, why: str) -> None:
        """Reports a request to the peer that has not left before its deadline."""
        self._runtime.count("requests.not_sent")
        self.drop(peer, why)

    def unresolved(self, peer: PeerId, target: str, execution: int, where: str) -> None:
        """Reports a send to a peer that the address book does not know."""
        self._runtime.count("wire.unresolved")
        self._runtime.emit(steps.PeerResolveFailed(peer, target, execution, where))
