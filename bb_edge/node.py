"""`Node`: one peer's engine and doors, as drivers and hosts see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bb_edge.engine import runtime, snapshot, steps
from bb_edge.engine.binding import Run
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.engine import Engine, Parts
from bb_edge.engine.entries.bootstrap import BootstrapState, BootstrapTarget
from bb_edge.engine.entries.invokes import Invokes
from bb_edge.engine.ledger import IngressFull
from bb_edge.engine.net.arrivals import Data, Raw
from bb_edge.engine.net.crowd import Crowd
from bb_edge.engine.net.ingress import Entry
from bb_edge.engine.program.program import INVOKE, Program
from bb_edge.engine.run.bound import BoundGraph, BoundOp, OpObserver
from bb_edge.engine.run.straight import schedules_of
from bb_edge.inputs import InvokeError, expected_inputs, read_inputs
from bb_edge.inspection import Inspection, inspect
from bb_edge.ir import types
from bb_edge.ir.ids import PeerId
from bb_edge.syscalls.results import described
from bb_edge.wire.bodies import Body, BodyName
from bb_edge.wire.caps import RaisedSite
from bb_edge.wire.cbor import Buffer
from bb_edge.wire.durable_rows import OutboxName
from bb_edge.wire.envelope import RttReport


@dataclass(eq=False, repr=False)
class Node:
    """One installed node.

    `deliver_*`, `invoke` and `peer_presence` may be called from any thread, the rest from the poller's.
    """

    _engine: Engine
    _parts: Parts
    _graphs: Sequence[BoundGraph]
    _mains: Mapping[str, BoundGraph]
    program: Program
    _observer: OpObserver
    raised_sites: tuple[RaisedSite, ...]
    """Sites whose planned payloads lie above the cap of a fill, and what install granted them."""

    def __post_init__(self) -> None:
        parts, mains = self._parts, self._mains
        self._runtime, self._scheduler, self._peers = parts.runtime, parts.scheduler, parts.peers
        self.ingress, self.outbox = parts.ingress, parts.outgoing.durable
        self.crowd = Crowd(parts.runtime, parts.links, parts.peers, parts.ingress)
        self._identity = snapshot.Identity.of(parts.runtime.own_peer, self.program, mains)
        self._schedules = schedules_of(mains, parts.scheduler)
        self._expected = {target: expected_inputs(graph) for target, graph in mains.items()}
        self._shared = {target: types.shared_dims(graph.slot.input_types) for target, graph in mains.items()}
        self._invokes = Invokes(parts.runtime, parts.scheduler, self._graphs)

    def __repr__(self) -> str:
        return f"<Node {self.peer_id.short()}: {', '.join(self.targets)} of {self.program.module}>"

    # --- identity and introspection -------------------------------------------------------------------

    @property
    def peer_id(self) -> PeerId:
        return self._runtime.own_peer

    @property
    def epoch(self) -> int:
        """This incarnation's best-effort epoch; presence carries it."""
        return self._parts.links.best_effort_epoch

    @property
    def origin(self) -> runtime.Origin | None:
        """Whose state this node, or a run of it before, has adopted; or None."""
        return self._runtime.origin

    @property
    def config(self) -> NodeConfig:
        return self._runtime.config

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self._mains)

    @property
    def classes(self) -> tuple[str, ...]:
        """The peer classes that the node's presence lists."""
        return self._peers.own_classes

    @property
    def hears(self) -> tuple[str, ...] | None:
        """The classes that its targets send to, receive from or select, sorted; None for every class."""
        return self.program.heard_by(self._mains)

    @property
    def presence_meta(self) -> dict[str, object]:
        """What the node's presence says of it beside addresses: its runtime, what it accepts and reads."""
        return self._peers.own_meta

    @property
    def counters(self) -> dict[str, int]:
        """A copy of all counters."""
        return self._parts.counters

    @property
    def pending_sends(self) -> int:
        """Envelopes that wait for their acknowledgement, for room, or for their record on disk."""
        return self._parts.links.pending + self._parts.outgoing.waiting

    def unkept(self, gone: Callable[[int | BodyName], bool] | None = None) -> dict[PeerId, int]:
        """Durable envelopes per peer that wait for the disk; or were there, with a row that is `gone`."""
        return self._parts.outgoing.durable.unkept(gone)

    @property
    def health_threshold(self) -> int:
        """Failures in a row after which a peer counts as down; may be set while the node runs."""
        return self._peers.health.threshold

    @health_threshold.setter
    def health_threshold(self, value: int) -> None:
        self._peers.health.threshold = value

    @property
    def open_rounds(self) -> int:
        """How many `Repeat` ops with an end have not come to it."""
        return sum(1 for r in self._parts.sources.rounds if r.ends and not r.finished)

    @property
    def rounds_ended(self) -> int:
        """How many rounds of its `Repeat` ops have ended, over all restarts."""
        return self._runtime.counters.get("rounds.ended", 0)

    @property
    def rounds_done(self) -> bool:
        """Whether there are `Repeat` ops with an end, and all have come to it; a restart may find it so."""
        return any(r.ends for r in self._parts.sources.rounds) and not self.open_rounds

    @property
    def rtt_reports(self) -> dict[PeerId, tuple[RttReport, ...]]:
        """What peers have last said of round-trip times, hop by hop (envelope field 5); bounded."""
        return self._peers.round_trips.by_peer

    def ring(self, name: str) -> tuple[object, ...]:
        """What `Record` has kept under a name, oldest first."""
        return tuple(self._parts.states.rings.get(name, ()))

    def component(self, slot: str, target: str | None = None) -> Any:
        """The component bound to a slot (of the first target that has it)."""
        for name in (target,) if target is not None else self.targets:
            if (name, slot) in self._scheduler.components.slots:
                return self._scheduler.components.of(name, slot)
        raise InvokeError(f"no slot {slot!r}", f"node {self.peer_id.short()}")

    def peers_up(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers of a class that are up, as the node knows it."""
        return self._peers.up_peers(peer_class)

    @property
    def peers_up_now(self) -> tuple[dict[str, int], int, int]:
        """How many peers are up, as `PeerPrograms.up_counts` says; without the node itself."""
        return self._peers.programs.up_counts(self._peers.presences)

    def peer_meta(self, peer: PeerId) -> Mapping[str, object]:
        """What the last presence of a peer says besides classes and addresses; empty where there is none."""
        presence = self._peers.presences.get(peer)
        return {} if presence is None else presence.meta

    def observe_ops(self, wrap: Callable[[BoundOp], Run]) -> None:
        """Has every op run through what `wrap(op)` makes of its `run`; for tracers, before the first poll.

        The loop of a node that nobody observes knows nothing of it and pays nothing for it.
        """
        self._observer.observe(wrap, self._graphs)
        self._schedules.clear()
        for entry in self.ingress.entries:
            entry.schedule = None

    def inspect(self) -> Inspection:
        """What the node holds now, as plain data: executions and what holds them open, peers, queues, timers.

        For tools and tests, between two polls. It changes nothing, and costs time in proportion to what there
        is. See `bb_edge.inspection.Inspection` for the tables.
        """
        return inspect(self._parts, self.targets, self._schedules, self._engine.phases)

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        """One cycle at monotonic `now_ns`; an empty list when there was nothing to do."""
        return self._engine.poll(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to poll at the latest if nothing arrives; 0 = at once, None = nothing will come by itself."""
        return self._engine.next_deadline_ns()

    @property
    def has_ready(self) -> bool:
        """Whether something is ready that the last poll left: it had no time, or had run its share of ops."""
        return self._engine.has_ready

    # --- doors ----------------------------------------------------------------------------------------

    def deliver_inbound(self, data: Data, src_peer: PeerId, observed_address: bytes | None = None) -> None:
        """Hands in one envelope, whose bytes change no more; `src_peer` is who the transport says sent it.

        Raises IngressFull, keeping nothing, when the byte budget or the queue is used up. That is counted as
        turned away and not as dropped: the transport may keep the envelope, and offer it again.
        """
        most = self._runtime.config.caps.total_bytes
        try:
            if len(data) > most:
                what = f"an envelope of {len(data)} bytes, {most} at most"
                raise IngressFull(what, f"from {src_peer.short()}")
            self.ingress.offer_raw(Raw(data, src_peer, observed_address))
        except IngressFull:
            self._runtime.count("ingress.turned_away")
            raise

    def presences_come(self) -> None:
        """Tells that presences will be told: entries need a sender of the class that sends them."""
        self._peers.are_told = True

    def peer_presence(
        self,
        peer: PeerId,
        up: bool,
        addresses: tuple[bytes, ...] = (),
        meta: Mapping[str, object] | None = None,
        *,
        epoch: int = 0,
        classes: tuple[str, ...] = (),
        session: int = 0,
        seq: int = 0,
    ) -> None:
        """Tells that a peer came up or went down; feeds PeerUp/PeerDown, health and selectors.

        `classes` are those that it was said in. `session` and `seq` count the peer's connections of an epoch,
        and what it said in one; 0 where the transport does not. Raises IngressFull where too many notices
        wait already. `meta` is kept, and does not change any more: many peers may say the same.
        """
        facts = {} if meta is None else meta
        self.ingress.notice(self._peers.presence, peer, up, epoch, classes, addresses, facts, session, seq)

    def presence_cleared(self, peer: PeerId, peer_class: str | None = None) -> None:
        """Tells that a peer's presence was removed, in a class or altogether: it is not a member any more.

        Raises IngressFull where too many notices wait already.
        """
        self.ingress.notice(self._peers.cleared, peer, peer_class)

    def connected(self, up: bool) -> None:
        """Tells whether what the node sends leaves it now; where nobody tells, it does. Poller's thread."""
        self._peers.uplink.tell(up)

    def peer_failed(self, peer: PeerId) -> None:
        """Tells that the transport was refused a delivery: a failure of the peer's. Raises IngressFull."""
        self.ingress.notice(self._peers.failed, peer)

    def invoke(self, target: str, inputs: Mapping[str, object] | None = None) -> int:
        """Starts an execution at the target's inputs; returns its ExecId, which `ExecutionEnded` closes.

        Values are arrays, numbers or lists of them, or encoded bytes for tensor inputs. InvokeError and
        IngressFull keep nothing.
        """
        graph = self._mains.get(target)
        if graph is None:
            installed = ", ".join(self._mains)
            raise InvokeError(f"no installed target {target!r}", "invoke", f"installed: {installed}")
        given = {} if inputs is None else inputs
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvokeError(f"inputs are given by name, not as {described(given)}", target, "{name: value}")
        config = self._runtime.config
        if len(given) > config.invoke_inputs:
            raise InvokeError(f"{len(given)} inputs, {config.invoke_inputs} at most", target)
        values, size = read_inputs(graph, self._expected[target], self._shared[target], given)
        if size > config.invoke_bytes:
            what = f"{size} bytes requested, {config.invoke_bytes} available for one invoke"
            raise InvokeError(what, target, "raise limits.invoke_bytes (--config; in Python NodeConfig)")
        number = self._scheduler.pool.mint()
        claim_set: tuple[int, ...] = ()
        if not values:
            if graph.slot.inputs and not graph.starts and not any(op.spec.pulls for op in graph.ops):
                what = "no input is given, and nothing of it runs without one"
                raise InvokeError(what, target, f"inputs: {', '.join(graph.slot.inputs)}")
            claim_set = graph.claims.get(INVOKE, ())
        elif graph.input_claims:
            claim_set = tuple(sorted({c for site in values for c in graph.input_claims.get(site, ())}))
        entry = Entry(graph.target, self._invokes.fill, (graph.index, claim_set, values), number)
        schedule = self._schedules.get(target)
        if schedule is not None and tuple(values) == schedule.sites:
            entry.schedule = schedule
        try:
            self.ingress.offer_invoke(entry)
        except IngressFull:
            self._runtime.count("ingress.full")
            raise
        return number

    # --- durability -----------------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The record of a `PersistOutbox` or `Journal` is on disk, and outlives a power cut.

        From the poller's thread, as all that follows. A token that nobody waits for is fine.
        """
        if not self._parts.admission.journal.persisted(token):
            self._parts.outgoing.durable.records.persisted(token)

    def persist_failed(self, token: int, error: BaseException) -> None:
        """It could not be written: ours is asked for again later, a peer's counts as never received."""
        if not self._parts.admission.persist_failed(token, error):
            self._parts.outgoing.durable.records.persist_failed(token, error)

    def snapshot(self, now_ns: int) -> bytes:
        """The node's whole state, between two polls; `install(…, snapshot=…)` takes it.

        SnapshotError where a value in a slot or queue has no written form.
        """
        return b"".join(self.snapshot_pieces(now_ns))

    def snapshot_pieces(self, now_ns: int) -> list[Buffer]:
        """The same in pieces, which stand until the next poll: nothing large is copied."""
        return snapshot.save(self._parts, self._identity, now_ns)

    def snapshot_written(self) -> tuple[OutboxName, ...]:
        """The bytes of the last `snapshot` outlive a power cut from now on.

        Durable requests leave in the next poll, and those that closed without somebody are over. Names the
        rows of the outbox that may go.
        """
        self._parts.wish.written()
        self._parts.admission.journal.snapshot_written()
        return tuple(self._parts.outgoing.durable.snapshot_written(snapshot.may_run(self._parts)))

    def needs_row(self, name: int | BodyName) -> bool:
        """Whether an envelope that is still open needs the row of the outbox, or the body, of that name."""
        return self._parts.outgoing.durable.needs_row(name)

    def adopt_outbox(self, records: Iterable[bytes], now_ns: int, wall_ns: int) -> None:
        """Takes what the outbox on disk holds, after a restart and before the first poll.

        It outranks the snapshot: what is not there any more is not sent again. OutboxError for damaged
        records, or more than fit.
        """
        self._runtime.advance(max(self._runtime.now_ns, now_ns))
        self._parts.outgoing.adopt(records, now_ns, wall_ns, self._parts.requests.awaits)

    def replay(self, records: Iterable[bytes]) -> None:
        """Takes what the journal on disk holds, after a restart and before the first poll.

        The next polls deliver of it what the snapshot does not know. JournalRecordError, taking nothing.
        """
        self._parts.admission.journal.replay(records)

    def run_bootstrap(self, what: BootstrapTarget) -> None:
        """Queues bootstraps. Raises BootstrapError or InvokeError, staging nothing, where it cannot be."""
        self._parts.bootstraps.request(what)

    def keep_bootstrapping(self, inputs: Mapping[str, Mapping[str, object]] | None = None) -> None:
        """Starts every bootstrap that is not done, and tries again what fails until it is done.

        For hosts that run unattended, before the first poll; `bb-edge run` does it. `inputs` are those of
        targets' bootstraps: arrays by input, by target. A failed one is tried again after 1 s, doubling to
        60 s, its components constructed anew; the entries of the targets that it concerns wait for it. One
        that a snapshot holds as done is not run again. Raises UnknownTarget, UnknownInput, MissingInput and
        InvokeError, having started nothing.
        """
        self._parts.bootstraps.keep_going(inputs or {})

    @property
    def bootstraps(self) -> tuple[BootstrapState, ...]:
        """All bootstraps, targets' and components', in install order; empty where there are none."""
        return self._parts.bootstraps.states

    def has_phase(self, phase: int) -> bool:
        """Whether the program has a `LifecyclePhase` op of that phase (`steps.Phase`)."""
        return self._parts.sources.has_phase(phase)

    def fire_lifecycle(self, phase: int) -> None:
        """Fires `LifecyclePhase` ops of that phase in the next poll (`steps.Phase`)."""
        self._parts.sources.due_phases.append(phase)

    def lay_aside(self, keep: Callable[[Body], Body | None]) -> None:
        """Gives memory back that the node does not need before its next poll. Between two polls.

        In place of the body of each envelope that waits for its acknowledgement it holds what `keep` returns:
        equal bytes that lie elsewhere and do not change; None leaves the body as it is. Its generators of
        random numbers go, and come again. What it is charged for, and what it does, stays the same.
        """
        self._parts.links.lay_aside(keep)
        self._runtime.rng.rest()
        self._runtime.ids.rest()

    def set_waker(self, waker: Callable[[], None] | None) -> None:
        """`waker()` is called, from any thread, when something arrived that a poll should see."""
        self.ingress.set_waker(waker)
