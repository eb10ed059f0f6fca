"""The part of a snapshot that holds open requests."""

from __future__ import annotations

from collections import deque
from typing import Any

from bb_edge.engine import snapshot_parts
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.net.requests import Cohort, CohortState
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.naming import frame_name, op_name, region_name
from bb_edge.engine.snapshot_parts import Parts
from bb_edge.wire import envelope

# --- requests -----------------------------------------------------------------------------------------


def save_requests(parts: Parts) -> list[Any]:
    requests = parts.cycle.requests
    active = parts.engine.pool.active
    children = [[number, requests.of_child[number].id] for number in active if number in requests.of_child]
    return [requests.next_id, [_cohort_row(parts, c) for c in requests.cohorts.values()], children]


def _cohort_row(parts: Parts, cohort: Cohort) -> dict[str, Any]:
    return {
        "id": cohort.id,
        "frame": frame_name(cohort.frame),
        "op": op_name(cohort.op),
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
        frame, op = parts.naming.frame(row["frame"]), parts.naming.op(row["op"])
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
        cohort.region = None if row["region"] is None else parts.naming.region(row["region"])
        cohort.collector = None if row["collector"] is None else (row["collector"][0], row["collector"][1])
        cohort.timer, cohort.reason = row["timer"], row["reason"]
        cohort.ask = None if row["ask"] is None else snapshot_parts.load_unit(row["ask"], shift)
        execution.asker = requests
        if cohort.state is not CohortState.FIRED:
            execution.hold(Hold.REQUEST)
        requests.reopened(cohort)
    for child, number in children:
        requests.of_child[child] = requests.cohorts[number]
        parts.engine.pool.active[child].asker = requests


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
