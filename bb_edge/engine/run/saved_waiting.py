"""What waits on a node as rows of a snapshot, and back."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.plain import dump, load
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.naming import Naming, frame_name, names_of, op_name
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import Parked, WaitingRoom
from bb_edge.roles.errors import CompletionLostError


def save(room: WaitingRoom) -> list[Any]:
    """[next token, parked ops, waiters of each busy component, locks, ops that wait for locks]."""
    rows = [
        [
            token,
            frame_name(parked.frame),
            op_name(parked.op),
            parked.execution.id,
            parked.why is Hold.PERMIT,
            parked.timer,
            None if parked.handle is None else [dump(value) for value in parked.inputs],
        ]
        for token, parked in room.parked.items()
    ]
    waiters = [names_of(waiting) for waiting in room.busy_waiters]
    locked = [[component, name] for component, name in room.locked.items()]
    return [room.next_token, rows, waiters, locked, names_of(room.locked_ops)]


def restore(scheduler: Scheduler, plain: Any, naming: Naming) -> None:
    """Takes what `save` gave, for a node whose executions are restored.

    An op whose component was to answer later is dispatched again, or fails: the answer is lost.
    """
    room = scheduler.waiting
    room.next_token, rows, waiters, locked, locked_ops = plain
    lost: list[Parked] = []
    for token, frame, op, number, outside, timer, inputs in rows:
        why = Hold.PERMIT if outside else Hold.PARKED
        parked = Parked(naming.frame(frame), naming.op(op), naming.execution(number), why, timer=timer)
        if inputs is None:
            room.parked[token] = parked
            parked.execution.hold(why)
        else:
            parked.inputs = tuple(load(value) for value in inputs)
            lost.append(parked)
    for component, name in locked:
        room.lock((component,), name)
    for entry in naming.entries(locked_ops):
        room.keep_locked(*entry)
    for parked in lost:
        _again_or_lost(scheduler, parked)
    # No answer is to come any more: who waited for a component has its turn, behind what runs again.
    for waiting in waiters:
        for frame, op in naming.entries(waiting):
            scheduler.pool.ready(frame, op)


def _again_or_lost(scheduler: Scheduler, parked: Parked) -> None:
    """Dispatches an op again where its component allows that; fails it otherwise."""
    op, frame = parked.op, parked.frame
    if op.component >= 0 and scheduler.components[op.component].restartable:
        for site, value in zip(op.spec.inputs, parked.inputs, strict=True):
            if site >= 0:
                frame.values[site] = value
        scheduler.pool.ready(frame, op)
    else:
        error = CompletionLostError("the node was restarted while its component worked on it", op.spec.name)
        scheduler.op_failed(parked.execution, op, error)
        scheduler.pool.wake(parked.execution)
