"""Which envelopes are taken: each passes an ordered table of checks before anything of it counts.

`read` decodes one, and takes from it what holds whatever becomes of the rest: acknowledgements, that its
sender lives, its addresses. `decide` asks the checks of its kind, in their order. Only an envelope that
passes all of them is marked as taken and acknowledged; one that is refused leaves a counter and a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.net.arrivals import Arrival, Kind, Raw, Refusal, deadline_of
from bb_edge.engine.net.back_pressure import BackPressure
from bb_edge.engine.net.calls import Calls
from bb_edge.engine.net.cohort import Answer
from bb_edge.engine.net.failures import Failures
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.net.journal import Journal, JournalRecord, empty_one
from bb_edge.engine.net.late_answers import LateAnswers
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.routing import Routing, cause_of
from bb_edge.engine.net.senders import Senders
from bb_edge.engine.plain import Shift
from bb_edge.engine.run.waiting import WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import envelope
from bb_edge.wire.caps import UNBOUNDED_CAPS
from bb_edge.wire.codecs import WireReceiveError
from bb_edge.wire.delivery import Links, Verdict
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, EnvelopeError

PRESSURE = 0.75
"""How full the queue of entries is when peers are asked to slow down."""


@dataclass(slots=True, eq=False)
class Admission:
    """The receiving half of a node."""

    _runtime: Runtime
    _waiting: WaitingRoom
    _ingress: Ingress
    _links: Links
    _peers: PeerStates
    _requests: Requests
    _calls: Calls
    _outgoing: Outgoing
    _routing: Routing
    _senders: Senders
    _failures: Failures
    journal: Journal
    _ledger: Ledger = field(init=False)
    _back_pressure: BackPressure = field(init=False)
    _own: PeerId = field(init=False)
    _late: LateAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._ledger = self._ingress.ledger
        self._back_pressure = self._peers.back_pressure
        self._own = self._runtime.own_peer
        self._late = LateAnswers(self._runtime)

    def read(self, raw: Raw, now_ns: int) -> Arrival | None:
        """Reads an envelope, and takes what it says of its sender and acknowledges; None for a bad one.

        Its place in the queue is given back; where it is not taken, so are its bytes.
        """
        peer, count = raw.peer, self._runtime.count
        self._ledger.envelope_taken(peer)
        try:
            message = envelope.decode(raw.data, self._runtime.config.caps)
        except EnvelopeError as error:
            self._malformed(peer, error)
            self._settle_unread(raw, error.what)
            self._runtime.bus.publish(Bus.WIRE_RECEIVE_ERROR)
            self._ledger.release(peer, len(raw.data))
            return None
        count("wire.received")
        count("wire.received_bytes", len(raw.data))
        if message.src_peer and message.src_peer != peer.to_bytes():
            self._refuse(raw, Refusal.SPOOFED)
            return None
        if message.acks:
            self._outgoing.durable.acknowledged(peer, self._links.acknowledged(peer, message.acks, now_ns))
        if peer != self._own:
            self._peers.heard(peer, now_ns)
            if message.src_addresses or raw.observed is not None:
                self._peers.merge_addresses(peer, message.src_addresses, raw.observed)
            if message.rtt_reports:
                self._peers.round_trips.take(peer, message.rtt_reports)
        deadline_ns = deadline_of(message, now_ns) if message.remaining_deadline_ns else 0
        return Arrival(raw, message, kind_of(message), deadline_ns)

    def decide(self, arrival: Arrival, now_ns: int) -> None:
        """Takes the envelope where it passes all checks: journals it, or delivers it at once."""
        for check in CHECKS[arrival.kind]:
            refusal = check(self, arrival, now_ns)
            if refusal is not None:
                if refusal.is_final:
                    self._answer_no(arrival, refusal, now_ns)
                self._refuse(arrival.raw, refusal, arrival.is_durable)
                return
        raw, message = arrival.raw, arrival.message
        if message.base and message.seq:  # as `is_durable` has it, without a call
            patient = self._requests.has_company(message.wire_req_id, self.journal.held)
            if self.journal.hold(arrival, now_ns, self._ingress.waiting_bytes, patient):
                return
        elif raw.peer != self._own:  # what came from the node itself needs no acknowledgement
            self._links.mark(raw.peer, message, now_ns)
        self._deliver(arrival)

    def _malformed(self, peer: PeerId, error: EnvelopeError) -> None:
        self._runtime.count("wire.malformed")
        self._runtime.emit(steps.WireReceiveFailed(peer, error.kind.name, error.what))

    def _settle_unread(self, raw: Raw, why: str) -> None:
        """Nobody waits for a peer whose answer cannot be read, because it is too large."""
        if not self._requests.by_req_id:
            return
        try:
            message = envelope.decode(raw.data, UNBOUNDED_CAPS)
        except EnvelopeError:
            return
        if message.kind == RESPONSE and self._requests.expects(message.wire_req_id, raw.peer):
            self._requests.settle_peer(message.wire_req_id, raw.peer, MissingReason.TOO_LARGE, why)

    def _refuse(self, raw: Raw, refusal: Refusal, durable: bool = False) -> None:
        if name := refusal.value[0]:
            self._runtime.count(f"ingress.{name}")
        if told := refusal.told(raw.peer, durable):
            self._runtime.count(told[0])
            self._runtime.emit(told[1])
        self._ledger.release(raw.peer, len(raw.data))

    def _answer_no(self, arrival: Arrival, refusal: Refusal, now_ns: int) -> None:
        """Tells whoever asks that it will not be answered, now or later: its request is marked as taken.

        Not so where nothing is known of the peer: nobody could be told, and its presence may still come.
        """
        raw, message = arrival.raw, arrival.message
        why = self._senders.why(refusal, arrival)
        if refusal is Refusal.CLASS_MISMATCH:
            self._runtime.emit(steps.ClassMismatch(raw.peer, why))
        if message.kind == REQUEST and self._peers.presences.get(raw.peer) is not None:
            take = self._take_without_content if message.base and message.seq else self._links.mark
            take(raw.peer, message, now_ns)
            self._failures.refuse(raw.peer, message, why)

    def _take_without_content(self, peer: PeerId, message: Envelope, now_ns: int) -> None:
        """Has a durable envelope acknowledged that is refused for good, without room for that not yet."""
        empty = empty_one(peer, message)
        size = len(empty.raw.data)
        if self._ledger.charge(peer, size) and not self.journal.hold(empty, now_ns):
            self._ledger.release(peer, size)

    # --- checks ---------------------------------------------------------------------------------------

    def _entitled(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Refuses what peers send that run another program, or are not of the class that sends it."""
        peers = self._peers
        if not (peers.are_told or peers.programs.strangers):
            return None
        return self._senders.refuse(arrival, now_ns)

    def _blocked(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Refuses what would start an execution, of peers that did not slow down."""
        blocked = self._back_pressure.blocked
        return Refusal.BLOCKED if blocked and arrival.message.fills and arrival.raw.peer in blocked else None

    def _known(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Refuses what has been taken before, which is acknowledged again, and numbers out of the window."""
        raw, message = arrival.raw, arrival.message
        if message.base and message.seq:
            return self.journal.refusal(raw.peer, message, now_ns)
        if raw.peer == self._own:
            return None
        verdict = self._links.receive(raw.peer, message, now_ns)
        if verdict is Verdict.DUPLICATE:
            self._links.mark(raw.peer, message, now_ns)
        return None if verdict is Verdict.NEW else Refusal[verdict.name]

    def _closed(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Refuses calls of blocked peers, and of components that bootstrap: a request comes again.

        Notices to the engine itself always pass.
        """
        blocked = arrival.raw.peer in self._back_pressure.blocked
        if not (blocked or self._waiting.closes_any):
            return None
        components = self._routing.components(arrival.message)
        if components and blocked:
            return Refusal.BLOCKED
        return Refusal.BOOTSTRAPPING if any(map(self._waiting.closes, components)) else None

    def _crowded(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Refuses an entry without a place; asks its sender to slow down, from `PRESSURE` on."""
        ledger, peer = self._ledger, arrival.raw.peer
        full = ledger.full if peer == self._own else ledger.full_for(peer)
        if full or ledger.pressure >= PRESSURE:
            self._notice(peer, now_ns)
        return Refusal.FULL if full else None

    # --- delivery -------------------------------------------------------------------------------------

    def _deliver(self, arrival: Arrival) -> None:
        """Hands on an envelope that is taken.

        The bytes of an entry, and of an answer, stay charged until what they feed has ended.
        """
        raw, message = arrival.raw, arrival.message
        peer, size, deadline_ns = raw.peer, len(raw.data), arrival.deadline_ns
        if arrival.kind is Kind.ENTRY:
            if peer is not self._senders.last:
                self._senders.starts(peer, message)
            port, args = self._routing.port_of(message), (peer, message, deadline_ns)
            target = "" if port is None else port.graph.target
            self._ingress.offer(
                Entry(target, self._routing.fill, args, None, size, peer, deadline_ns, cause=raw.cause)
            )
            return
        if arrival.kind is Kind.CONTROL:
            self._routing.call(peer, message)
        elif self._calls.expects(message.wire_req_id, peer):
            self._calls.answer(message.wire_req_id, message)
        elif self._requests.expects(message.wire_req_id, peer):
            self._answer(arrival)
            return
        else:  # late, double or foreign: it is acknowledged all the same
            if message.wire_req_id:
                tried = bool(message.fills) and self._requests.trials.answered(message.wire_req_id, peer)
                if not tried:
                    self._late.came(peer)
                self._refuse(raw, Refusal.TRIAL_ANSWER if tried else Refusal.LATE_ANSWER)
                return
            # A greeting, an answer to nothing: to acknowledge it is all.
        self._ledger.release(peer, size)

    def _answer(self, arrival: Arrival) -> None:
        """An answer that an execution waits for; a bad one settles its peer."""
        peer, message = arrival.raw.peer, arrival.message
        req_id = message.wire_req_id
        cohort, size = self._requests.by_req_id[req_id], len(arrival.raw.data)
        if message.failure is not None:
            self._requests.failed(req_id, peer, message.failure)
            self._ledger.release(peer, size)
            return
        try:
            values = self._routing.answer(peer, message, cohort.mode)
        except WireReceiveError as error:
            self._routing.failed(peer, error)
            why = f"{error.kind.name}: {error.what}"
            self._requests.settle_peer(req_id, peer, MissingReason.REFUSED, why)
            self._ledger.release(peer, size)
            return
        self._requests.answer(req_id, Answer(peer, values, cause_of(peer, message), size))

    # --- durable envelopes ----------------------------------------------------------------------------

    def deliver_accepted(self, now_ns: int) -> None:
        """Delivers what is written down."""
        accepted = self.journal.accepted
        while accepted:
            self._deliver(accepted.pop(0))

    def deliver_replayed(self, now_ns: int) -> None:
        """Delivers the records of a replayed journal, as far as there is room."""
        replaying = self.journal.replaying
        while replaying and not self._ledger.full and self._replay(replaying[0], now_ns):
            replaying.pop(0)

    def _replay(self, record: JournalRecord, now_ns: int) -> bool:
        """Delivers a record of the journal, if the node does not know it yet; False without room for it."""
        peer = record.peer
        try:
            message = envelope.decode(record.data, self._runtime.config.caps)
        except EnvelopeError as error:  # written by a node with larger caps
            self._malformed(peer, error)
            return True
        if peer != self._own:  # the answer must find its way before the peer is heard of again
            self._peers.merge_addresses(peer, message.src_addresses, record.observed)
        if not self._ledger.charge(peer, len(record.data)):
            return False
        if not self.journal.replayed(peer, message, now_ns):
            self._runtime.count("journal.known")
            self._ledger.release(peer, len(record.data))
            return True
        self._runtime.count("journal.replayed")
        raw = Raw(record.data, peer, record.observed)
        # As long as it had when it came: what it did then, and no snapshot has, is to be done again.
        self._deliver(Arrival(raw, message, kind_of(message), deadline_of(message, now_ns)))
        return True

    def persist_failed(self, token: int, error: BaseException) -> bool:
        """A received envelope could not be written down. False for a token that is not ours."""
        freed = self.journal.persist_failed(token, error)
        if freed is not None:
            self._ledger.release(*freed)
        return freed is not None

    # --- back-pressure --------------------------------------------------------------------------------

    def _notice(self, peer: PeerId, now_ns: int) -> None:
        """Tells a contributing sender to slow down; one that did not is blocked until the queue drains."""
        if peer != self._own and self._ledger.contributes(peer):
            notice = self._back_pressure.notice(peer, now_ns)
            if notice is not None:
                self._outgoing.notify(peer, notice)

    def drained(self) -> None:
        """The entries' queue is below the pressure mark again: everybody may send."""
        if self._back_pressure.noticed and self._ledger.pressure < PRESSURE:
            self._back_pressure.relieve()

    def restore_journal(self, data: Any, shift: Shift) -> None:
        """Gives the journal what it saved."""
        self.journal.restore(data, shift, self._ledger, kind_of)


def kind_of(message: Envelope) -> Kind:
    """What an envelope brings."""
    if message.kind == RESPONSE:
        return Kind.ANSWER
    for fill in message.fills:
        if fill.route.for_site:
            return Kind.ENTRY
    return Kind.CONTROL if message.fills else Kind.ENTRY


Check: TypeAlias = Callable[[Admission, Arrival, int], "Refusal | None"]
"""`check(admission, arrival, now_ns)`: why an envelope is refused; None where it passes."""

CHECKS: Mapping[Kind, tuple[Check, ...]] = {
    Kind.ENTRY: (Admission._blocked, Admission._known, Admission._entitled, Admission._crowded),
    Kind.CONTROL: (Admission._known, Admission._entitled, Admission._closed),
    Kind.ANSWER: (Admission._known,),
}
"""What is asked of an envelope before it is taken, in this order.

A repetition is acknowledged again even where there is no place for it, so it is found before places are asked
for.
"""
