"""Parked ops: timers, permits, open requests, and components that answer later (semantics §3, §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bb_edge.engine import steps
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.ir.values import TRIGGER
from bb_edge.roles.completion import CompletionHandle, Later
from bb_edge.roles.errors import CompletionExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bb_edge.engine.context import OpContext
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.roles.completion import CompletionSink

PENDING = object()
"""What an op's `run` returns when it will be resumed."""


@dataclass(slots=True)
class Pending:
    """A parked op.

    `outside` ones wait for permits or the host: their execution gives its claims up meanwhile.
    """

    frame: Frame
    op: BoundOp
    execution: Execution
    outside: bool
    busy_key: int
    timer: int = 0
    handle: CompletionHandle | None = None
    inputs: tuple[object, ...] = ()  # of an op that is answered later, should it have to run again


def traced(
    op: BoundOp, result: object
) -> type[steps.OpCompleted | steps.AsyncSuspended | steps.OpTrigger | steps.OpSink]:
    """The step that tells a tracer of an op's result."""
    if result is PENDING:
        return steps.AsyncSuspended
    if result is TRIGGER:
        return steps.OpTrigger
    return steps.OpCompleted if op.mode else steps.OpSink


def check_deadline(deadline_ns: int | None) -> None:
    """OpError for a deadline that has passed before it begins."""
    if deadline_ns is not None and deadline_ns < 0:
        raise OpError(f"a deadline of {deadline_ns} ns", hint="give nanoseconds from now on, or 0 for none")


class Parking:
    """The parked ops of one node, bounded by `pending_async`; `sink` takes completions from any thread."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self.pending: dict[int, Pending] = {}
        self.next_token = 1
        self.sink: Any = None
        engine.runtime.callbacks.register("parked.fire", self.fire)
        engine.runtime.callbacks.register("later.expired", self._later_expired)

    def suspend(self, ctx: OpContext, outside: bool = False, busy: bool = False) -> int:
        """Parks the running op; returns the token for `resume`. CapacityError at `pending_async`."""
        if len(self.pending) >= self._runtime.config.pending_async:
            raise CapacityError(
                f"{self._runtime.config.pending_async} ops are parked already",
                where=ctx.op.spec.name,
                hint="raise NodeConfig.pending_async",
            )
        token = self.next_token
        self.next_token += 1
        key = ctx.op.busy_key if busy else -1
        if key >= 0:
            self._engine.busy[key] = True
        self.pending[token] = Pending(ctx.frame, ctx.op, ctx.execution, outside, key)
        ctx.execution.pending += 1
        if outside:
            ctx.execution.waits_outside += 1
        return token

    @property
    def count(self) -> int:
        return len(self.pending)

    def waiter(self, token: int) -> Execution | None:
        """The execution of the op that waits under this token; None where none does."""
        parked = self.pending.get(token)
        return None if parked is None else parked.execution

    def resume(self, token: int, result: object) -> bool:
        """Gives a parked op its result; False where it is not parked (any more)."""
        parked = self._unpark(token)
        if parked is None:
            return False
        if parked.op.check is not None:
            try:
                result = parked.op.check(result)
            except OpError as error:
                self._engine.op_failed(parked.execution, parked.op, error)
                self._engine.wake(parked.execution)
                return True
        self._engine.deliver(parked.frame, parked.op, result)
        self._engine.wake(parked.execution)
        return True

    def fail(self, token: int, error: BaseException) -> bool:
        """Ends a parked op's branch with an error; False where it is not parked (any more)."""
        parked = self._unpark(token)
        if parked is None:
            return False
        self._engine.op_failed(parked.execution, parked.op, error)
        self._engine.wake(parked.execution)
        return True

    def _unpark(self, token: int) -> Pending | None:
        parked = self.pending.pop(token, None)
        if parked is None:
            return None
        parked.execution.pending -= 1
        if parked.outside:
            parked.execution.waits_outside -= 1
        if parked.timer:
            self._runtime.timers.cancel(parked.timer)
        if parked.busy_key >= 0:
            self._engine.busy[parked.busy_key] = False
            # All of them, in order: the first may answer at once, and would leave the others asleep.
            waiters = self._engine.busy_waiters[parked.busy_key]
            for _ in range(len(waiters)):
                self._engine.ready_again(waiters.popleft())
        return parked

    def later(
        self,
        ctx: OpContext,
        deadline_ns: int | None,
        make: Callable[[CompletionSink, int], CompletionHandle] = CompletionHandle,
    ) -> Later:
        """A completion handle for the running op, with its deadline armed: the given one, else that of the
        op, else the node's. A second call in one op withdraws what the first one gave.
        """
        if ctx.later_token:
            self.withdraw(ctx.later_token)
            ctx.later_token = 0
        check_deadline(deadline_ns)
        token = self.suspend(ctx, busy=True)
        ctx.later_token = token
        handle = self.pending[token].handle = make(self.sink, token)
        if ctx.op.component >= 0 and self._engine.components[ctx.op.component].restartable:
            self.pending[token].inputs = tuple(ctx.op.gather(ctx.frame.values))
        default = ctx.op.later_ns or self._runtime.config.later_deadline_ns
        wait = default if deadline_ns is None else deadline_ns
        if wait:
            self.pending[token].timer = self._runtime.timers.at(
                ctx.now_ns + wait, self._later_expired, token, wait, reserved=True
            )
        return Later(handle, wait)

    def _later_expired(self, _now_ns: int, token: int, wait: int) -> None:
        parked = self.pending.get(token)
        if parked is not None and (parked.handle is None or parked.handle.revoke()):
            self._runtime.count("completions.expired")
            error = CompletionExpiredError(
                f"nobody completed it within {wait} ns", parked.op.spec.name, "raise its deadline"
            )
            self.fail(token, error)

    def fire(self, _now_ns: int, token: int) -> None:
        """A delay is over: the op that waits for it goes on."""
        self.resume(token, TRIGGER)

    def withdraw(self, token: int) -> None:
        """A component asked for a `Later` and answered at once, or failed: the op is not parked after all."""
        parked = self._unpark(token)
        if parked is not None and parked.handle is not None:
            parked.handle.revoke()
