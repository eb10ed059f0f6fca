"""The rows of an inspection: what single executions, requests, peers and queues hold, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_edge.engine.engine import Parts
from bb_edge.engine.net.arrivals import Arrival
from bb_edge.engine.net.cohort import Cohort
from bb_edge.engine.net.durable import Durable
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import Hold
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import Parked
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.syscalls.results import described
from bb_edge.wire.outbox import Cause

Row = dict[str, Any]
"""A row of a table: text, numbers, booleans, None, and lists and dicts of these."""

# --- executions ---------------------------------------------------------------------------------------


def op_of(op: BoundOp) -> str:
    """An op by its target and name."""
    return f"{op.target}/{op.spec.name}"


def execution_row(runtime: Runtime, execution: Execution, requests: Requests) -> Row:
    """One execution, with its frames."""
    name_of, children = runtime.callbacks.name_of, requests.children.cohorts
    return {
        "id": execution.id,
        "target": execution.target,
        "state": execution.state.name.lower(),
        "parent": execution.parent.id if execution.parent is not None else 0,
        "request": children[execution.id].id if execution.id in children else 0,
        "requests_over": list(execution.cohorts),
        "owes": execution.owes,
        "replied": execution.replied,
        "fault": None if execution.fault is None else [execution.fault.name, execution.fault.detail],
        "source": _peer(execution.source),
        "cause": _cause(execution.cause),
        "bootstrap": (execution.bootstrap[1] or execution.bootstrap[0])
        if execution.bootstrap is not None
        else "",
        "holds": {why.name.lower(): count for why, count in execution.held.items()},
        "ready": [op_of(op) for _, op in execution.ready],
        "parked": [op_of(op) for _, op in execution.parked],
        "claim_set": list(execution.claim_set),
        "claimed": execution.claimed,
        "failed": execution.failed,
        "expired": execution.expired,
        "acknowledged": execution.acknowledged,
        "notify": execution.notify,
        "asked_somebody": execution.asked_somebody,
        "requests_made": execution.requests_made,
        "deadline_ns": execution.deadline_ns,
        "until_ns": execution.until_ns,
        "bytes_held": execution.bytes_held,
        "answer_bytes": execution.answer_bytes,
        "claim_timer": execution.claim_timer,
        "until_timer": execution.until_timer,
        "calls": [name_of(act) for act in (execution.on_end, execution.on_claimed, *execution.permits)],
        "frames": [_frame(frame) for frame in execution.frames],
    }


def _place(frame: Frame | None) -> list[int] | None:
    """The execution of a frame, and the frame's index there."""
    if frame is None or frame.execution is None:
        return None
    return [frame.execution.id, frame.execution.frames.index(frame)]


def _frame(frame: Frame) -> Row:
    slot = frame.region.graph.slot
    return {
        "graph": frame.region.graph.index,
        "region": frame.region.region.index,
        "values": {
            name: described(value)
            for name, value, constant in zip(slot.sites, frame.values, slot.values, strict=False)
            if value is not None and value is not constant
        },
        "waiting": list(frame.waiting),
        "parent": _place(frame.parent),
        "children": [_place(child) for child in frame.children or ()],
        "caller": _place(frame.caller),
        "call": "" if frame.call is None else op_of(frame.call),
        "passes_on": frame.forwards_writes,
        "iteration": None if frame.body is None else frame.body.iteration,
    }


def parked_row(token: int, pending: Parked) -> Row:
    """One op that is parked."""
    return {
        "token": token,
        "op": op_of(pending.op),
        "execution": pending.execution.id,
        "frame": _place(pending.frame),
        "outside": pending.why is Hold.PERMIT,
        "busy": pending.busy_key,
        "later": pending.handle is not None,
        "timer": pending.timer,
    }


def components_of(scheduler: Scheduler) -> list[Row]:
    """All components, with who has them and who waits for them."""
    waiting = scheduler.waiting
    return [
        {
            "slots": [
                f"{target}/{slot}" for (target, slot), at in scheduler.components.slots.items() if at == index
            ],
            "type": component.TYPE_NAME,
            "owner": 0 if owner is None else owner.id,
            "locked_by": waiting.locked.get(index, ""),
            "unready": waiting.closes(index) and index not in waiting.locked,
            "busy": waiting.is_busy(index),
            "waiting": [op_of(op) for _, op in waiting.busy_waiters[index]],
        }
        for index, (component, owner) in enumerate(
            zip(scheduler.components, waiting.claims.owners, strict=True)
        )
    ]


def request_row(cohort: Cohort) -> Row:
    """One request."""
    return {
        "id": cohort.id,
        "op": op_of(cohort.op),
        "port": cohort.port,
        "state": cohort.state.value,
        "execution": cohort.execution.id,
        "frame": _place(cohort.frame),
        "mode": cohort.mode,
        "enough": cohort.enough,
        "asked": [str(peer) for peer in cohort.asked],
        "gated": [str(peer) for peer in cohort.gated],
        "numbers": {number: str(peer) for number, peer in cohort.by_req_id.items()},
        "settled": sorted(str(peer) for peer in cohort.settled),
        "final": sorted(str(peer) for peer in cohort.final),
        "accepted": sorted(str(peer) for peer in cohort.accepted),
        "reasons": {str(peer): reason.text for peer, reason in cohort.reasons.items()},
        "cut": cohort.cut,
        "answers": [[described(value) for value in answer] for answer in cohort.answers],
        "waiting": [[str(answer.peer), _cause(answer.cause)] for answer in cohort.waiting],
        "running": cohort.running,
        "collector": None if cohort.collector is None else list(cohort.collector),
        "timer": cohort.timer,
        "reason": cohort.reason,
        "ask": None if cohort.ask is None else _unit(cohort.ask),
    }


# --- peers --------------------------------------------------------------------------------------------


def _peer(peer: PeerId | None) -> str:
    return "" if peer is None else str(peer)


def _cause(cause: Cause | None) -> list[Any] | None:
    return None if cause is None else [str(cause.peer), cause.epoch, cause.seq]


def peers_of(peers: PeerStates) -> dict[str, Row]:
    """All peers of which something is known."""
    told = peers.back_pressure
    known = (*peers.presences, *peers.address_book, *peers.limits, *told.imposed, *told.blocked)
    return {str(peer): _peer_row(peers, peer) for peer in sorted(set(known))}


def _peer_row(peers: PeerStates, peer: PeerId) -> Row:
    presence, limits = peers.presences.get(peer), peers.limits.get(peer)
    return {
        "up": peers.is_up(peer),
        "present": presence is not None and presence.up,
        "epoch": 0 if presence is None else presence.epoch or 0,
        "classes": [] if presence is None else list(presence.classes),
        "addresses": [str(address) for address in peers.address_book.lookup(peer) or ()],
        "limits": None if limits is None else limits.meta(),
        "asks_patience_until_ns": peers.back_pressure.patience_until(peer),
        "blocked": peers.back_pressure.is_blocked(peer),
        "failing": peer in peers.failing,
        "unanswered": peers.failing.answers.unanswered(peer),
    }


# --- what comes in and goes out -----------------------------------------------------------------------


def ingress_of(runtime: Runtime, ingress: Ingress) -> Row:
    """What waits to be taken in, and who has how many bytes of it."""
    name_of = runtime.callbacks.name_of
    return {
        "envelopes": [{"peer": str(raw.peer), "bytes": len(raw.data)} for raw in list(ingress.envelopes)],
        "notices": [name_of(act) for act, _ in list(ingress.notices)],
        "entries": [
            {
                "target": entry.target,
                "execution": entry.number or 0,
                "fills": name_of(entry.fill),
                "peer": _peer(entry.peer),
                "bytes": entry.size,
                "expires_ns": entry.expires_ns,
                "internal": entry.internal,
                "with": [described(value) for value in entry.args],
            }
            for entry in ingress.entries
        ],
        "completions": [
            {"token": token, "result": described(result), "error": "" if error is None else str(error)}
            for token, result, error in list(ingress.completions)
        ],
        **ingress.ledger.in_use(),
    }


def journal_of(parts: Parts) -> dict[str, list[Row]]:
    """What of the journal is to be delivered, or written."""
    journal = parts.admission.journal
    return {
        "held": [{"token": token, **_arrival(arrival)} for token, arrival in journal.held.items()],
        "accepted": [_arrival(arrival) for arrival in journal.accepted],
        "replaying": [{"peer": str(r.peer), "bytes": len(r.data)} for r in journal.replaying],
    }


def _arrival(arrival: Arrival) -> Row:
    return {
        "peer": str(arrival.raw.peer),
        "bytes": len(arrival.raw.data),
        "epoch": arrival.message.epoch,
        "seq": arrival.message.seq,
        "deadline_ns": arrival.deadline_ns,
    }


def units_of(units: Iterable[Unit]) -> list[dict[str, Any]]:
    """A row per peer: a request to many is one unit."""
    rows = []
    for unit in units:
        rows += [_unit(unit)] if unit.to is None else [_unit(unit.alone(*one)) for one in unit.to.items()]
    return rows


def _unit(unit: Unit) -> Row:
    return {
        "peer": str(unit.peer),
        "kind": unit.kind,
        "request": unit.wire_req_id,
        "bytes": [len(fill.payload) for fill in unit.fills],
        "deadline_ns": unit.deadline_ns,
        "durable": unit.durable,
        "wire_id": unit.wire_id,
        "cause": _cause(unit.cause),
    }


def outbox_of(durable: Durable) -> Row:
    """The durable half of what leaves."""
    records = durable.records
    return {
        "records": [
            {"id": held.id, "peer": str(held.record.key.peer), "seq": held.seq, "settled": held.settled}
            for held in records.sender
        ],
        "flows": records.sender.inspect(),
        "waiting": units_of(durable.waiting),
        "writing": [row.token for row in records.writing],
        "needs_snapshot": list(records.needs_snapshot.waiting),
        "bytes": records.sender.room.bytes_in_use,
    }
