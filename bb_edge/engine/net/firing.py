"""The end of a request: the execution that asked goes on with the result, and everybody hears of it."""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.cohort import Cohort, CohortEvent, CohortState
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import PENDING, Running
from bb_edge.engine.runtime import Runtime


class Firing:
    """Fires requests, whoever waits for them."""

    def __init__(self, runtime: Runtime, scheduler: Scheduler, peers: PeerStates) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._peers = peers

    def collect(self, ctx: Running, cohort: Cohort, stacks: int) -> object:
        """`RecvRespBatched`: parks until the request is over, then yields (closed, missing, *stacks)."""
        if cohort.state is CohortState.FIRED:
            return cohort.result(stacks)
        token = self._scheduler.waiting.suspend(ctx, Hold.PERMIT)
        cohort.collector = (token, stacks)
        return PENDING

    def fire(self, cohort: Cohort) -> None:
        """Nothing of a closed request runs or waits any more."""
        cohort.happens(CohortEvent.DONE)
        self._peers.failing.judge(cohort.accepted, cohort.blamed)
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
