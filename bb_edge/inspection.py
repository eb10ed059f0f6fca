"""A node as plain data: what it holds at a moment, for tools that look into it and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bb_edge.engine.engine import Parts, Phase
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


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a node holds, as text, numbers, booleans, None, and lists and dicts of these.

    `dataclasses.asdict` makes a dict that `json.dumps` takes. Peers are texts (`str(peer)`), ops are
    `target/op`, times are monotonic nanoseconds, 0 where there is none. Values are described
    ("Tensor<F32>[2, 3]"), never copied.

    Attributes:
        node: `peer`, `targets`, those of them that are tensor work alone (`straight`), `now_ns` of the last
            poll, `epoch`, and how far its numbers have come.
        executions: those that run or wait, in the order in which they began: `id`, `target`, `state`, what
            holds each open (`holds`), ready ops, claims, flags, frames with what their sites hold.
        runnable: the executions with ready ops, in the order of their turns.
        parked: ops that wait for a timer, a permit, a request or a component's answer.
        components: per component: `slots`, `type`, whose claim it is (`owner`), the bootstrap that locks it,
            the bootstrap that it waits for (`unready`), whether it is `busy`, and ops that wait for that.
        claims: executions that wait for components, in the order of their turns.
        locked_ops: ops that wait for a bootstrap to end.
        requests: open requests, with who is asked and who has answered.
        calls: requests of components that wait for their answers.
        replies: remote ops of components here that will be answered later.
        peers: by peer: presence, health, back-off, limits, addresses, blocked or not.
        round_trips: what peers have said of round-trip times.
        links: by peer: the last numbers, and the envelopes that wait for acknowledgement.
        sources: by peer: what was taken of its durable envelopes, what is held until it is written, and
            whether anything is let in.
        ingress: queues of what came in, and the bytes that are charged, in all and by peer.
        journal: durable envelopes on their way in: held until written, accepted, replaying.
        outgoing: messages that wait for the end of the poll or, durable ones, for room.
        outbox: durable envelopes: records, those being written, requests that wait for a snapshot.
        timers: `when_ns`, what it calls, and with what, in the order in which they are due.
        rounds: the `Repeat` ops.
        targets: per target, of its pulses, intervals and rounds: "started", "starts" (in the next poll), or
            "not started": it waits for its bootstrap, or has none of these.
        bootstraps: in install order, with their status.
        events: bus events and lifecycle phases that wait for the next poll.
        phases: of a poll, in their order: what each `does`, whether it `has_work` now, and whether all that
            is ready runs after it (`frontier`).
    """

    node: Row
    executions: list[Row]
    runnable: list[int]
    parked: list[Row]
    components: list[Row]
    claims: list[int]
    locked_ops: list[str]
    requests: list[Row]
    calls: list[Row]
    replies: list[Row]
    peers: dict[str, Row]
    round_trips: list[Row]
    links: dict[str, Row]
    sources: dict[str, Row]
    ingress: Row
    journal: dict[str, list[Row]]
    outgoing: list[Row]
    outbox: Row
    timers: list[Row]
    rounds: list[Row]
    targets: dict[str, str]
    bootstraps: list[Row]
    events: dict[str, list[int]]
    phases: list[Row]


def inspect(
    parts: Parts, targets: Iterable[str], straight: Iterable[str], phases: Iterable[Phase]
) -> Inspection:
    """The node of these parts as plain data; between two polls, from the poller's thread."""
    scheduler, runtime = parts.scheduler, parts.runtime
    control, peers = parts.control, parts.peers
    chosen = list(targets)
    return Inspection(
        node={
            "peer": str(runtime.own_peer),
            "targets": chosen,
            "straight": list(straight),
            "now_ns": runtime.now_ns,
            "epoch": parts.links.best_effort_epoch,
            "next_execution": scheduler.pool.next_id,
            "next_token": scheduler.waiting.next_token,
            "next_request": parts.requests.next_id,
            "next_command": scheduler.next_command,
        },
        executions=[_execution(runtime, one, parts.requests) for one in scheduler.pool.active.values()],
        runnable=[execution.id for execution in scheduler.runnable],
        parked=[_parked(token, pending) for token, pending in scheduler.waiting.parked.items()],
        components=_components(scheduler),
        claims=[execution.id for execution in scheduler.waiting.claims.waiters],
        locked_ops=[_op(op) for _, op in scheduler.waiting.locked_ops],
        requests=[_request(cohort) for cohort in parts.requests.cohorts.values()],
        calls=[
            {"number": number, "peer": str(call.peer), "slot": call.outlet.name, "op": call.op}
            for number, call in control.calls.waiting.items()
        ],
        replies=[
            {"token": reply.token, "peer": str(reply.peer), "slot": reply.outlet.name, "op": reply.op}
            for reply in control.replies.pending.values()
        ],
        peers=_peers(peers),
        round_trips=[
            {
                "peer": str(peer),
                "chain": report.chain_id,
                "hop": report.hop_index,
                "site": report.next_hop_site_id,
                "srtt_ns": report.srtt_ns,
                "rttvar_ns": report.rttvar_ns,
                "samples": report.sample_count,
            }
            for (peer, *_), report in peers.round_trips.table.items()
        ],
        links=parts.links.inspect(),
        sources=parts.links.sources.inspect(),
        ingress=_ingress(runtime, parts.ingress),
        journal=_journal(parts),
        outgoing=_units((*parts.outgoing.held, *parts.outgoing.units)),
        outbox=_outbox(parts.outgoing.durable),
        timers=[
            {
                "token": timer.token,
                "when_ns": timer.when_ns,
                "calls": runtime.callbacks.name_of(timer.due.callback) or "a callable of a component",
                "with": [described(value) for value in timer.due.args],
            }
            for timer in runtime.timers.running()
        ],
        rounds=[
            {
                "target": one.target,
                "round": one.round,
                "attempt": one.attempt,
                "running": one.running,
                "finished": one.finished,
                "backoff_ns": one.backoff_ns,
                "timer": one.timer,
                "number": one.own_number,
            }
            for one in parts.sources.rounds
        ],
        targets={name: _started(parts, name) for name in chosen},
        bootstraps=[
            {
                "target": planned.target,
                "slot": planned.slot,
                "status": planned.status.value,
                "staged": planned.staged,
                "components": list(planned.touch_set),
                "inputs": {name: described(value) for name, value in planned.inputs.items()},
                "next_try_ns": planned.next_try_ns,
                "reason": planned.reason,
            }
            for planned in parts.bootstraps.order
        ],
        events={"bus": list(runtime.bus.events), "phases": list(parts.sources.due_phases)},
        phases=[
            {
                "name": phase.name,
                "does": (phase.run.__doc__ or "").partition("\n")[0],
                "has_work": bool(phase.work),
                "frontier": phase.frontier,
            }
            for phase in phases
        ],
    )


def _started(parts: Parts, target: str) -> str:
    if parts.sources.has_started(target):
        return "started"
    return "starts" if target in parts.sources.to_start else "not started"


# --- executions ---------------------------------------------------------------------------------------


def _op(op: BoundOp) -> str:
    return f"{op.target}/{op.spec.name}"


def _execution(runtime: Runtime, execution: Execution, requests: Requests) -> Row:
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
        "ready": [_op(op) for _, op in execution.ready],
        "parked": [_op(op) for _, op in execution.parked],
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
        "call": "" if frame.call is None else _op(frame.call),
        "passes_on": frame.forwards_writes,
    }


def _parked(token: int, pending: Parked) -> Row:
    return {
        "token": token,
        "op": _op(pending.op),
        "execution": pending.execution.id,
        "frame": _place(pending.frame),
        "outside": pending.why is Hold.PERMIT,
        "busy": pending.busy_key,
        "later": pending.handle is not None,
        "timer": pending.timer,
    }


def _components(scheduler: Scheduler) -> list[Row]:
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
            "waiting": [_op(op) for _, op in waiting.busy_waiters[index]],
        }
        for index, (component, owner) in enumerate(
            zip(scheduler.components, waiting.claims.owners, strict=True)
        )
    ]


def _request(cohort: Cohort) -> Row:
    return {
        "id": cohort.id,
        "op": _op(cohort.op),
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


def _peers(peers: PeerStates) -> dict[str, Row]:
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


def _ingress(runtime: Runtime, ingress: Ingress) -> Row:
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


def _journal(parts: Parts) -> dict[str, list[Row]]:
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


def _units(units: Iterable[Unit]) -> list[dict[str, Any]]:
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


def _outbox(durable: Durable) -> Row:
    records = durable.records
    return {
        "records": [
            {"id": held.id, "peer": str(held.record.key.peer), "seq": held.seq, "settled": held.settled}
            for held in records.sender
        ],
        "flows": records.sender.inspect(),
        "waiting": _units(durable.waiting),
        "writing": list(records.writing),
        "needs_snapshot": list(records.needs_snapshot.waiting),
        "bytes": records.sender.room.bytes_in_use,
    }
