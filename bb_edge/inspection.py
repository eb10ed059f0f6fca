"""A node as plain data: what it holds at a moment, for tools that look into it and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bb_edge.engine.engine import Parts
from bb_edge.engine.phases import Phase
from bb_edge.inspection_rows import (
    Row,
    components_of,
    execution_row,
    ingress_of,
    journal_of,
    op_of,
    outbox_of,
    parked_row,
    peers_of,
    request_row,
    units_of,
)
from bb_edge.ir.opsets.wire import OP_RECV_REQ
from bb_edge.syscalls.results import described


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
            holds each open (`holds`), ready ops, claims, flags, frames with what their sites hold and, of a
            loop's body, its `iteration`.
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
        training: the entry ops whose flow trains a model, and whether a peer's `request` starts them.
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
    training: list[Row]
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
        executions=[execution_row(runtime, one, parts.requests) for one in scheduler.pool.active.values()],
        runnable=[execution.id for execution in scheduler.runnable],
        parked=[parked_row(token, pending) for token, pending in scheduler.waiting.parked.items()],
        components=components_of(scheduler),
        claims=[execution.id for execution in scheduler.waiting.claims.waiters],
        locked_ops=[op_of(op) for _, op in scheduler.waiting.locked_ops],
        requests=[request_row(cohort) for cohort in parts.requests.cohorts.values()],
        calls=[
            {"number": number, "peer": str(call.peer), "slot": call.outlet.name, "op": call.op}
            for number, call in control.calls.waiting.items()
        ],
        replies=[
            {"token": reply.token, "peer": str(reply.peer), "slot": reply.outlet.name, "op": reply.op}
            for reply in control.replies.pending.values()
        ],
        peers=peers_of(peers),
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
        ingress=ingress_of(runtime, parts.ingress),
        journal=journal_of(parts),
        outgoing=units_of((*parts.outgoing.held, *parts.outgoing.units)),
        outbox=outbox_of(parts.outgoing.durable),
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
        training=[
            {"op": op_of(graph.ops[entry]), "request": graph.ops[entry].spec.op_type == OP_RECV_REQ}
            for graph in parts.naming.graphs()
            for entry in sorted(graph.trains)
        ],
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
