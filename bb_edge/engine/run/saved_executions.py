"""Executions and their frames as rows of a snapshot, and back.

Executions are made first and tied together afterwards, because frames refer to each other in circles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.frames import Bootstrap, Execution, Frame
from bb_edge.engine.run.life import Hold, State
from bb_edge.engine.run.naming import Naming, frame_name, names_of, op_name, region_name
from bb_edge.engine.run.pool import ExecutionPool
from bb_edge.engine.runtime import Runtime

UNUSED = False
"""The place of a flag that older versions wrote and never set, so that rows keep their form."""


def save(pool: ExecutionPool, runtime: Runtime) -> list[Any]:
    """[next id, peak, rows, ids of the runnable ones]. UnsavableError where a value has no written form."""
    for execution in pool.active.values():
        execution.own_cause(runtime.own_peer)
    rows = [_row(execution, runtime) for execution in pool.active.values()]
    return [pool.next_id, pool.peak, rows, [e.id for e in pool.runnable]]


def _row(execution: Execution, runtime: Runtime) -> dict[str, Any]:
    callbacks, bootstrap = runtime.callbacks, execution.bootstrap
    return {
        "id": execution.id,
        "target": execution.target,
        "state": execution.state.name.lower(),
        "flags": [
            execution.failed,
            execution.expired,
            UNUSED,
            execution.acknowledged,
            bootstrap is not None,
            execution.claimed,
            execution.notify,
            execution.asked_somebody,
            execution.state is State.RUNNING,
        ],
        "numbers": [
            execution.claim_timer,
            execution.bytes_held,
            execution.answer_bytes,
            execution.requests_made,
        ],
        "refused": execution.refused,
        "deadline_ns": execution.deadline_ns,
        "claim_set": list(execution.claim_set),
        "parent": execution.parent.id if execution.parent is not None else 0,
        "source": dump(execution.source),
        "cause": dump(execution.cause),
        "cohorts": list(execution.cohorts),
        "bootstrap_of": None if bootstrap is None else [bootstrap.target, bootstrap.slot],
        "on_end": callbacks.name_of(execution.on_end),
        "on_claimed": callbacks.name_of(execution.on_claimed),
        "permits": [callbacks.name_of(release) for release in execution.permits],
        "frames": [_frame_row(frame) for frame in execution.frames],
        "ready": names_of(execution.ready),
        "parked": names_of(execution.parked),
    }


def _frame_row(frame: Frame) -> list[Any]:
    template = frame.region.graph.slot.values
    values = [
        [site, dump(value)]
        for site, (value, known) in enumerate(zip(frame.values, template, strict=True))
        if value is not known and value is not None
    ]
    return [
        region_name(frame.region),
        values,
        list(frame.waiting),
        None if frame.parent is None else frame_name(frame.parent),
        [frame_name(child) for child in frame.children or ()],
        None if frame.caller is None else frame_name(frame.caller),
        None if frame.call is None else op_name(frame.call),
        frame.forwards_writes,
    ]


def restore(
    pool: ExecutionPool,
    runtime: Runtime,
    plain: Any,
    shift: Shift,
    naming: Naming,
    bootstrap: Callable[[str, str], Bootstrap],
) -> None:
    """Takes what `save` gave; for a pool without executions. `bootstrap(target, slot)` finds a bootstrap.

    ValueError, TypeError or LookupError for rows that fit another artifact.
    """
    next_id, peak, rows, runnable = plain
    for row in rows:
        execution = pool.revive(row["id"], row["target"], bool(row["parent"]))
        execution.state = State[row["state"].upper()]
        failed, expired, _, acknowledged, _, claimed, notify, asked_somebody, _ = row["flags"]
        execution.failed, execution.expired, execution.claimed = failed, expired, claimed
        execution.notify, execution.asked_somebody = notify, asked_somebody
        execution.refused = row["refused"]
        claim_timer, execution.bytes_held, execution.answer_bytes, requests_made = row["numbers"]
        execution.claim_timer, execution.requests_made = claim_timer, requests_made
        execution.came_from(
            load(row["source"]), load(row["cause"]), shift.time(row["deadline_ns"]), acknowledged
        )
        execution.claim_set = tuple(row["claim_set"])
        execution.cohorts.extend(row["cohorts"])
        for frame_row in row["frames"]:
            execution.new_frame(naming.region(frame_row[0]))
    for row in rows:
        _tie(naming.execution(row["id"]), row, runtime, naming, bootstrap)
    pool.runnable.extend(naming.execution(number) for number in runnable)
    pool.next_id, pool.peak = next_id, peak


def _tie(
    execution: Execution,
    row: Any,
    runtime: Runtime,
    naming: Naming,
    bootstrap: Callable[[str, str], Bootstrap],
) -> None:
    get: Any = runtime.callbacks.get
    if row["parent"]:
        execution.parent = naming.execution(row["parent"])
        execution.parent.hold(Hold.CHILD)
    if row["bootstrap_of"] is not None:
        execution.bootstrap = bootstrap(*row["bootstrap_of"])
    if row["on_claimed"] is not None:
        execution.on_claimed = get(row["on_claimed"])
        execution.hold(Hold.BOOTSTRAP)
    execution.on_end = None if row["on_end"] is None else get(row["on_end"])
    execution.permits.extend(get(name) for name in row["permits"])
    for frame, frame_row in zip(execution.frames, row["frames"], strict=True):
        _tie_frame(frame, frame_row, naming)
    execution.ready.extend(naming.entries(row["ready"]))
    for frame, op in naming.entries(row["parked"]):
        execution.park(frame, op)


def _tie_frame(frame: Frame, row: Any, naming: Naming) -> None:
    _, values, waiting, parent, children, caller, call, forwards_writes = row
    for site, value in values:
        frame.values[site] = load(value)
    if len(waiting) != len(frame.waiting):
        raise ValueError("a frame of another graph")
    frame.waiting[:] = waiting
    frame.parent = None if parent is None else naming.frame(parent)
    frame.children = [naming.frame(child) for child in children] or None
    if caller is not None:
        frame.called_by(naming.frame(caller), naming.op(call))
    frame.forwards_writes = forwards_writes
