"""The waiting room: every op that waits, and what it waits for.

Ops wait for a timer, a component that answers later, a permit or an answer (parked); for a component that
takes one op at a time (busy); for a bootstrap (locked); or until their execution has claimed its components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bb_edge.engine import steps
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.claims import Claims
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.pool import ExecutionPool
from bb_edge.engine.runtime import Runtime
from bb_edge.roles.completion import CompletionHandle, CompletionSink, Later
from bb_edge.wire.envelope_records import FailureCode

PENDING: Final = object()
"""What an op's `run` returns when it will be resumed."""


LATER_EXPIRED: Final = "later.expired"
"""The registered callback `(now_ns, token, wait_ns)` of a deadline: whoever resumes ops registers it."""


Refusal = Callable[[int], OpError]
"""`refusal(now_ns)`: why an op of a component cannot run before the component's bootstrap is done."""


class Running(Protocol):
    """The op that runs now, as its context shows it."""

    execution: Execution
    frame: Frame
    op: BoundOp
    later_token: int


@dataclass(slots=True)
class Parked:
    """A parked op.

    `why` is PARKED or PERMIT. `busy_key` is the component that takes no other op meanwhile (-1: none).
    `inputs` are those of an op that is answered later, should it have to run again after a restart.
    """

    frame: Frame
    op: BoundOp
    execution: Execution
    why: Hold
    busy_key: int = -1
    timer: int = 0
    handle: CompletionHandle | None = None
    inputs: tuple[object, ...] = ()


def check_deadline(deadline_ns: int | None) -> None:
    """OpError for a deadline that has passed before it begins."""
    if deadline_ns is not None and deadline_ns < 0:
        raise OpError(f"a deadline of {deadline_ns} ns", hint="give nanoseconds from now on, or 0 for none")


@dataclass(slots=True, eq=False)
class WaitingRoom:
    """All that waits on one node. Parked ops are bounded by `pending_async`, the rest by executions.

    `sink` takes completions from any thread. `watched` are the components that are locked, unready or busy:
    only ops that touch one of them, or that an execution has still to claim, are asked about.
    """

    _runtime: Runtime
    _components: Components
    _pool: ExecutionPool
    sink: CompletionSink
    parked: dict[int, Parked] = field(default_factory=dict)
    next_token: int = 1
    claims: Claims = field(init=False)
    busy_waiters: list[list[tuple[Frame, BoundOp]]] = field(init=False)
    locked: dict[int, str] = field(default_factory=dict)  # component -> the bootstrap that holds it
    locked_ops: list[tuple[Frame, BoundOp]] = field(default_factory=list)
    watched: set[int] = field(default_factory=set)  # the same object for good
    _busy: set[int] = field(default_factory=set)
    _unready: Mapping[int, Refusal] = field(default_factory=dict)  # component -> why it serves nobody yet

    def __post_init__(self) -> None:
        self.claims = Claims(len(self._components))
        self.busy_waiters = [[] for _ in self._components]
        self._runtime.callbacks.register("claim.expired", self._claim_expired)

    # --- before an op runs ----------------------------------------------------------------------------

    def _watch(self) -> None:
        self.watched.clear()
        self.watched.update(self.locked, self._unready, self._busy)

    def holds_back(self, execution: Execution, frame: Frame, op: BoundOp) -> bool:
        """Whether the op must wait for a bootstrap, its execution's claims, or its component.

        No op has to that touches none of `watched` and nothing that its execution has still to claim.

        Raises what `refuse` was told, where the component's bootstrap is not done and does not run.
        """
        component = op.touches
        if execution.bootstrap is None:
            if component in self.locked:
                self.keep_locked(frame, op)
                self._runtime.emit(steps.WaitingOnBootstrap(op.target, execution.id, op.spec.name))
                return True
            if component in self._unready:
                raise self._unready[component](self._runtime.now_ns)
        claiming = not execution.claimed and component in execution.claim_set
        if claiming and not self.claims.acquire(execution):
            self._await_claims(execution, frame, op)
            return True
        if op.busy_key in self._busy:
            self.busy_waiters[op.busy_key].append((frame, op))
            execution.hold(Hold.BUSY)
            return True
        return False

    # --- parked ops -----------------------------------------------------------------------------------

    def suspend(self, ctx: Running, why: Hold = Hold.PARKED, busy: bool = False) -> int:
        """Parks the running op; returns the token for `Scheduler.resume`. CapacityError at `pending_async`.

        `busy` keeps other ops out of a component that takes one at a time.
        """
        limit = self._runtime.config.pending_async
        if len(self.parked) >= limit:
            raise CapacityError(
                f"{limit} ops are parked already",
                where=ctx.op.spec.name,
                hint="raise limits.pending_async (--config; in Python NodeConfig)",
            )
        token = self.next_token
        self.next_token += 1
        key = ctx.op.busy_key if busy else -1
        if key >= 0:
            self._busy.add(key)
            self._watch()
        self.parked[token] = Parked(ctx.frame, ctx.op, ctx.execution, why, key)
        ctx.execution.hold(why)
        return token

    def waiter(self, token: int) -> Execution | None:
        """The execution of the op that waits under this token; None where none does."""
        parked = self.parked.get(token)
        return None if parked is None else parked.execution

    def unpark(self, token: int) -> Parked | None:
        """Takes a parked op out, for the caller to give it its result; None where the token has none.

        Its execution runs on before those that have waited for the same component meanwhile.
        """
        parked = self.parked.pop(token, None)
        if parked is None:
            return None
        parked.execution.let_go(parked.why)
        if parked.timer:
            self._runtime.timers.cancel(parked.timer)
        if parked.busy_key >= 0:
            self._busy.discard(parked.busy_key)
            self._watch()
            # All of them, in order: the first may answer at once, and would leave the others asleep. They
            # come behind the one that is answered, which waited longer.
            waiters = self.busy_waiters[parked.busy_key]
            if waiters:
                self._pool.wake(parked.execution)
            for _ in range(len(waiters)):
                self._pool.ready_again(waiters.pop(0), Hold.BUSY)
        return parked

    def later(
        self,
        ctx: Running,
        deadline_ns: int | None,
        make: Callable[[CompletionSink, int], CompletionHandle] = CompletionHandle,
    ) -> Later:
        """A completion handle for the running op, with its deadline armed: the given one, else that of the
        op, else the node's. A second call in one op withdraws what the first one gave.
        """
        self.withdraw(ctx)
        check_deadline(deadline_ns)
        token = self.suspend(ctx, busy=True)
        ctx.later_token = token
        parked = self.parked[token]
        handle = parked.handle = make(self.sink, token)
        component = ctx.op.component
        if component >= 0 and self._components[component].restartable:
            parked.inputs = tuple(ctx.op.gather(ctx.frame.values))
        default = ctx.op.later_ns or self._runtime.config.later_deadline_ns
        wait = default if deadline_ns is None else deadline_ns
        if until := ctx.execution.until_ns:
            left = max(until - self._runtime.now_ns, 1)
            wait = min(wait, left) if wait else left
        if wait:
            when, expired = self._runtime.now_ns + wait, self._runtime.callbacks.get(LATER_EXPIRED)
            parked.timer = self._runtime.timers.at(when, expired, token, wait, reserved=True)
        return Later(handle, wait)

    def withdraw(self, ctx: Running) -> None:
        """The running op asked for a `Later` and answered at once, or failed: it is not parked after all."""
        token, ctx.later_token = ctx.later_token, 0
        parked = self.unpark(token) if token else None
        if parked is not None and parked.handle is not None:
            parked.handle.revoke()

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for more than one execution, so that one could have another's time."""
        return sum(1 for execution in self._pool.active.values() if execution.until_ns) > 1

    # --- bootstraps -----------------------------------------------------------------------------------

    def closes(self, component: int) -> bool:
        """Whether a component serves nobody now: its bootstrap runs, or is not done."""
        return component in self.locked or component in self._unready

    def is_busy(self, component: int) -> bool:
        """Whether a component that takes one op at a time works on one."""
        return component in self._busy

    @property
    def closes_any(self) -> bool:
        """Whether there is such a component."""
        return bool(self.locked or self._unready)

    def lock(self, components: Sequence[int], bootstrap: str) -> None:
        """Holds body ops of these components back, until `unlock`."""
        self.locked.update(dict.fromkeys(components, bootstrap))
        self._watch()

    def keep_locked(self, frame: Frame, op: BoundOp) -> None:
        """Keeps an op until the bootstrap of its component has ended."""
        assert frame.execution is not None
        self.locked_ops.append((frame, op))
        frame.execution.hold(Hold.LOCK)

    def unlock(self, components: Sequence[int]) -> None:
        """A bootstrap ended: its components serve body ops again."""
        for component in components:
            self.locked.pop(component, None)
        self._watch()
        waiting, self.locked_ops = self.locked_ops, []
        for entry in waiting:
            self._pool.ready_again(entry, Hold.LOCK)

    def forget_held_back(self, execution: Execution) -> list[BoundOp]:
        """Takes the ops of an execution out that wait for a bootstrap, or for a component that is busy."""
        found = []
        for entries, why in ((self.locked_ops, Hold.LOCK), *((w, Hold.BUSY) for w in self.busy_waiters)):
            for entry in [entry for entry in entries if entry[0].execution is execution]:
                entries.remove(entry)
                execution.let_go(why)
                found.append(entry[1])
        return found

    def refuse(self, unready: Mapping[int, Refusal]) -> None:
        """Refuses body ops of these components. Replaces the last answer."""
        self._unready = unready
        self._watch()

    def claim(self, execution: Execution, then: Callable[[Execution], None]) -> None:
        """Claims the execution's components, and calls `then(execution)`, a registered callback.

        The execution is held open until that call.
        """
        execution.hold(Hold.BOOTSTRAP)
        execution.on_claimed = then
        if self.claims.acquire(execution):
            self._claimed(execution)

    def _claimed(self, execution: Execution) -> None:
        then, execution.on_claimed = execution.on_claimed, None
        assert then is not None
        execution.let_go(Hold.BOOTSTRAP)
        then(execution)

    # --- claims ---------------------------------------------------------------------------------------

    def _await_claims(self, execution: Execution, frame: Frame, op: BoundOp) -> None:
        """Parks an op until its execution's claims are granted, or its deadline has passed."""
        deadline = execution.until_ns
        if deadline and not execution.claim_timer:
            timers = self._runtime.timers
            execution.claim_timer = timers.at(deadline, self._claim_expired, execution.id, reserved=True)
        execution.park(frame, op)

    def _claim_expired(self, _now_ns: int, number: int) -> None:
        execution = self._pool.active.get(number)
        if execution is not None and execution.claim_timer:
            execution.claim_timer = 0
            execution.expire()
            execution.went_wrong(
                FailureCode.OUT_OF_TIME, "another execution had its components until the deadline"
            )
            execution.unpark_all(ready=False)
            self._runtime.count("deadlines.expired")
            self.release_claims(execution)
            self._pool.wake(execution)

    def release_claims(self, execution: Execution) -> None:
        """Gives up what the execution has claimed; whoever can have it now goes on."""
        for holder in self.claims.release(execution):
            if holder.claim_timer:
                self._runtime.timers.cancel(holder.claim_timer)
                holder.claim_timer = 0
            if holder.on_claimed is not None:
                self._claimed(holder)
            holder.unpark_all(ready=True)
            self._pool.wake(holder)
