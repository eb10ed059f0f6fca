"""The five gates of a wire path; those behind a Recv never mark anything.

The node decides before an envelope becomes an execution: it drops a repeated one, which it acknowledges
again, and refuses a source that ignores a back-off. `DedupGateRx` is therefore a mark alone: the graph shows
where values are known to be new. The other two check once more when the values reach them, which may be long
after the envelope arrived.
"""

from __future__ import annotations

from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.run.bound import BoundOp


def _pass(values: tuple[object, ...]) -> object:
    return values if len(values) > 1 else values[0]


def _dedup_rx(op: BoundOp, env: BindEnv) -> Run:
    def run(ctx: OpContext, *values: object) -> object:
        return _pass(values)

    return run


def _health_rx(op: BoundOp, env: BindEnv) -> Run:
    runtime, states = env.runtime, env.peers

    def run(ctx: OpContext, *values: object) -> object:
        source = ctx.execution.source
        if source is not None and not states.takes_from(source) and not ctx.execution.acknowledged:
            runtime.count("gates.peer_health_rx.dropped")
            return None
        return _pass(values)

    return run


def _backoff_rx(op: BoundOp, env: BindEnv) -> Run:
    runtime, states = env.runtime, env.peers

    def run(ctx: OpContext, *values: object) -> object:
        source = ctx.execution.source
        if source is not None and states.back_pressure.is_blocked(source) and not ctx.execution.acknowledged:
            runtime.count("gates.backoff_rx.dropped")
            return None
        return _pass(values)

    return run


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
