"""The parts of a snapshot that hang on executions: frames, open requests, parked ops, claims.

A frame is named by its execution and its place there, an op by its graph and its place there. Executions are
made first and tied together afterwards, because frames refer to each other in circles.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from bb_edge.engine import snapshot_parts
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.net.requests import Cohort, CohortState
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.frames import Execution, Frame, State
from bb_edge.engine.run.waiting import Pending
from bb_edge.engine.snapshot_parts import Parts, frame_name, op_name, region_name
from bb_edge.roles.errors import CompletionLostError
from bb_edge.wire import envelope

_NO_FLAG = ""
"""The place of a flag that older versions wrote and never set: always False, so that rows keep their form."""

_FLAGS = (
    "failed",
    "expired",
    _NO_FLAG,
    "acknowledged",
    "bootstrap",
    "claimed",
    "notify",
    "asked_somebody",
    "queued",
)
_NUMBERS = ("claim_timer", "bytes_held", "answer_bytes", "requests_made")


# --- executions ---------------------------------------------------------------------------------------


def save_executions(parts: Parts) -> list[Any]:
    engine = parts.engine
    for execution in engine.pool.active.values():
        engine.own_cause(execution)
    rows = [_execution_row(parts, execution) for execution in engine.pool.active.values()]
    return [engine.pool.next_id, engine.pool.peak, rows, [e.id for e in engine.runnable]]


def _execution_row(parts: Parts, execution: Execution) -> dict[str, Any]:
    actions = parts.engine.runtime.callbacks
    planned = execution.bootstrap_of
    return {
        "id": execution.id,
        "target": execution.target,
        "state": execution.state.value,
        "flags": [name != _NO_FLAG and getattr(execution, name) for name in _FLAGS],
        "numbers": [getattr(execution, name) for name in _NUMBERS],
        "deadline_ns": execution.deadline_ns,
        "claim_set": list(execution.claim_set),
        "parent": execution.parent.id if execution.parent is not None else 0,
        "source": dump(execution.source),
        "cause": dump(execution.cause),
        "cohorts": list(execution.cohorts),
        "bootstrap_of": None if planned is None else [planned.target, planned.slot],
        "on_end": actions.name_of(execution.on_end),
        "on_claimed": actions.name_of(execution.on_claimed),
        "permits": [actions.name_of(release) for release in execution.permits],
        "frames": [_frame_row(parts, frame) for frame in execution.frames],
        "ready": [[frame_name(frame), op_name(parts, op)] for frame, op in execution.ready],
        "parked": [[frame_name(frame), op_name(parts, op)] for frame, op in execution.parked],
    }


def _frame_row(parts: Parts, frame: Frame) -> list[Any]:
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
        None if frame.call is None else op_name(parts, frame.call),
        frame.special,
    ]


def restore_executions(parts: Parts, data: Any, shift: Shift) -> None:
    engine = parts.engine
    next_id, peak, rows, runnable = data
    for row in rows:
        execution = engine.pool.revive(row["id"], row["target"], bool(row["parent"]))
        execution.state = State(row["state"])
        for name, value in zip(_FLAGS, row["flags"], strict=True):
            if name != _NO_FLAG:
                setattr(execution, name, value)
        for name, value in zip(_NUMBERS, row["numbers"], strict=True):
            setattr(execution, name, value)
        execution.deadline_ns = shift.time(row["deadline_ns"])
        execution.claim_set = tuple(row["claim_set"])
        execution.source, execution.cause = load(row["source"]), load(row["cause"])
        execution.cohorts.extend(row["cohorts"])
        for frame_row in row["frames"]:
            execution.new_frame(parts.region(frame_row[0]))
    for row in rows:
        _tie(parts, engine.pool.active[row["id"]], row)
    engine.runnable.extend(engine.pool.active[number] for number in runnable)
    engine.pool.next_id = next_id
    engine.pool.peak = peak


def _tie(parts: Parts, execution: Execution, row: Any) -> None:
    engine = parts.engine
    actions: Any = engine.runtime.callbacks
    if row["parent"]:
        execution.parent = engine.pool.active[row["parent"]]
        execution.parent.children += 1
    if row["bootstrap_of"] is not None:
        execution.bootstrap_of = parts.bootstraps.planned(*row["bootstrap_of"])
        if row["on_claimed"] is not None:
            execution.pending += 1  # it is held open until it has its claims
    execution.on_end = None if row["on_end"] is None else actions.get(row["on_end"])
    execution.on_claimed = None if row["on_claimed"] is None else actions.get(row["on_claimed"])
    execution.permits.extend(actions.get(name) for name in row["permits"])
    for frame, frame_row in zip(execution.frames, row["frames"], strict=True):
        _, values, waiting, parent, children, caller, call, special = frame_row
        for site, value in values:
            frame.values[site] = load(value)
        if len(waiting) != len(frame.waiting):
            raise ValueError("a frame of another graph")
        frame.waiting[:] = waiting
        frame.parent = None if parent is None else parts.frame(parent)
        frame.children = [parts.frame(child) for child in children] or None
        frame.special = special
        if caller is not None:
            frame.caller, frame.call = parts.frame(caller), parts.op(call)
            frame.forward = engine.forwards[frame.call]
    execution.ready.extend((parts.frame(f), parts.op(op)) for f, op in row["ready"])
    execution.parked.extend((parts.frame(f), parts.op(op)) for f, op in row["parked"])
    parts.engine.ledger.recharge(execution.source, execution.bytes_held)
    parts.engine.ledger.recharge(None, execution.answer_bytes)


# --- requests -----------------------------------------------------------------------------------------


def save_requests(parts: Parts) -> list[Any]:
    requests = parts.cycle.requests
    active = parts.engine.pool.active.values()
    children = [[child.id, child.cohort.id] for child in active if child.cohort is not None]
    return [requests.next_id, [_cohort_row(parts, c) for c in requests.cohorts.values()], children]


def _cohort_row(parts: Parts, cohort: Cohort) -> dict[str, Any]:
    return {
        "id": cohort.id,
        "frame": frame_name(cohort.frame),
        "op": op_name(parts, cohort.op),
        "state": cohort.state.value,
        "asked": dump(cohort.asked),
        "gated": dump(cohort.gated),
        "by_req_id": [[number, dump(peer)] for number, peer in cohort.by_req_id.items()],
        "settled": sorted(peer.to_bytes() for peer in cohort.settled),
        "accepted": sorted(peer.to_bytes() for peer in cohort.accepted),
        "answers": [dump(row) for row in cohort.answers],
        "waiting": [[dump(peer), dump(values), dump(cause)] for peer, values, cause in cohort.waiting],
        "running": cohort.running,
        "region": None if cohort.region is None else region_name(cohort.region),
        "collector": None if cohort.collector is None else list(cohort.collector),
        "timer": cohort.timer,
        "reason": cohort.reason,
        "ask": None if cohort.ask is None else snapshot_parts.dump_unit(cohort.ask),
    }


def restore_requests(parts: Parts, data: Any, shift: Shift) -> None:
    requests = parts.cycle.requests
    requests.next_id, rows, children = data
    for row in rows:
        frame, op = parts.frame(row["frame"]), parts.op(row["op"])
        execution = frame.execution
        assert execution is not None
        cohort = requests.revive(row["id"], frame, execution, op)
        cohort.state = CohortState(row["state"])
        cohort.asked, cohort.gated = load(row["asked"]), load(row["gated"])
        cohort.by_req_id = {number: load(peer) for number, peer in row["by_req_id"]}
        by_bytes = {peer.to_bytes(): peer for peer in (*cohort.asked, *cohort.gated)}
        cohort.settled = {by_bytes[peer] for peer in row["settled"]}
        cohort.accepted = {by_bytes[peer] for peer in row["accepted"]}
        cohort.answers = [load(values) for values in row["answers"]]
        cohort.waiting = deque((load(p), load(values), load(cause)) for p, values, cause in row["waiting"])
        cohort.running = row["running"]
        cohort.region = None if row["region"] is None else parts.region(row["region"])
        cohort.collector = None if row["collector"] is None else (row["collector"][0], row["collector"][1])
        cohort.timer, cohort.reason = row["timer"], row["reason"]
        cohort.ask = None if row["ask"] is None else snapshot_parts.load_unit(row["ask"], shift)
        if cohort.state is not CohortState.FIRED:
            execution.asking += 1
        requests.reopened(cohort)
    for child, number in children:
        parts.engine.pool.active[child].cohort = requests.cohorts[number]


def ask_again(parts: Parts) -> None:
    """Best-effort requests are asked again of the peers that had not answered (semantics §6 "Durable")."""
    units = parts.cycle.outbound.units
    waiting = {(unit.peer, unit.wire_req_id) for unit in units if unit.kind == envelope.REQUEST}
    for cohort in parts.cycle.requests.cohorts.values():
        unit = cohort.ask
        if unit is None or cohort.state is not CohortState.OPEN:
            continue
        for number, peer in cohort.by_req_id.items():
            if peer not in cohort.settled and (peer, number) not in waiting:
                again = Unit(peer, unit.fills, envelope.REQUEST, number, unit.deadline_ns, False, None)
                execution = cohort.execution
                parts.cycle.outbound.queue(again, execution.target, execution.id, cohort.op.spec.name)


# --- parked ops ---------------------------------------------------------------------------------------


def save_parked(parts: Parts) -> list[Any]:
    parking = parts.engine.parking
    rows = [
        [
            token,
            frame_name(parked.frame),
            op_name(parts, parked.op),
            parked.execution.id,
            parked.outside,
            parked.timer,
            None if parked.handle is None else [dump(value) for value in parked.inputs],
        ]
        for token, parked in parking.pending.items()
    ]
    engine = parts.engine
    waiters = [
        [[frame_name(frame), op_name(parts, op)] for frame, op in waiting] for waiting in engine.busy_waiters
    ]
    locked = [[component, name] for component, name in engine.locked.items()]
    locked_ops = [[frame_name(frame), op_name(parts, op)] for frame, op in engine.locked_ops]
    return [parking.next_token, rows, waiters, locked, locked_ops]


def restore_parked(parts: Parts, data: Any, shift: Shift) -> None:
    engine = parts.engine
    parking = engine.parking
    parking.next_token, rows, waiters, locked, locked_ops = data
    lost: list[Pending] = []
    for token, frame_row, op_row, number, outside, timer, inputs in rows:
        frame, op = parts.frame(frame_row), parts.op(op_row)
        execution = engine.pool.active[number]
        pending = Pending(frame, op, execution, outside, -1, timer)  # only answers to come keep others out
        if inputs is not None:
            pending.inputs = tuple(load(value) for value in inputs)
            lost.append(pending)
            continue
        parking.pending[token] = pending
        execution.pending += 1
        execution.waits_outside += outside
    engine.locked.update((component, name) for component, name in locked)
    for frame_row, op_row in locked_ops:
        engine.locked_ops.append((parts.frame(frame_row), parts.op(op_row)))
        _held(parts.frame(frame_row)).pending += 1
    for pending in lost:
        _again_or_lost(parts, pending)
    # No answer is to come any more: who waited for a component has its turn, behind what runs again.
    for waiting in waiters:
        for frame_row, op_row in waiting:
            frame = parts.frame(frame_row)
            _held(frame).ready.append((frame, parts.op(op_row)))
            engine.wake(_held(frame))


def _held(frame: Frame) -> Execution:
    assert frame.execution is not None
    return frame.execution


def _again_or_lost(parts: Parts, pending: Pending) -> None:
    """An op whose answer was to come later: it is dispatched again where its component allows that."""
    engine, op, execution = parts.engine, pending.op, pending.execution
    if op.component >= 0 and engine.components[op.component].restartable:
        sites = (*op.spec.inputs,)
        for site, value in zip(sites, pending.inputs, strict=True):
            if site >= 0:
                pending.frame.values[site] = value
        execution.ready.append((pending.frame, op))
    else:
        error = CompletionLostError("the node was restarted while its component worked on it", op.spec.name)
        engine.op_failed(execution, op, error)
    engine.wake(execution)


# --- claims -------------------------------------------------------------------------------------------


def save_claims(parts: Parts) -> list[Any]:
    claims = parts.engine.claims
    owners = [0 if owner is None else owner.id for owner in claims.owners]
    return [owners, [execution.id for execution in claims.waiters]]


def restore_claims(parts: Parts, data: Any, shift: Shift) -> None:
    claims, active = parts.engine.claims, parts.engine.pool.active
    owners, waiters = data
    if len(owners) != len(claims.owners):
        raise ValueError("claims of another number of components")
    claims.owners[:] = [active[number] if number else None for number in owners]
    claims.waiters.extend(active[number] for number in waiters)
