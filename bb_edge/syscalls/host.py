"""Ops that reach the host: app events, telemetry rings, counters."""

from __future__ import annotations

from collections import deque

from bb_edge.engine import steps
from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run, done
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.program.program import OUTPUT_OP
from bb_edge.engine.run.bound import BoundOp


def _name(op: BoundOp) -> str:
    name = op.spec.attrs.get("name")
    if isinstance(name, bytes):
        return name.decode()
    if isinstance(name, str):
        return name
    raise OpError("attribute name must be a text", where=op.spec.name)


def _emit(op: BoundOp, env: BindEnv) -> Run:
    topic = op.emits = _name(op)
    runtime, fired = env.runtime, done(op)

    def run(ctx: OpContext, value: object) -> object:
        runtime.emit_value(ctx.op.target, ctx.execution.id, topic, value)
        return fired

    return run


def _notify(op: BoundOp, env: BindEnv) -> Run:
    topic = _name(op)
    runtime, fired = env.runtime, done(op)

    def run(ctx: OpContext, _trigger: object) -> object:
        runtime.emit(steps.AppEvent(ctx.op.target, ctx.execution.id, topic))
        return fired

    return run


def _record(op: BoundOp, env: BindEnv) -> Run:
    name = _name(op)
    rings = env.states.rings
    if name not in rings and len(rings) >= env.runtime.config.metric_names:
        raise CapacityError(
            f"{len(rings)} rings exist already",
            where=op.spec.name,
            hint="raise limits.metric_names (--config; in Python NodeConfig)",
        )
    ring: deque[object] = rings.setdefault(name, deque(maxlen=env.runtime.config.record_entries))

    runtime, bound, fired = env.runtime, ring.maxlen, done(op)

    def run(ctx: OpContext, value: object) -> object:
        if len(ring) == bound:
            runtime.emit(steps.Telemetry(name, ring[0]))
        ring.append(value)
        return fired

    return run


def _increment(op: BoundOp, env: BindEnv) -> Run:
    name = _name(op)
    delta = op.spec.attrs.get("delta", 1)
    if not isinstance(delta, int):
        raise OpError("attribute delta must be an integer", where=op.spec.name)
    runtime, fired = env.runtime, done(op)

    def run(ctx: OpContext, _trigger: object) -> object:
        runtime.count(name, delta)
        return fired

    return run


BINDERS: dict[str, Bind] = {
    "AppEmit": _emit,
    "AppNotify": _notify,
    "Record": _record,
    "IncrMetric": _increment,
    OUTPUT_OP: _emit,
}
