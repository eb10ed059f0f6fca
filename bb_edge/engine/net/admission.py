"""What arrives: the order at ingress, and the way of each fill to its site (semantics §6).

An envelope passes, in this order: caps, source against topic, acknowledgements, health and addresses, blocked
sources, duplicates, expiry, a place in the queue. Only then is it marked and acknowledged; what is refused
before that leaves no trace but a counter and a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.causes import cause_of
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.ingress import Entry, Ingress, Raw
from bb_edge.engine.net.journal import Journaling, JournalRecord, Taken
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.routing import Port
from bb_edge.engine.run.frames import Execution
from bb_edge.ir import keys
from bb_edge.ir.address import SITE_PREFIX, SUFFIX_SITE, AddressError, parse_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets.wire import OP_RECV_REQ
from bb_edge.roles import TRIGGER
from bb_edge.wire import envelope
from bb_edge.wire.codecs import WireReceiveError, WireReceiveErrorKind
from bb_edge.wire.delivery import EnvelopeKey, Links, Verdict
from bb_edge.wire.envelope import Envelope, EnvelopeError, Fill

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler

NOTICE_INTERVAL_NS = 1_000_000_000
NOTICES_BEFORE_BLOCK = 3
PRESSURE = 0.75

Remote = Callable[[PeerId, Fill, Envelope], object]


class Inbound:
    """The receiving half of a node."""

    def __init__(
        self, engine: Scheduler, ingress: Ingress, links: Links, requests: Requests, ports: Mapping[int, Port]
    ) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._ingress = ingress
        self._ledger = ingress.ledger
        self._links = links
        self._requests = requests
        self._ports = ports
        self._caps = engine.runtime.config.caps
        self.noticed: dict[PeerId, tuple[int, int]] = {}  # peer -> (last notice, how many)
        self._remote: dict[tuple[int, str], tuple[Remote, int]] = {}
        engine.runtime.callbacks.register("envelope", self._fill)
        # None on a node whose driver keeps nothing on disk: durable envelopes are then like any other.
        self.journaling: Journaling | None = None
        self.on_settled: Callable[[list[EnvelopeKey]], None] = _nothing_with

    def register_remote(self, ref: int, op: str, handler: Remote, component: int = -1) -> None:
        """Makes `/component/<ref>/op/<name>` reachable: `handler(peer, fill, envelope)`.

        `component` is the index of the component behind it, which a bootstrap may lock.
        """
        if (ref, op) in self._remote:
            raise OpError(f"remote op {op!r} of component {ref} stands twice", "install")
        self._remote[ref, op] = (handler, component)

    # --- one envelope ---------------------------------------------------------------------------------

    def take(self, raw: Raw, now_ns: int) -> None:
        """Decides about one envelope.

        Its bytes were charged at the door; whoever keeps it keeps the charge.
        """
        if not self._decide(raw, now_ns):
            self._ledger.release(raw.peer, len(raw.data))

    def _refuse(self, peer: PeerId | None, reason: str, step: bool = True) -> bool:
        self._runtime.count(f"ingress.{reason}")
        if step:
            self._runtime.count("ingress.dropped")
            self._runtime.emit(steps.IngressDropped(peer, reason))
        return False

    def _decide(self, raw: Raw, now_ns: int) -> bool:
        """True where the envelope's bytes stay charged."""
        engine, peer, links = self._engine, raw.peer, self._links
        try:
            message = envelope.decode(raw.data, self._caps)
        except EnvelopeError as error:
            self._runtime.count("wire.malformed")
            self._runtime.emit(steps.WireReceiveFailed(peer, error.kind.name, error.what))
            self._runtime.bus.publish(Bus.WIRE_RECEIVE_ERROR)
            return False
        self._runtime.count("wire.received")
        self._runtime.count("wire.received_bytes", len(raw.data))
        if message.src_peer and message.src_peer != peer.to_bytes():
            return self._refuse(peer, "spoofed")
        own = peer == self._runtime.own_peer
        if message.acks:
            self.on_settled(links.acknowledged(peer, message.acks, now_ns))
        if not own:
            engine.neighbours.heard(peer, now_ns)
            engine.neighbours.merge_addresses(peer, message.src_addresses, raw.observed)
            if message.rtt_reports:
                engine.neighbours.take_rtt(peer, message.rtt_reports)
        entry = message.kind != envelope.RESPONSE
        only_control = _only_control(message)
        if entry and not only_control and message.fills and peer in engine.neighbours.blocked:
            return self._refuse(peer, "blocked")
        verdict = Verdict.NEW if own and not message.base else links.receive(peer, message, now_ns)
        if verdict is Verdict.ACK_ONLY:
            return False
        if verdict is Verdict.DUPLICATE:
            links.mark(peer, message, now_ns)  # acknowledged again
            return self._refuse(peer, "duplicates", step=False)
        if verdict is not Verdict.NEW:
            return self._refuse(peer, verdict.name.lower(), step=verdict is Verdict.NO_ROOM)
        if only_control and entry:
            if reason := self._closed_to(peer, message):
                return self._refuse(peer, reason)
        elif entry:
            if self._ledger.full if own else self._ledger.full_for(peer):
                self._notice(peer, now_ns)
                return self._refuse(peer, "full")
            if self._ledger.pressure >= PRESSURE:
                self._notice(peer, now_ns)
        taken = Taken(raw, message, message.deadline_after(now_ns))
        if message.base and message.seq and self.journaling is not None:
            self.journaling.hold(taken, now_ns)
            return True
        if not own or message.base:  # what came from the node itself needs no acknowledgement
            links.mark(peer, message, now_ns)
        return self._deliver(taken)

    def _deliver(self, taken: Taken) -> bool:
        """Hands on an envelope that has its place; True where its bytes stay charged."""
        raw, message = taken.raw, taken.message
        peer = raw.peer
        if message.kind == envelope.RESPONSE:
            return self._answer(peer, message)
        if _only_control(message):
            for fill in message.fills:
                self._control(peer, fill, message)
            return False
        self._ingress.offer(
            Entry(
                self._target(message),
                self._fill,
                (peer, message, taken.deadline_ns),
                size=len(raw.data),
                peer=peer,
                expires_ns=taken.deadline_ns,
            )
        )
        return True

    # --- durable envelopes ----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether the next poll has something to deliver that is written down already."""
        return self.journaling is not None and self.journaling.busy

    def admit(self, now_ns: int) -> bool:
        """Delivers what is written down; False while more of a replayed journal waits for room."""
        journaling = self.journaling
        if journaling is None:
            return True
        while journaling.accepted:
            taken = journaling.accepted.popleft()
            if not self._deliver(taken):
                self._ledger.release(taken.raw.peer, len(taken.raw.data))
        while journaling.replaying:
            if self._ledger.full or not self._replay(journaling.replaying[0], now_ns):
                return False
            journaling.replaying.popleft()
        return True

    def accept(self, raw: Raw, deadline_ns: int) -> None:
        """An envelope that a snapshot brings, written down and not yet delivered."""
        assert self.journaling is not None
        self._ledger.recharge(raw.peer, len(raw.data))
        message = envelope.decode(raw.data, self._caps)
        self.journaling.accepted.append(Taken(raw, message, deadline_ns))

    def _replay(self, record: JournalRecord, now_ns: int) -> bool:
        """Delivers a record of the journal, if the node does not know it yet; False without room for it."""
        engine, peer = self._engine, record.peer
        try:
            message = envelope.decode(record.data, self._caps)
        except EnvelopeError as error:  # written by a node with larger caps
            self._runtime.count("wire.malformed")
            self._runtime.emit(steps.WireReceiveFailed(peer, error.kind.name, error.what))
            return True
        if peer != self._runtime.own_peer:  # the answer must find its way before the peer is heard of again
            engine.neighbours.merge_addresses(peer, message.src_addresses, record.observed)
        if self._links.receive(peer, message, now_ns) is not Verdict.NEW:
            self._runtime.count("journal.known")
            return True
        size = len(record.data)
        if not self._ledger.charge(peer, size):
            return False
        self._links.mark(peer, message, now_ns)
        self._runtime.count("journal.replayed")
        deadline = 0
        if message.remaining_deadline_ns:
            age = max(0, now_ns + self._runtime.clock_offset_ns - record.wall_ns)
            deadline = max(1, message.deadline_after(now_ns) - age)
        if not self._deliver(Taken(Raw(record.data, peer, record.observed), message, deadline)):
            self._ledger.release(peer, size)
        return True

    def persist_failed(self, token: int, error: BaseException) -> bool:
        """A received envelope could not be written down. False where the token is none of ours."""
        taken = None if self.journaling is None else self.journaling.persist_failed(token, error)
        if taken is not None:
            self._ledger.release(taken.raw.peer, len(taken.raw.data))
        return taken is not None

    def _target(self, message: Envelope) -> str:
        for fill in message.fills:
            if len(fill.dest_suffix) == 10:
                port = self._ports.get(int.from_bytes(fill.dest_suffix[2:], "big"))
                if port is not None:
                    return port.graph.target
        return ""

    # --- entries --------------------------------------------------------------------------------------

    def _fill(self, execution: Execution, peer: PeerId, message: Envelope, deadline_ns: int) -> None:
        """Writes an envelope's fills into its execution; a fill that fails does not hold up its siblings."""
        engine = self._engine
        acknowledged = self.journaling is not None and message.base > 0
        execution.came_from(peer, cause_of(peer, message), deadline_ns, acknowledged)
        touched: dict[int, Port] = {}
        for fill in message.fills:
            port = self._route(peer, fill, message)
            if port is None:
                continue
            try:
                value = port.value_of(fill, self._caps)
            except WireReceiveError as error:
                self._failed(peer, error)
                continue
            region = port.graph.regions[port.op.spec.region]
            execution.will_claim(port.graph.claims.get(port.op.index, ()))
            frame = execution.frame_of(region)
            if port.site >= 0:
                engine.write(frame, port.site, value)
            touched[id(port.op)] = port
        for port in touched.values():
            self._tail(execution, port, peer, message.wire_req_id)

    def _tail(self, execution: Execution, port: Port, peer: PeerId, req_id: int) -> None:
        """The outputs behind the payloads: sender, req_id, trigger."""
        op = port.op
        frame = execution.frame_of(port.graph.regions[op.spec.region])
        count = len(op.spec.meta.get(keys.SITE_IDS_KEY, "").split(","))
        tail: tuple[object, ...] = (
            ((peer,), req_id, TRIGGER) if op.spec.op_type == OP_RECV_REQ else ((peer,), TRIGGER)
        )
        for site, value in zip(op.outs[count:], tail):  # noqa: B905 (the trigger is optional)
            if site >= 0:
                self._engine.write(frame, site, value)
        if port.graph.starts:
            self._engine.start_outputs(frame, op.index)

    def _route(self, peer: PeerId, fill: Fill, message: Envelope) -> Port | None:
        try:
            kind, number, op = parse_suffix(fill.dest_suffix)
        except AddressError as error:
            self._runtime.count("ingress.unroutable")
            self._runtime.emit(steps.WireReceiveFailed(peer, "Unroutable", str(error)))
            return None
        if kind != SUFFIX_SITE:
            self._dispatch(peer, fill, message, number, op or "")
            return None
        port = self._ports.get(number)
        if port is None:
            self._runtime.count("ingress.unroutable")
            self._runtime.emit(
                steps.WireReceiveFailed(peer, "Unroutable", f"no site {number:#018x} on this node")
            )
        return port

    def _failed(self, peer: PeerId, error: WireReceiveError) -> None:
        self._runtime.count("wire.receive_errors")
        self._runtime.emit(steps.WireReceiveFailed(peer, error.kind.name, error.what))
        self._runtime.bus.publish(Bus.WIRE_RECEIVE_ERROR)

    # --- answers --------------------------------------------------------------------------------------

    def _answer(self, peer: PeerId, message: Envelope) -> bool:
        """An answer is matched by its request id and its peer;

        a late, double or foreign one is acknowledged and dropped.
        """
        req_id = message.wire_req_id
        if self._engine.control.expects(req_id, peer):
            self._engine.control.answer(req_id, message)
            return False
        if not self._requests.expects(req_id, peer):
            return self._refuse(peer, "late_answers", step=False)
        cohort = self._requests.sites(req_id)
        assert cohort is not None
        values: dict[int, object] = {}
        try:
            # Where nobody reads the answers there are no sites for them: that one came is all that counts.
            for fill in message.fills if cohort.mode != keys.ANSWER_NONE else ():
                port = self._route(peer, fill, message)
                if port is None:
                    raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, "an answer with a foreign fill")
                values[port.index] = port.value_of(fill, self._caps)
                expected = port.count
            if values and sorted(values) != list(range(expected)):
                raise WireReceiveError(
                    WireReceiveErrorKind.DecodeFailed, "an answer with a gap between its fills"
                )
            if not values and cohort.mode != keys.ANSWER_NONE:
                raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, "an answer without fills")
        except WireReceiveError as error:
            self._failed(peer, error)
            self._requests.settle_peer(req_id, peer)
            return False
        size = sum(len(f.payload) for f in message.fills)
        if not self._ledger.charge(None, size):
            self._failed(
                peer, WireReceiveError(WireReceiveErrorKind.BudgetExceeded, f"an answer of {size} bytes")
            )
            self._requests.settle_peer(req_id, peer)
            return False
        cohort.execution.charge_answer(size)
        self._requests.answer(
            req_id, peer, tuple(values[i] for i in range(len(values))), cause_of(peer, message)
        )
        return False

    # --- control plane --------------------------------------------------------------------------------

    def _closed_to(self, peer: PeerId, message: Envelope) -> str:
        """Why component ops are refused now, unmarked, so that a request comes again; "" where they pass."""
        blocked = peer in self._engine.neighbours.blocked
        waiting = self._engine.waiting
        if not blocked and not waiting.closes_any:
            return ""
        for fill in message.fills:
            try:
                kind, ref, op = parse_suffix(fill.dest_suffix)
            except AddressError:
                continue  # reported where it is dispatched
            if kind != SUFFIX_SITE and ref:  # notices to the engine itself always pass
                if blocked:
                    return "blocked"
                component = self._remote.get((ref, op or ""), (None, -1))[1]
                if waiting.closes(component):
                    return "bootstrapping"
        return ""

    def _control(self, peer: PeerId, fill: Fill, message: Envelope) -> None:
        try:
            kind, ref, op = parse_suffix(fill.dest_suffix)
        except AddressError as error:
            self._runtime.count("ingress.unroutable")
            self._runtime.emit(steps.WireReceiveFailed(peer, "Unroutable", str(error)))
            return
        if kind != SUFFIX_SITE:
            self._dispatch(peer, fill, message, ref, op or "")

    def _dispatch(self, peer: PeerId, fill: Fill, message: Envelope, ref: int, op: str) -> None:
        """Hands a fill to the component op that it names; only ops declared `remote` can be named."""
        handler, _ = self._remote.get((ref, op), (None, -1))
        if handler is None:
            self._runtime.count("ingress.unroutable")
            self._runtime.emit(
                steps.WireReceiveFailed(peer, "Unroutable", f"no remote op {op!r} of component {ref}")
            )
            return
        try:
            handler(peer, fill, message)
        except WireReceiveError as error:
            self._failed(peer, error)

    # --- back-pressure --------------------------------------------------------------------------------

    def _notice(self, peer: PeerId, now_ns: int) -> None:
        """Tells a contributing sender to slow down, at most once a second;

        after three it is blocked until the queue drains.
        """
        engine = self._engine
        if peer == self._runtime.own_peer or not self._ledger.contributes(peer):
            return
        last, count = self.noticed.get(peer, (-NOTICE_INTERVAL_NS, 0))
        if now_ns - last < NOTICE_INTERVAL_NS:
            return
        if count >= NOTICES_BEFORE_BLOCK:
            if (
                peer not in engine.neighbours.blocked
                and len(engine.neighbours.blocked) < self._runtime.config.max_peers
            ):
                engine.neighbours.blocked.add(peer)
                self._runtime.count("peers.blocked")
                self._runtime.emit(steps.PeerBlocked(peer, "did not heed back-off notices"))
            return
        if peer not in self.noticed and len(self.noticed) >= self._runtime.config.max_peers:
            del self.noticed[next(iter(self.noticed))]
        self.noticed[peer] = (now_ns, count + 1)
        self._runtime.count("backpressure.notices")
        engine.neighbours.send_backoff_notice(peer, NOTICE_INTERVAL_NS)

    def drained(self) -> None:
        """The entries' queue is below the pressure mark again: everybody may send."""
        if self.noticed and self._ledger.pressure < PRESSURE:
            self.noticed.clear()
            self._engine.neighbours.blocked.clear()


def _nothing_with(_: object) -> None:
    return None


def _only_control(message: Envelope) -> bool:
    """Whether all that an envelope carries is for components, nothing for a site."""
    return bool(message.fills) and not any(fill.dest_suffix.startswith(SITE_PREFIX) for fill in message.fills)
