"""Open requests: who was asked, who answered, when it is over (semantics §2 "Ask and gather", §3, §6).

One cohort per fired `SendReqBatched`. Its life, all transitions in this file:

    OPEN ──enough answers │ every asked peer settled │ deadline──► CLOSED ──all children ended──► FIRED

A durable one that closes without somebody's answer stays CLOSED until a snapshot holds that: clocks and
presence decide who is missing, and a node that comes back must not find otherwise.

A peer is settled once it answered, is down, could not be reached, or sent an answer that could not be
decoded; what a settled peer answers all the same counts while the request is open.
While OPEN, accepted answers run as children (mode `each`, at most `max_children` at once, further ones
wait) or
are kept (mode `batch`). FIRED resumes `RecvRespBatched` in the asking execution.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.net.until_snapshot import UntilSnapshot
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import PENDING
from bb_edge.ir import keys, types
from bb_edge.ir.ids import PeerId
from bb_edge.ir.types import ValueType
from bb_edge.roles import TRIGGER
from bb_edge.wire.outbox import Cause

if TYPE_CHECKING:
    from bb_edge.engine.net.outgoing import Unit


class CohortState(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    FIRED = "fired"


class Cohort:
    """One request in flight."""

    __slots__ = (
        "accepted",
        "answers",
        "ask",
        "asked",
        "by_req_id",
        "collector",
        "durable",
        "enough",
        "execution",
        "frame",
        "gated",
        "id",
        "mode",
        "op",
        "port",
        "reason",
        "region",
        "running",
        "settled",
        "state",
        "timer",
        "waiting",
    )

    def __init__(self, number: int, frame: Frame, execution: Execution, op: BoundOp) -> None:
        meta = op.spec.meta
        self.id = number
        self.frame = frame
        self.execution = execution
        self.op = op
        self.port = meta.get(keys.PORT_KEY, op.spec.name)
        self.mode = meta.get(keys.ANSWER_MODE_KEY, keys.ANSWER_BATCH)
        self.enough = int(meta.get(keys.ENOUGH_KEY, "0"))
        self.durable = meta.get(keys.DURABLE_KEY) == "1"
        self.ask: Unit | None = None  # what a best-effort one sends, should it have to be sent again
        self.state = CohortState.OPEN
        self.asked: tuple[PeerId, ...] = ()
        self.gated: tuple[PeerId, ...] = ()
        self.by_req_id: dict[int, PeerId] = {}
        self.settled: set[PeerId] = set()
        self.accepted: set[PeerId] = set()
        self.answers: list[tuple[object, ...]] = []
        self.waiting: deque[tuple[PeerId, tuple[object, ...], Cause | None]] = deque()
        self.running = 0
        self.region: BoundRegion | None = None
        self.collector: tuple[int, int] | None = (
            None  # (token, number of stacks) of the parked RecvRespBatched
        )
        self.timer = 0
        self.reason = ""


class Requests:
    """All open requests of a node, bounded by `max_requests`."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self.cohorts: dict[int, Cohort] = {}
        self._by_req_id: dict[int, Cohort] = {}
        self.of_child: dict[int, Cohort] = {}  # by the number of the execution that handles an answer
        self.next_id = 1
        self.on_closed: Callable[[int], None] = _nothing_with  # told each request id that nobody waits for
        self.needs_snapshot: UntilSnapshot[int] = UntilSnapshot()  # cohorts that closed with somebody missing
        # Asks the driver for a snapshot; None on a node whose driver keeps nothing on disk.
        self.want_snapshot: Callable[[str], None] | None = None
        engine.runtime.callbacks.register("request.deadline", self._deadline)

    def __len__(self) -> int:
        return len(self.cohorts)

    # --- asking ---------------------------------------------------------------------------------------

    def open(
        self,
        frame: Frame,
        op: BoundOp,
        gated: tuple[PeerId, ...],
        asked: tuple[PeerId, ...],
        deadline_ns: int,
        region: BoundRegion | None,
    ) -> Cohort:
        """Opens a cohort in the execution of `frame`; each gated peer gets a request id of its own.

        Raises CapacityError at `max_requests`, OpError where there is no deadline.
        """
        execution = frame.execution
        assert execution is not None
        if len(self.cohorts) >= self._runtime.config.max_requests:
            raise CapacityError(
                f"{self._runtime.config.max_requests} requests are open already",
                where=op.spec.name,
                hint="raise NodeConfig.max_requests, or shorten deadlines",
            )
        if deadline_ns <= 0:
            raise OpError(
                "a request needs a deadline", where=op.spec.name, hint="give request(…, deadline_ns=…)"
            )
        cohort = Cohort(self.next_id, frame, execution, op)
        self.next_id += 1
        cohort.asked = tuple(dict.fromkeys(asked))
        cohort.gated = tuple(dict.fromkeys(gated))
        cohort.region = region
        for peer in cohort.gated:
            number = self._runtime.ids.getrandbits(64) or 1
            while number in self._by_req_id:
                number = self._runtime.ids.getrandbits(64) or 1
            cohort.by_req_id[number] = peer
            self._by_req_id[number] = cohort
        self.cohorts[cohort.id] = cohort
        self._try_down(cohort)
        execution.asks(self, bool(cohort.gated))
        cohort.timer = self._runtime.timers.at(
            self._runtime.now_ns + deadline_ns, self._deadline, cohort.id, reserved=True
        )
        self._runtime.count("requests.opened")
        return cohort

    def _try_down(self, cohort: Cohort) -> None:
        """Peers that are down and tried once more hold nobody up, unless there is nobody else."""
        neighbours = self._engine.neighbours
        tried = [peer for peer in cohort.gated if not neighbours.is_up(peer)]
        if len(tried) < len(cohort.gated):
            for peer in tried:
                cohort.settled.add(peer)
                neighbours.backoff.failed(peer, self._runtime.now_ns)  # an answer ends it

    def opened(self, cohort: Cohort) -> None:
        """To be called once the envelopes are queued: a request that asks nobody closes at once."""
        self._check(cohort)

    def revive(self, number: int, frame: Frame, execution: Execution, op: BoundOp) -> Cohort:
        """The cohort that a snapshot brings; `reopened` ties it in once it is filled."""
        cohort = self.cohorts[number] = Cohort(number, frame, execution, op)
        return cohort

    def reopened(self, cohort: Cohort) -> None:
        """A cohort of a snapshot is complete: its answers are expected again."""
        if cohort.state is CohortState.OPEN:
            for number in cohort.by_req_id:
                self._by_req_id[number] = cohort
        elif cohort.state is CohortState.CLOSED:
            self.needs_snapshot.ready.append(cohort.id)  # this one holds it

    # --- settling -------------------------------------------------------------------------------------

    def expects(self, req_id: int, peer: PeerId) -> bool:
        """Whether an answer with that id, from that peer, would be accepted now."""
        cohort = self._by_req_id.get(req_id)
        return (
            cohort is not None
            and cohort.state is CohortState.OPEN
            and cohort.by_req_id[req_id] == peer
            and peer not in cohort.accepted
        )

    def sites(self, req_id: int) -> Cohort | None:
        """The cohort that an answer belongs to, for decoding it."""
        return self._by_req_id.get(req_id)

    def answer(
        self, req_id: int, peer: PeerId, values: tuple[object, ...], cause: Cause | None = None
    ) -> None:
        """Takes an expected answer; `values` are the decoded payloads in the reply's order, `cause` names the
        envelope of a durable one.
        """
        cohort = self._by_req_id[req_id]
        cohort.settled.add(peer)
        cohort.accepted.add(peer)
        self._runtime.count("requests.answers")
        if cohort.mode == keys.ANSWER_EACH and cohort.region is not None:
            cohort.waiting.append((peer, values, cause))
            self._run_waiting(cohort)
        elif cohort.mode == keys.ANSWER_BATCH:
            cohort.answers.append(values)
        self._check(cohort)

    def settle_peer(self, req_id: int, peer: PeerId) -> None:
        """The asked peer will not answer this one: unreachable, or its answer was broken."""
        cohort = self._by_req_id.get(req_id)
        if cohort is not None and cohort.state is CohortState.OPEN and cohort.by_req_id[req_id] == peer:
            cohort.settled.add(peer)
            self._check(cohort)

    def peer_down(self, peer: PeerId) -> None:
        """Nobody waits for a peer that is down."""
        for cohort in tuple(self.cohorts.values()):
            if cohort.state is CohortState.OPEN and peer in cohort.gated and peer not in cohort.settled:
                cohort.settled.add(peer)
                self._check(cohort)

    def unanswered(self) -> list[tuple[int, PeerId]]:
        """(request id, peer) of every answer that is still awaited."""
        return [
            (number, peer)
            for cohort in self.cohorts.values()
            if cohort.state is CohortState.OPEN
            for number, peer in cohort.by_req_id.items()
            if peer not in cohort.settled
        ]

    def _check(self, cohort: Cohort) -> None:
        if cohort.state is not CohortState.OPEN:
            return
        if cohort.enough and len(cohort.accepted) >= cohort.enough:
            self._close(cohort, "enough")
        elif len(cohort.settled) >= len(cohort.gated):
            self._close(cohort, "all settled" if cohort.gated else "nobody asked")

    def _deadline(self, _now_ns: int, number: int) -> None:
        cohort = self.cohorts.get(number)
        if cohort is not None:
            self._close(cohort, "deadline")

    def _close(self, cohort: Cohort, reason: str) -> None:
        if cohort.state is not CohortState.OPEN:
            return
        engine = self._engine
        cohort.state = CohortState.CLOSED
        cohort.reason = reason
        self._runtime.timers.cancel(cohort.timer)
        for number, peer in cohort.by_req_id.items():
            self._by_req_id.pop(number, None)
            self.on_closed(number)
            if reason == "deadline" and peer not in cohort.settled:
                self._runtime.count("requests.unanswered")
                engine.neighbours.unanswered(peer)
        lacking = reason != "enough" and not cohort.accepted.issuperset(cohort.gated)
        if lacking and cohort.durable and self.want_snapshot is not None:
            self.needs_snapshot.add(cohort.id)
            self._ask_for_snapshot()
        self._maybe_fire(cohort)

    def snapshot_taken(self) -> None:
        """The node is being written down: who is missing is in it."""
        self.needs_snapshot.taken()

    def snapshot_written(self) -> None:
        """The snapshot is on disk: what waited for it goes on in the next poll."""
        self.needs_snapshot.written()
        self._ask_for_snapshot()

    def _ask_for_snapshot(self) -> None:
        if self.needs_snapshot.waiting and self.want_snapshot is not None:
            self.want_snapshot("a durable request that lacks an answer")

    def fire_saved(self) -> None:
        """Goes on with what a snapshot on disk holds; at the beginning of a poll."""
        ready = self.needs_snapshot.ready
        while ready:
            cohort = self.cohorts.get(ready.popleft())
            if cohort is not None:
                self._maybe_fire(cohort)

    # --- children -------------------------------------------------------------------------------------

    def _run_waiting(self, cohort: Cohort) -> None:
        region = cohort.region
        assert region is not None
        entry = region.graph.ops[region.region.entry]
        while cohort.waiting and cohort.running < self._runtime.config.max_children:
            peer, values, cause = cohort.waiting.popleft()
            tail = (*values, (peer,), TRIGGER)  # the trigger is optional
            outputs = [(s, v) for s, v in zip(entry.outs, tail, strict=False) if s >= 0]
            cohort.running += 1
            child = self._engine.start_child(cohort.frame, region, outputs)
            self.of_child[child.id] = cohort
            # It counts as an answer: no gate drops it because its peer went since.
            child.came_from(peer, cause, child.deadline_ns, acknowledged=True)

    def execution_ended(self, execution: Execution) -> None:
        """An execution that asked has ended: its cohorts go. A child's place goes to the next answer."""
        for number in execution.cohorts:
            self.cohorts.pop(number, None)
        cohort = self.of_child.pop(execution.id, None)
        if cohort is not None:
            cohort.running -= 1
            self._run_waiting(cohort)
            self._maybe_fire(cohort)

    # --- firing ---------------------------------------------------------------------------------------

    def collect(self, ctx: Any, req_id: object, stacks: int) -> object:
        """`RecvRespBatched`: parks until the request is over, then yields (closed, missing, *stacks)."""
        cohort = self.cohorts.get(req_id) if isinstance(req_id, int) else None
        if cohort is None:
            raise OpError(f"no open request {req_id!r}", where=ctx.op.spec.name)
        if cohort.state is CohortState.FIRED:
            return self._result(cohort, stacks)
        token = self._engine.waiting.suspend(ctx, Hold.PERMIT)
        cohort.collector = (token, stacks)
        return PENDING

    def _maybe_fire(self, cohort: Cohort) -> None:
        unsaved = cohort.id in self.needs_snapshot.waiting
        if cohort.state is not CohortState.CLOSED or cohort.running or cohort.waiting or unsaved:
            return
        engine = self._engine
        cohort.state = CohortState.FIRED
        self._runtime.emit(
            steps.RequestClosed(
                cohort.execution.target,
                cohort.execution.id,
                cohort.port,
                len(cohort.gated),
                len(cohort.accepted),
                cohort.reason,
            )
        )
        execution = cohort.execution
        execution.asked(cohort.id)
        if cohort.collector is not None:
            token, stacks = cohort.collector
            try:
                result = self._result(cohort, stacks)
            except OpError as error:
                engine.fail(token, error)
            else:
                engine.resume(token, result)
        engine.pool.wake(execution)

    def _result(self, cohort: Cohort, stacks: int) -> tuple[object, ...]:
        missing = tuple(p for p in cohort.asked if p not in cohort.accepted)
        if not cohort.answers:
            wire_id = cohort.op.spec.meta.get(keys.WIRE_ID_KEY, "")
            declared = cohort.frame.region.graph.slot.stacks.get(wire_id, ())
            return (TRIGGER, missing, *(_empty(t) for t in (*declared, *[None] * stacks)[:stacks]))
        return (
            TRIGGER,
            missing,
            *(_stack([a[i] for a in cohort.answers], cohort.port) for i in range(stacks)),
        )


def _nothing_with(_: int) -> None:
    return None


def _empty(declared: ValueType | None) -> np.ndarray[Any, Any]:
    """The batch that nobody answered, of the declared dtype; unknown dimensions are 0, an unknown rank [0].

    Float32 where the artifact says nothing of the element type.
    """
    elem, shape = (None, None) if declared is None else (declared.node.elem_type, declared.shape)
    dtype = None if elem is None else types.dtype_of_elem(elem)
    rest = (shape or ())[1:]
    return np.empty((0, *(d if isinstance(d, int) else 0 for d in rest)), dtype or np.float32)


def _stack(rows: Sequence[object], port: str) -> np.ndarray[Any, Any]:
    """One array with a new first axis."""
    arrays = []
    for row in rows:
        if not isinstance(row, np.ndarray):
            raise OpError(
                "only tensor replies can be read as one stack", where=port, hint="read r.answer instead"
            )
        arrays.append(row)
    if len({(a.shape, a.dtype) for a in arrays}) > 1:
        raise OpError(
            f"the answers do not stack: {sorted({(str(a.dtype), a.shape) for a in arrays})}",
            where=port,
            hint="read r.answer instead, once per answer",
        )
    return np.stack(arrays)
