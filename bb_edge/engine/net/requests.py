"""Open requests: who was asked, who answered, when it is over ("ask and gather").

One cohort per fired `SendReqBatched`; the table of its states is `cohort.REQUEST`. A request closes when it
has enough answers, when every peer that it asked is settled, or at its deadline. Its children end, then it
fires: `RecvRespBatched` in the asking execution goes on.

A durable one that closes without somebody's answer stays closed until a snapshot holds that: clocks and
presence decide who is missing, and a node that comes back must not find otherwise.

A peer is settled once it answered or said that it will not, is down, could not be reached, or sent what
could not be read; what a settled peer answers all the same counts while the request is open. The first reply
or failure of a peer is final. Answers run as children (mode `each`, at most `max_children` at once and no
more than are needed, further ones wait) or are kept (mode `batch`). An answer counts once its child has ended
without a failed op; what a child refused is missing.

Rules E16 to E18 of the specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.net.arrivals import Arrival
from bb_edge.engine.net.children import Children
from bb_edge.engine.net.cohort import Answer, Cohort, CohortEvent, CohortState
from bb_edge.engine.net.firing import Firing
from bb_edge.engine.net.greetings import Greetings
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.trials import Trials
from bb_edge.engine.net.unanswered import Unanswered
from bb_edge.engine.net.units import Unit
from bb_edge.engine.net.until_snapshot import SnapshotWish, UntilSnapshot
from bb_edge.engine.net.verdicts import Verdicts, why_failed, why_refused
from bb_edge.engine.plain import Shift
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.naming import Naming
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Fill
from bb_edge.wire.envelope_records import Failure, FailureCode


class Requests:
    """All open requests of a node, bounded by `max_requests`."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        outgoing: Outgoing,
        peers: PeerStates,
        wish: SnapshotWish,
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._outgoing = outgoing
        self._peers = peers
        # Durable ones that closed without somebody's answer.
        self._unsaved: UntilSnapshot[int] = wish.until("a durable request that lacks an answer")
        self.saved = self._unsaved.ready  # those of which a snapshot on disk holds that
        self.cohorts: dict[int, Cohort] = {}
        self.by_req_id: dict[int, Cohort] = {}
        self.children = Children(runtime, scheduler)
        self.firing = Firing(runtime, scheduler, peers, Greetings(runtime, outgoing, peers), self.cohorts)
        self.trials = Trials(runtime, outgoing, peers)
        self.verdicts = Verdicts(runtime, outgoing, peers)
        self.unanswered = Unanswered(runtime, outgoing, peers)
        self.next_id = 1
        runtime.callbacks.register("request.deadline", self._deadline)

    def __len__(self) -> int:
        return len(self.cohorts)

    # --- asking ---------------------------------------------------------------------------------------

    def ask(
        self,
        frame: Frame,
        op: BoundOp,
        fills: Sequence[Fill],
        gated: tuple[PeerId, ...],
        asked: tuple[PeerId, ...],
        *,
        deadline_ns: int,
        wire_id: int,
        region: BoundRegion | None,
        body: bytes = b"",
    ) -> int:
        """Sends the fills to each gated peer, under a request id of its own, and gives the cohort's number.

        `body` are large fills as bytes, the same for all.

        A request that asks nobody closes at once. Raises CapacityError at `max_requests`, OpError where there
        is no deadline.
        """
        config = self._runtime.config
        if len(self.cohorts) >= config.max_requests:
            raise CapacityError(
                f"{config.max_requests} requests are open already",
                where=op.spec.name,
                hint="raise limits.max_requests (--config; in Python NodeConfig), or shorten deadlines",
            )
        if deadline_ns <= 0:
            raise OpError(
                "a request needs a deadline", where=op.spec.name, hint="give request(…, deadline_ns=…)"
            )
        now_ns, execution = self._runtime.now_ns, frame.execution
        assert execution is not None
        until, limit = now_ns + deadline_ns, execution.until_ns
        cut = 0 < limit < until
        if cut:
            until = limit
        if until <= now_ns:
            gated = ()
        elif self._peers.failing:
            gated = tuple(peer for peer in gated if self._peers.failing.may_ask(peer))
        stretch = self._peers.uplink.stretch
        cohort = self._open(Cohort(self.next_id, frame, op, gated, asked, region, until, cut, stretch))
        for peer in cohort.held_back:
            cohort.reasons[peer] = MissingReason.CUT if until <= now_ns else self._peers.why_not(peer)
        unit = Unit(
            self._runtime.own_peer,
            fills,
            body=body,
            kind=envelope.REQUEST,
            deadline_ns=until,
            durable=cohort.durable,
            wire_id=wire_id,
        )
        if not cohort.durable:
            cohort.ask = unit.alone(0, unit.peer)  # before it is told whom to ask
        for peer, why in self._outgoing.ask(unit, cohort.by_req_id, cohort.execution, op).items():
            cohort.settle(peer, why)
        self._check(cohort)
        return cohort.id

    def _open(self, cohort: Cohort) -> Cohort:
        """Gives each peer its request id, and holds the execution open until the request is over."""
        self.next_id += 1
        for peer in cohort.gated:
            number = self._runtime.ids.getrandbits(64) or 1
            while number in self.by_req_id:
                number = self._runtime.ids.getrandbits(64) or 1
            cohort.by_req_id[number] = peer
            self.by_req_id[number] = cohort
        self.cohorts[cohort.id] = cohort
        self.trials.begin(cohort)
        cohort.execution.asks(self, bool(cohort.gated))
        cohort.timer = self._runtime.timers.at(cohort.until_ns, self._deadline, cohort.id, reserved=True)
        self._runtime.count("requests.opened")
        return cohort

    def ask_again(self) -> None:
        """Repeats best-effort requests to the peers that had not answered, after a restart."""
        for cohort in self.cohorts.values():
            self._repeat(
                cohort, {n: peer for n, peer in cohort.by_req_id.items() if peer not in cohort.settled}
            )

    def peer_restarted(self, peer: PeerId) -> None:
        """Repeats best-effort requests that a peer has acknowledged and forgotten: it was started anew."""
        for cohort in self.cohorts.values():
            if peer not in cohort.final:
                self._repeat(cohort, {n: peer for n, asked in cohort.by_req_id.items() if asked == peer})

    def _repeat(self, cohort: Cohort, asked: dict[int, PeerId]) -> None:
        """Sends a request once more, but for those whose envelope is on its way."""
        again = {n: peer for n, peer in asked.items() if not self._outgoing.is_asking(n)}
        if again and cohort.ask is not None and cohort.state is CohortState.OPEN:
            self._runtime.count("requests.repeated", len(again))
            self._outgoing.ask(replace(cohort.ask), again, cohort.execution, cohort.op)

    # --- settling -------------------------------------------------------------------------------------

    def expects(self, req_id: int, peer: PeerId) -> bool:
        """Whether an answer with that id, from that peer, would be accepted now."""
        cohort = self.by_req_id.get(req_id)
        return (
            cohort is not None
            and cohort.allows(CohortEvent.ANSWERED)
            and cohort.by_req_id[req_id] == peer
            and peer not in cohort.final
        )

    def has_company(self, req_id: int, held: Mapping[int, Arrival]) -> bool:
        """Whether answers are to come behind one with that id, and those that are being written."""
        cohort = self.by_req_id.get(req_id)
        return cohort is not None and cohort.has_company(held)

    def awaits(self, req_id: int) -> bool:
        """Whether a request of that id is open."""
        return req_id in self.by_req_id

    def answer(self, req_id: int, answer: Answer) -> None:
        """Takes an expected answer, whose values are in the reply's order.

        Its bytes stay charged: to its peer until its child execution has ended, or to nobody, with the
        execution that asked, where the round keeps it.
        """
        cohort = self.by_req_id[req_id]
        cohort.happens(CohortEvent.ANSWERED)
        cohort.answered(answer.peer)
        ledger = self._scheduler.ledger
        if cohort.mode == keys.ANSWER_EACH and cohort.region is not None:
            cohort.waiting.append(answer)
            self.children.run(cohort)
        else:
            if cohort.mode == keys.ANSWER_BATCH:
                cohort.answers.append(answer.values)
                ledger.disown(answer.peer, answer.size)
                cohort.execution.charge_answer(answer.size)
            else:
                ledger.release(answer.peer, answer.size)
            self._accept(cohort, answer.peer)
        self._check(cohort)

    def _accept(self, cohort: Cohort, peer: PeerId) -> None:
        cohort.accepted.add(peer)
        self._runtime.count("requests.answers")

    def failed(self, req_id: int, peer: PeerId, failure: Failure) -> None:
        """Takes an expected answer that says that there will be no reply: nobody waits for the peer."""
        cohort = self.by_req_id[req_id]
        self._runtime.count("requests.failed")
        self._runtime.emit(steps.RequestFailed(peer, failure.name, failure.detail, cohort.port))
        cohort.final.add(peer)
        self._settle(cohort, peer, why_failed(failure, cut=cohort.cut))

    def settle_peer(self, req_id: int, peer: PeerId, reason: MissingReason, why: str = "") -> None:
        """The asked peer will not answer this one: unreachable, or its answer is refused, for that reason."""
        cohort = self.by_req_id.get(req_id)
        if cohort is not None and cohort.by_req_id[req_id] == peer:
            if why:
                self.verdicts.refuse(peer, cohort.port, Failure(FailureCode.REFUSED, why))
            self._settle(cohort, peer, reason)

    def peer_down(self, peer: PeerId) -> None:
        """Nobody waits for a peer that is down."""
        for cohort in tuple(self.cohorts.values()):
            if peer in cohort.gated and peer not in cohort.settled:
                self._settle(cohort, peer, MissingReason.DOWN)

    def _settle(self, cohort: Cohort, peer: PeerId, reason: MissingReason) -> None:
        if cohort.allows(CohortEvent.SETTLED):
            cohort.happens(CohortEvent.SETTLED)
            cohort.settle(peer, reason)
            self._check(cohort)

    def _check(self, cohort: Cohort) -> None:
        if (event := cohort.over) is not None:
            self._close(cohort, event)

    def _deadline(self, _now_ns: int, number: int) -> None:
        cohort = self.cohorts.get(number)
        if cohort is not None:
            self._close(cohort, CohortEvent.DEADLINE)

    def _close(self, cohort: Cohort, event: CohortEvent) -> None:
        if not cohort.allows(event):
            return
        cohort.happens(event)
        cohort.reason = event.value
        self._runtime.timers.cancel(cohort.timer)
        for number, peer in cohort.by_req_id.items():
            self.by_req_id.pop(number, None)
            if event is CohortEvent.DEADLINE and peer not in cohort.settled:
                why, down = self.unanswered.judge(number, peer, cohort.stretch, "requests.unanswered")
                late = cohort.cut and why is MissingReason.DEADLINE
                cohort.reasons.setdefault(peer, MissingReason.CUT if late else why)
                if down:
                    self.peer_down(peer)  # before this request fires, others that wait for the peer close
                continue
            if peer in cohort.tried and peer not in cohort.final and event is not CohortEvent.DEADLINE:
                self.trials.keep(number, peer, cohort.until_ns)
            else:
                self._outgoing.forget_ask(number)
            if peer not in cohort.settled:
                cohort.reasons.setdefault(peer, MissingReason.ENOUGH)
        if cohort.durable and cohort.lacks_answers:
            self._unsaved.add(cohort.id)
        self._maybe_fire(cohort)

    def fire_saved(self) -> None:
        """Goes on with what a snapshot on disk holds; at the beginning of a poll."""
        while self.saved:
            cohort = self.cohorts.get(self.saved.pop(0))
            if cohort is not None:
                self._maybe_fire(cohort)

    def execution_ended(self, execution: Execution) -> None:
        """An execution that asked has ended: its cohorts go. A child's place goes to the next answer."""
        for number in execution.cohorts:
            self.cohorts.pop(number, None)
        cohort = self.children.ended(execution)
        if cohort is None:
            return
        peer = execution.source
        assert peer is not None
        if execution.failed or execution.fault is not None:  # what the child refused, or had no time for
            why = cohort.reasons[peer] = why_refused(execution.fault)
            if why not in (MissingReason.CUT, MissingReason.FAULT_HERE):
                self.verdicts.refuse(peer, cohort.port, execution.fault)
        else:
            self._accept(cohort, peer)
        if cohort.has_enough:
            self.children.forget_waiting(cohort)
        self.children.run(cohort)
        self._check(cohort)
        self._maybe_fire(cohort)

    def _maybe_fire(self, cohort: Cohort) -> None:
        unsaved = cohort.id in self._unsaved
        if cohort.running or cohort.waiting or unsaved or not cohort.allows(CohortEvent.DONE):
            return
        self.firing.fire(cohort)

    def save(self) -> list[Any]:
        """All requests as plain values; `restore` takes them."""
        children = [[number, cohort.id] for number, cohort in self.children.cohorts.items()]
        return [self.next_id, [cohort.save() for cohort in self.cohorts.values()], children]

    def restore(self, data: Any, shift: Shift, naming: Naming) -> None:
        """Takes what `save` gave, once the executions are there: answers are expected again."""
        self.next_id, rows, children = data
        for row in rows:
            cohort = self.cohorts[row["id"]] = Cohort.restored(row, shift, naming)
            cohort.execution.asker = self
            for answer in cohort.waiting:
                self._scheduler.ledger.recharge(answer.peer, answer.size)
            if cohort.state is not CohortState.FIRED:
                cohort.execution.hold(Hold.REQUEST)
            if cohort.state is CohortState.OPEN:
                self.by_req_id.update(dict.fromkeys(cohort.by_req_id, cohort))
            elif cohort.state is CohortState.CLOSED:
                self._unsaved.pass_by(cohort.id)  # the snapshot that brings it holds it
        for number, request in children:
            self.children.cohorts[number] = self.cohorts[request]
            naming.execution(number).asker = self
