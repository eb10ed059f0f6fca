"""Ops about time and randomness, which come from the engine's `now_ns` and its seeded generator."""

from __future__ import annotations

import numpy as np

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.waiting import PENDING
from bb_edge.wire.envelope_records import FailureCode


def _delay(attribute: str) -> Bind:
    """Parks the op, and fires it once the delay is over, in the same execution: `After` and `Sleep`."""

    def bind(op: BoundOp, env: BindEnv) -> Run:
        delay = op.spec.attrs.get(attribute)
        if not isinstance(delay, int) or delay < 0:
            raise OpError(f"{attribute} must be a number of nanoseconds, not {delay!r}", where=op.spec.name)
        runtime = env.runtime

        def run(ctx: OpContext, _trigger: object) -> object:
            if runtime.timers.full:
                bound = runtime.config.max_timers
                raise CapacityError(
                    f"{bound} timers run already",
                    ctx.op.spec.name,
                    "raise limits.max_timers (--config; in Python NodeConfig)",
                )
            token = env.scheduler.waiting.suspend(ctx)
            runtime.timers.at(ctx.now_ns + delay, env.scheduler.fire, token)
            return PENDING

        return run

    return bind


def _clock(op: BoundOp, env: BindEnv) -> Run:
    runtime = env.runtime
    return lambda ctx, _trigger: ctx.now_ns + runtime.clock_offset_ns


def _elapsed(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, since, until: np.asarray(int(until) - int(since), np.int64)


def _rng(op: BoundOp, env: BindEnv) -> Run:
    rng = env.runtime.rng
    return lambda ctx, _trigger: np.asarray(rng.getrandbits(64), dtype=np.uint64)


def _deadline_check(op: BoundOp, env: BindEnv) -> Run:
    """Drops and counts the value where its execution's deadline has passed."""
    runtime = env.runtime

    def run(ctx: OpContext, value: object) -> object:
        deadline = ctx.execution.deadline_ns
        if deadline and ctx.now_ns >= deadline:
            ctx.execution.expire()
            ctx.execution.went_wrong(FailureCode.OUT_OF_TIME, f"{op.spec.name}: its deadline had passed")
            runtime.count("deadlines.expired")
            return None
        return value

    return run


BINDERS: dict[str, Bind] = {
    "After": _delay("delay_ns"),
    "Sleep": _delay("duration_ns"),
    "Clock": _clock,
    "Elapsed": _elapsed,
    "RngU64": _rng,
    "DeadlineCheck": _deadline_check,
}
