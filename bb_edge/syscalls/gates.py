"""The five gates of a wire path; those behind a Recv never mark anything.

The node decides before an envelope becomes an execution: it drops a repeated one, which it acknowledges
again, and refuses a source that ignores a back-off. `DedupGateRx` is therefore a mark alone: the graph shows
where values are known to be new. The other two check once more when the values reach them, which may be long
after the envelope arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import Execution


def _pass(values: tuple[object, ...]) -> object:
    return values if len(values) > 1 else values[0]


def _dedup_rx(op: BoundOp, env: BindEnv) -> Run:
    def alone(ctx: OpContext, *values: object) -> object:
        return _pass(values)

    outs = None if env.runtime.config.trace else _behind_both(op, env.graph)
    if outs is None:
        return alone
    op.alone = alone
    (unhealthy, blocked), scheduler = _dropped_by(env), env.scheduler

    def run(ctx: OpContext, *values: object) -> None:
        # Three ops as one: what the first two hand on would be written only to be handed on once more.
        if not (unhealthy(ctx.execution) or blocked(ctx.execution)):
            scheduler.write_all(ctx.frame, zip(outs, values))  # noqa: B905 (as many as a gate passes on)

    return run


def _behind_both(op: BoundOp, graph: BoundGraph) -> tuple[int, ...] | None:
    """Returns the sites behind the two gates that follow; None where others read what lies between."""
    sites = op.outs
    for kind in ("PeerHealthGateRx", "BackoffGateRx"):
        readers = {
            reader for region in graph.regions for site in sites for reader, _ in region.consumers[site]
        }
        if len(readers) != 1 or not graph.slot.forwarded.isdisjoint(sites):
            return None
        (reader,) = readers
        spec = reader.spec
        if spec.op_type != kind or spec.domain != op.spec.domain or spec.region != op.spec.region:
            return None
        if spec.inputs != sites or spec.controls or spec.pulls or len(reader.outs) != len(sites):
            return None
        if not {*graph.slot.outputs.values()}.isdisjoint(sites):
            return None
        sites = reader.outs
    return sites


def _dropped_by(env: BindEnv) -> tuple[Callable[[Execution], bool], Callable[[Execution], bool]]:
    """What the gates of health and of back-off drop: each says so of an execution, and counts it."""
    runtime, states = env.runtime, env.peers
    takes_from, is_blocked = states.takes_from, states.back_pressure.is_blocked

    def unhealthy(execution: Execution) -> bool:
        source = execution.source
        if source is None or takes_from(source) or execution.acknowledged:
            return False
        runtime.count("gates.peer_health_rx.dropped")
        return True

    def blocked(execution: Execution) -> bool:
        source = execution.source
        if source is None or not is_blocked(source) or execution.acknowledged:
            return False
        runtime.count("gates.backoff_rx.dropped")
        return True

    return unhealthy, blocked


def _health_rx(op: BoundOp, env: BindEnv) -> Run:
    unhealthy, _ = _dropped_by(env)
    return lambda ctx, *values: None if unhealthy(ctx.execution) else _pass(values)


def _backoff_rx(op: BoundOp, env: BindEnv) -> Run:
    _, blocked = _dropped_by(env)
    return lambda ctx, *values: None if blocked(ctx.execution) else _pass(values)


def _health_tx(op: BoundOp, env: BindEnv) -> Run:
    runtime, states = env.runtime, env.peers
    own = runtime.own_peer

    def run(ctx: OpContext, peers: tuple[Any, ...]) -> object:
        kept = tuple(p for p in peers if p == own or states.is_up(p) or states.probe(p))
        if len(kept) < len(peers):
            runtime.count("gates.peer_health_tx.dropped", len(peers) - len(kept))
        return kept

    return run


def _backoff_tx(op: BoundOp, env: BindEnv) -> Run:
    runtime, states = env.runtime, env.peers
    own = runtime.own_peer

    def run(ctx: OpContext, peers: tuple[Any, ...]) -> object:
        kept = tuple(p for p in peers if p == own or states.ready(p, ctx.now_ns))
        if len(kept) < len(peers):
            runtime.count("gates.backoff_tx.dropped", len(peers) - len(kept))
        return kept

    return run


BINDERS: dict[str, Bind] = {
    "DedupGateRx": _dedup_rx,
    "PeerHealthGateRx": _health_rx,
    "BackoffGateRx": _backoff_rx,
    "PeerHealthGateTx": _health_tx,
    "BackoffGateTx": _backoff_tx,
}
