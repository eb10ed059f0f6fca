"""The end by force: of ops that nobody completes in time, and of asked executions whose time is over.

Nobody waits for what such an execution would still give, whatever it waits for: its reply must be on its way.
Its parked ops fail, so that it ends as any other: a failure goes home where no reply went out, and its bytes,
permits and place are free.

Rule E20 of the specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.ending import OVERDUE
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import LATER_EXPIRED
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED
from bb_edge.roles.errors import CompletionExpiredError
from bb_edge.wire.envelope_records import FailureCode


@dataclass(slots=True, eq=False)
class Overdue:
    """Ends executions whose `until_ns` has come, and ops whose `Later` has no time left.

    `Endings` arms the timer of an execution once it has to wait.
    """

    _scheduler: Scheduler

    def __post_init__(self) -> None:
        callbacks = self._scheduler.runtime.callbacks
        callbacks.register(OVERDUE, self._end)
        callbacks.register(LATER_EXPIRED, self._later_expired)

    def _end(self, _now_ns: int, number: int) -> None:
        scheduler = self._scheduler
        execution = scheduler.pool.active.get(number)
        if execution is None:
            return
        execution.until_timer = 0
        if not execution.expired:
            execution.expire()
            scheduler.runtime.count("deadlines.expired")
        given_up = [*self._given_up(execution)]
        for op in given_up:
            execution.went_wrong(FailureCode.OUT_OF_TIME, f"{op.spec.name} still waited")
            scheduler.op_failed(
                execution, op, OpError("whoever asked waits no longer for what it would give", op.spec.name)
            )
        if given_up:  # else it would wait for the same again: a request, whose end may need a snapshot
            scheduler.pool.wake(execution)

    def _later_expired(self, _now_ns: int, token: int, wait_ns: int) -> None:
        runtime = self._scheduler.runtime
        parked = self._scheduler.waiting.parked.get(token)
        if parked is not None and (parked.handle is None or parked.handle.revoke()):
            runtime.count("completions.expired")
            name, execution = parked.op.spec.name, parked.execution
            hint = "give it a longer deadline, or raise limits.later_deadline_ns"
            if 0 < execution.until_ns <= runtime.now_ns:
                execution.went_wrong(FailureCode.OUT_OF_TIME, f"{name} was not completed")
                hint = "the request that it works for ends then: give that a longer deadline"
            what = f"nobody completed it within {wait_ns / 1e9:g} s"
            self._scheduler.fail(token, CompletionExpiredError(what, name, hint))

    def _given_up(self, execution: Execution) -> Iterator[BoundOp]:
        """The ops of the execution that waited and do not any more.

        One that waits for a request is not among them: the request has the same deadline, and its answers,
        as far as there are any, go home.
        """
        room = self._scheduler.waiting
        for token in [t for t, parked in room.parked.items() if parked.execution is execution]:
            if room.parked[token].op.spec.op_type == OP_RECV_RESP_BATCHED:
                continue
            parked = room.unpark(token)
            assert parked is not None
            if parked.handle is not None:
                parked.handle.revoke()
            yield parked.op
        yield from room.forget_held_back(execution)
