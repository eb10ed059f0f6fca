"""Ops whose state belongs to the op, not to the execution (semantics §3).

All of it is bounded by `op_state_entries`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, Run
from bb_edge.engine.executions import BoundOp
from bb_edge.engine.parking import PENDING, CapacityError, OpError
from bb_edge.roles import TRIGGER


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


def _full(ctx: Any, what: str) -> CapacityError:
    bound = ctx.engine.config.op_state_entries
    return CapacityError(
        f"{what} holds {bound} already",
        where=ctx.op.spec.name,
        hint="raise NodeConfig.op_state_entries, or slow down",
    )


@dataclass(slots=True)
class _Count:
    arrived: int = 0


def _threshold(op: BoundOp, env: BindEnv) -> Run:
    """Fires with the n-th arrival, in that arrival's execution, and starts counting anew."""
    n = _positive(op, "n")
    state: _Count = env.state.setdefault(("threshold", env.graph.index, op.spec.origin), _Count())

    def run(ctx: Any, _value: object) -> object:
        state.arrived += 1
        if state.arrived < n:
            return None
        state.arrived = 0
        return TRIGGER

    return run


@dataclass(slots=True)
class _Held:
    value: object = None


def _stash(op: BoundOp, env: BindEnv) -> Run:
    state: _Held = env.state.setdefault(("hold", _text(op, "slot")), _Held())

    def run(ctx: Any, value: object) -> None:
        state.value = value

    return run


def _flush(op: BoundOp, env: BindEnv) -> Run:
    state: _Held = env.state.setdefault(("hold", _text(op, "slot")), _Held())

    def run(ctx: Any, _trigger: object) -> object:
        value, state.value = state.value, None
        return value

    return run


@dataclass(slots=True)
class _Queue:
    values: deque[object] = field(default_factory=deque)
    takers: deque[int] = field(default_factory=deque)  # tokens of parked Dequeues


def _enqueue(op: BoundOp, env: BindEnv) -> Run:
    state: _Queue = env.state.setdefault(("serialize", _text(op, "queue")), _Queue())
    engine = env.engine

    def run(ctx: Any, value: object) -> object:
        while state.takers:
            if engine.parking.resume(state.takers.popleft(), value):
                return TRIGGER
        if len(state.values) >= engine.config.op_state_entries:
            raise _full(ctx, "the queue")
        state.values.append(value)
        return TRIGGER

    return run


def _dequeue(op: BoundOp, env: BindEnv) -> Run:
    state: _Queue = env.state.setdefault(("serialize", _text(op, "queue")), _Queue())
    engine = env.engine

    def run(ctx: Any, _trigger: object) -> object:
        if state.values:
            return state.values.popleft()
        if len(state.takers) >= engine.config.op_state_entries:
            raise _full(ctx, "the line of takers")
        state.takers.append(engine.parking.suspend(ctx, outside=True))
        return PENDING

    return run


@dataclass(slots=True)
class _Semaphore:
    free: int = -1  # set by the first Acquire that is bound
    holders: dict[int, int] = field(default_factory=dict)  # execution id -> permits
    waiting: deque[tuple[int, Any]] = field(default_factory=deque)  # (token, execution)


def _acquire(op: BoundOp, env: BindEnv) -> Run:
    """Takes a permit, or waits for one. A permit ends with its execution at the latest."""
    n = _positive(op, "n")
    state: _Semaphore = env.state.setdefault(("limit", _text(op, "name")), _Semaphore())
    state.free = n if state.free < 0 else min(state.free, n)
    engine = env.engine

    def grant(execution: Any) -> None:
        if execution.id not in state.holders:
            number = execution.id
            execution.permits.append(lambda: _give_back(state, engine, number, grant, every=True))
        state.holders[execution.id] = state.holders.get(execution.id, 0) + 1

    def run(ctx: Any, _trigger: object) -> object:
        if state.free:
            state.free -= 1
            grant(ctx.execution)
            return TRIGGER
        if len(state.waiting) >= engine.config.op_state_entries:
            raise _full(ctx, "the line at the limit")
        state.waiting.append((engine.parking.suspend(ctx, outside=True), ctx.execution))
        return PENDING

    env.state[("limit.grant", id(state))] = grant
    return run


def _give_back(state: _Semaphore, engine: Any, execution: int, grant: Any, every: bool) -> None:
    held = state.holders.get(execution, 0)
    returned = held if every else min(1, held)
    if held - returned:
        state.holders[execution] = held - returned
    else:
        state.holders.pop(execution, None)
    for _ in range(returned):
        while state.waiting:
            token, waiter = state.waiting.popleft()
            if engine.parking.is_parked(token):
                grant(waiter)
                engine.parking.resume(token, TRIGGER)
                break
        else:
            state.free += 1


def _release(op: BoundOp, env: BindEnv) -> Run:
    state: _Semaphore = env.state.setdefault(("limit", _text(op, "name")), _Semaphore())
    engine = env.engine

    def run(ctx: Any, _trigger: object) -> None:
        if ctx.execution.id not in state.holders:
            raise OpError(
                "the execution holds no permit", where=ctx.op.spec.name, hint="Acquire comes before Release"
            )
        _give_back(state, engine, ctx.execution.id, env.state[("limit.grant", id(state))], every=False)

    return run


BINDERS: dict[str, Bind] = {
    "Threshold": _threshold,
    "Hold.Stash": _stash,
    "Hold.Flush": _flush,
    "Serialize.Enqueue": _enqueue,
    "Serialize.Dequeue": _dequeue,
    "Limit.Acquire": _acquire,
    "Limit.Release": _release,
}
