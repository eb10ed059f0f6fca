"""Ops whose state belongs to the op and outlives executions; `op_state_entries` bounds each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run, done
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.waiting import PENDING
from bb_edge.roles import TRIGGER

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler


def _text(op: BoundOp, name: str) -> str:
    value = op.spec.attrs.get(name)
    if not isinstance(value, bytes):
        raise OpError(f"attribute {name} must be a text, not {value!r}", where=op.spec.name)
    return value.decode()


def _positive(op: BoundOp, name: str) -> int:
    value = op.spec.attrs.get(name)
    if not isinstance(value, int) or value < 1:
        raise OpError(f"attribute {name} must be at least 1, not {value!r}", where=op.spec.name)
    return value


def _full(env: BindEnv, ctx: OpContext, what: str) -> CapacityError:
    bound = env.runtime.config.op_state_entries
    return CapacityError(
        f"{what} holds {bound} already",
        where=ctx.op.spec.name,
        hint="raise limits.op_state_entries (--config; in Python NodeConfig), or slow down",
    )


# Each state can be saved in a snapshot: `save` returns plain values, `restore` takes them.


class _Count:
    def __init__(self) -> None:
        self.arrived = 0

    def save(self) -> list[object]:
        return [self.arrived]

    def restore(self, row: Any) -> None:
        (self.arrived,) = row


def _threshold(op: BoundOp, env: BindEnv) -> Run:
    """Fires with the n-th arrival, in that arrival's execution, and counts from 0 again."""
    n = _positive(op, "n")
    state: _Count = env.state.setdefault(("threshold", env.graph.index, op.spec.origin), _Count())

    def run(ctx: OpContext, _value: object) -> object:
        state.arrived += 1
        if state.arrived < n:
            return None
        state.arrived = 0
        return TRIGGER

    return run


class _Held:
    def __init__(self) -> None:
        self.value: object = None

    def save(self) -> list[object]:
        return [self.value]

    def restore(self, row: Any) -> None:
        (self.value,) = row


def _stash(op: BoundOp, env: BindEnv) -> Run:
    state: _Held = env.state.setdefault(("hold", _text(op, "slot")), _Held())
    told = done(op)

    def run(ctx: OpContext, value: object) -> object:
        state.value = value
        return told

    return run


def _flush(op: BoundOp, env: BindEnv) -> Run:
    state: _Held = env.state.setdefault(("hold", _text(op, "slot")), _Held())

    def run(ctx: OpContext, _trigger: object) -> object:
        value, state.value = state.value, None
        return value

    return run


class _Gate:
    """A gate across executions, which holds a value until it is opened, or is open until a value comes."""

    def __init__(self) -> None:
        self.value: object = None
        self.is_open = False

    def save(self) -> list[object]:
        return [self.value, self.is_open]

    def restore(self, row: Any) -> None:
        self.value, self.is_open = row


def _gate(op: BoundOp, env: BindEnv) -> Run:
    """Lets a value pass after its trigger, within an execution or across executions.

    Across executions, an execution that ends with only one of the two leaves it in the op, for the other one
    of a later execution.
    """
    if op.spec.attrs.get("across"):
        state: _Gate = env.state.setdefault(("gate", env.graph.index, op.spec.origin), _Gate())
        region = env.graph.regions[op.spec.region]
        env.scheduler.endings.add_gate(region, _meet(op, state, env.scheduler))
    return lambda ctx, value, *_: value


def _meet(op: BoundOp, state: _Gate, scheduler: Scheduler) -> Callable[[Frame], None]:
    """Returns what the gate does at the end of an execution in which it has not fired."""
    index, template = op.index, op.spec.waits
    value_site, trigger_site = op.spec.inputs[:2]

    def meet(frame: Frame) -> None:
        if frame.waiting[index] in (0, template):
            return  # it has fired, or nothing has come
        value, opened = frame.values[value_site], frame.values[trigger_site] is not None
        if (value is None) is not opened:
            return  # something else is missing
        frame.waiting[index] = 0
        if opened:
            value, state.value = state.value, None
            state.is_open = value is None
        elif state.is_open:
            state.is_open = False
        else:
            if state.value is not None:
                scheduler.runtime.count("gates.replaced")
            value, state.value = None, value
        if value is not None:
            scheduler.write(frame, op.out, value)

    return meet


class _Queue:
    def __init__(self) -> None:
        self.values: deque[object] = deque()
        self.takers: deque[int] = deque()  # tokens of parked Dequeues

    def save(self) -> list[object]:
        return [tuple(self.values), tuple(self.takers)]

    def restore(self, row: Any) -> None:
        self.values, self.takers = deque(row[0]), deque(row[1])


def _enqueue(op: BoundOp, env: BindEnv) -> Run:
    state: _Queue = env.state.setdefault(("serialize", _text(op, "queue")), _Queue())
    scheduler = env.scheduler

    def run(ctx: OpContext, value: object) -> object:
        while state.takers:
            if scheduler.resume(state.takers.popleft(), value):
                return TRIGGER
        if len(state.values) >= env.runtime.config.op_state_entries:
            raise _full(env, ctx, "the queue")
        state.values.append(value)
        return TRIGGER

    return run


def _forget_gone(env: BindEnv, tokens: deque[int]) -> None:
    """Takes the ops out of a line that wait no longer: whoever asked their executions does not either."""
    there = [token for token in tokens if env.scheduler.waiting.waiter(token) is not None]
    tokens.clear()
    tokens.extend(there)


def _dequeue(op: BoundOp, env: BindEnv) -> Run:
    state: _Queue = env.state.setdefault(("serialize", _text(op, "queue")), _Queue())

    def run(ctx: OpContext, _trigger: object) -> object:
        if state.values:
            return state.values.popleft()
        if len(state.takers) >= env.runtime.config.op_state_entries:
            _forget_gone(env, state.takers)
        if len(state.takers) >= env.runtime.config.op_state_entries:
            raise _full(env, ctx, "the line of takers")
        state.takers.append(env.scheduler.waiting.suspend(ctx, Hold.PERMIT))
        return PENDING

    return run


class _Semaphore:
    """The permits of a `Limit`; all go back when the execution that holds them ends."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.holders: dict[int, int] = {}  # execution id -> permits
        self.waiting: deque[int] = deque()  # tokens of parked Acquires
        self.free = -1  # set by the first Acquire that is bound

    def bound(self, n: int) -> None:
        self.free = n if self.free < 0 else min(self.free, n)

    def grant(self, execution: Execution) -> None:
        if execution.id not in self.holders:
            execution.add_permit(self.end)
        self.holders[execution.id] = self.holders.get(execution.id, 0) + 1

    def end(self, execution: int) -> None:
        self.give_back(execution, self.holders.get(execution, 0))

    def give_back(self, execution: int, permits: int) -> None:
        left = self.holders.pop(execution, 0) - permits
        if left:
            self.holders[execution] = left
        scheduler = self._scheduler
        for _ in range(permits):
            while self.waiting:
                token = self.waiting.popleft()
                waiter = scheduler.waiting.waiter(token)
                if waiter is not None:
                    self.grant(waiter)
                    scheduler.resume(token, TRIGGER)
                    break
            else:
                self.free += 1

    def save(self) -> list[object]:
        return [self.free, tuple(self.holders.items()), tuple(self.waiting)]

    def restore(self, row: Any) -> None:
        self.free, holders, waiting = row
        self.holders = dict(holders)
        self.waiting = deque(waiting)


def _semaphore(op: BoundOp, env: BindEnv) -> _Semaphore:
    key = ("limit", _text(op, "name"))
    semaphore: _Semaphore | None = env.state.get(key)
    if semaphore is None:
        semaphore = env.state[key] = _Semaphore(env.scheduler)
        env.runtime.callbacks.register(f"limit.end/{op.target}/{key[1]}", semaphore.end)
    return semaphore


def _acquire(op: BoundOp, env: BindEnv) -> Run:
    """Takes a permit, or waits for one; a permit ends with its execution at the latest."""
    n = _positive(op, "n")
    state = _semaphore(op, env)
    state.bound(n)

    def run(ctx: OpContext, _trigger: object) -> object:
        if state.free:
            state.free -= 1
            state.grant(ctx.execution)
            return TRIGGER
        if len(state.waiting) >= env.runtime.config.op_state_entries:
            _forget_gone(env, state.waiting)
        if len(state.waiting) >= env.runtime.config.op_state_entries:
            raise _full(env, ctx, "the line at the limit")
        state.waiting.append(env.scheduler.waiting.suspend(ctx, Hold.PERMIT))
        return PENDING

    return run


def _release(op: BoundOp, env: BindEnv) -> Run:
    state, told = _semaphore(op, env), done(op)

    def run(ctx: OpContext, _trigger: object) -> object:
        if ctx.execution.id not in state.holders:
            raise OpError(
                "the execution holds no permit", where=ctx.op.spec.name, hint="Acquire comes before Release"
            )
        state.give_back(ctx.execution.id, 1)
        return told

    return run


BINDERS: dict[str, Bind] = {
    "Threshold": _threshold,
    "Gate": _gate,
    "Hold.Stash": _stash,
    "Hold.Flush": _flush,
    "Serialize.Enqueue": _enqueue,
    "Serialize.Dequeue": _dequeue,
    "Limit.Acquire": _acquire,
    "Limit.Release": _release,
}
