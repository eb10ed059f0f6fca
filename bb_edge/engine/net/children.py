"""The executions that answers run in, one for each answer of a request that reads them one by one."""

from __future__ import annotations

from bb_edge.engine.net.cohort import Cohort, CohortEvent
from bb_edge.engine.run.bound import BoundRegion
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.scheduler import Outputs, Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.roles import TRIGGER


class Children:
    """Runs answers, `max_children` of a request at once and no more than it needs; others wait.

    `cohorts` has the request of each by the number of its execution.
    """

    def __init__(self, runtime: Runtime, scheduler: Scheduler) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self.cohorts: dict[int, Cohort] = {}

    def run(self, cohort: Cohort) -> None:
        """Starts as many of the request's answers as may run now."""
        while cohort.waiting and cohort.may_run and cohort.running < self._runtime.config.max_children:
            peer, values, cause, size = cohort.waiting.popleft()
            tail = (*values, (peer,), TRIGGER)  # the trigger is optional, so it may have no output
            region = cohort.region
            assert region is not None
            outputs = zip(region.graph.ops[region.region.entry].outs, tail)  # noqa: B905
            cohort.running += 1
            child = self._start(cohort.frame, region, outputs, peer, size)
            self.cohorts[child.id] = cohort
            # It counts as an answer: no gate drops it because its peer went since.
            asked = cohort.execution
            child.came_from(peer, cause, asked.deadline_ns, acknowledged=True, until_ns=asked.until_ns)

    def _start(
        self, parent: Frame, region: BoundRegion, outputs: Outputs, source: PeerId, size: int
    ) -> Execution:
        """Runs a region once: a child execution that sees the parent's values.

        `size` bytes of what it works on are charged to `source`, until it has ended.
        """
        scheduler, asking = self._scheduler, parent.execution
        assert asking is not None
        child = scheduler.pool.start(asking.target, parent=asking, source=source, size=size)
        child.will_claim(region.graph.claims.get(region.region.entry, ()))
        child.asker, child.deadline_ns = asking.asker, asking.deadline_ns
        asking.hold(Hold.CHILD)
        frame = child.frame_of(region)
        parent.add_child(frame)
        seen = parent.values
        scheduler.write_all(frame, [(site, seen[site]) for site in region.imports])
        scheduler.write_all(frame, outputs)
        scheduler.pool.wake(child)
        return child

    def ended(self, child: Execution) -> Cohort | None:
        """An execution has ended. The request of one that an answer ran in, None for any other."""
        cohort = self.cohorts.pop(child.id, None)
        if cohort is None:
            return None
        cohort.happens(CohortEvent.COUNTED)
        cohort.running -= 1
        return cohort

    def forget_waiting(self, cohort: Cohort) -> None:
        """Drops the answers that are not needed any more."""
        for answer in cohort.waiting:
            cohort.reasons[answer.peer] = MissingReason.ENOUGH
            self._scheduler.ledger.release(answer.peer, answer.size)
        cohort.waiting.clear()
