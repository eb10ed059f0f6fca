"""The end of a request: the execution that asked goes on with the result, and everybody hears of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bb_edge.engine import steps
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.cohort import Cohort, CohortEvent, CohortState
from bb_edge.engine.net.greetings import Greetings
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import PENDING, Running
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason

NO_PEERS = (
    "the program's list of peers is empty: nobody of the class that it asks is up, or fewer than the min= of"
    " its sample; bb-edge peers lists who is up"
)
"""What a request of nobody tells, where the program named nobody."""

LEFT_OUT = (
    "everybody in the program's list was left out, for the reasons that `missing` gives; each is tried again"
    " by itself, and bb-edge peers lists them"
)
"""What a request of nobody tells, where the gates left out all whom the program named."""


class Firing:
    """Tells executions of their requests: whoever waits for one, and whoever asks about it later."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        peers: PeerStates,
        greetings: Greetings,
        cohorts: Mapping[int, Cohort],
    ) -> None:
        """`cohorts` are the requests of executions that run, by number."""
        self._runtime = runtime
        self._scheduler = scheduler
        self._peers = peers
        self._greetings = greetings
        self._cohorts = cohorts

    def collect(self, ctx: Running, req_id: object, stacks: int) -> object:
        """`RecvRespBatched`: parks until the request is over, then yields (closed, missing, *stacks)."""
        cohort = self._cohorts.get(req_id) if isinstance(req_id, int) else None
        if cohort is None:
            raise OpError(f"no open request {req_id!r}", where=ctx.op.spec.name)
        if cohort.state is CohortState.FIRED:
            return cohort.result(stacks)
        token = self._scheduler.waiting.suspend(ctx, Hold.PERMIT)
        cohort.collector = (token, stacks)
        return PENDING

    def reasons(self, execution: Execution, wire_id: str, missing: Iterable[PeerId]) -> list[MissingReason]:
        """`MissingReasons`: why these peers are missing in the last request of that wire id which the
        execution, or one that asked in it, has made. OpError where there is none.
        """
        asking: Execution | None = execution
        while asking is not None:
            for number in reversed(asking.cohorts):
                cohort = self._cohorts[number]
                if cohort.op.spec.meta.get(keys.WIRE_ID_KEY) == wire_id:
                    return [cohort.why(peer) for peer in missing]
            asking = asking.parent
        raise OpError("no request has closed whose missing peers these are")

    def fire(self, cohort: Cohort) -> None:
        """Nothing of a closed request runs or waits any more."""
        cohort.happens(CohortEvent.DONE)
        uplink, stretch = self._peers.uplink, cohort.stretch
        if uplink.back is not None:
            uplink.answered(stretch, cohort.accepted)
        blamed = [peer for peer in cohort.blamed if uplink.blames(stretch, peer)]
        self._peers.failing.judge(cohort.accepted, blamed)
        self._greetings.judge(cohort.accepted, blamed)
        execution, scheduler = cohort.execution, self._scheduler
        self._runtime.emit(
            steps.RequestClosed(
                execution.target,
                execution.id,
                cohort.port,
                len(cohort.gated),
                len(cohort.accepted),
                cohort.reason,
                tuple((peer, cohort.why(peer).text) for peer in cohort.missing),
                "" if cohort.gated else LEFT_OUT if cohort.missing else NO_PEERS,
            )
        )
        execution.asked(cohort.id, bool(cohort.accepted))
        if cohort.collector is not None:
            token, stacks = cohort.collector
            try:
                result = cohort.result(stacks)
            except OpError as error:
                scheduler.fail(token, error)
            else:
                scheduler.resume(token, result)
        scheduler.pool.wake(execution)
