"""Ops that route values and triggers within an execution."""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run, done
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.roles import TRIGGER


def _trigger(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, *_: TRIGGER


def _first(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, value, *_: value


def _tee(op: BoundOp, env: BindEnv) -> Run:
    fanout = len(op.outs)
    if fanout == 1:
        return lambda ctx, value: value
    return lambda ctx, value: (value,) * fanout


def _first_arrival(op: BoundOp, env: BindEnv) -> Run:
    """Lets the first arrival of the execution pass and drops later ones: `Any` and `DeadlineMatch`.

    `Any` ops of one `group` share it: one of them passes one value. The value that has passed is in the
    frame, so that it lives and dies with the execution and is in its snapshot.
    """
    site = op.out
    group = op.spec.attrs.get("group")
    sites = tuple(dict.fromkeys(o.out for o in env.graph.ops if _in_group(o, op, group)))

    def run(ctx: OpContext, value: object) -> object:
        return None if ctx.frame.values[site] is not None else value

    def run_in_group(ctx: OpContext, value: object) -> object:
        values = ctx.frame.values
        return value if all(values[s] is None for s in sites) else None

    return run if len(sites) < 2 else run_in_group


def _in_group(other: BoundOp, op: BoundOp, group: object) -> bool:
    """Returns whether two first-arrival ops share a group, and a region: each answer has its own."""
    spec = other.spec
    same = spec.op_type == op.spec.op_type and spec.region == op.spec.region
    return bool(group) and same and spec.attrs.get("group") == group


def one_element(value: object, what: str, where: str) -> Any:
    """The only element of a tensor. OpError where it has another number of them."""
    array = np.asarray(value)
    if array.size != 1:
        raise OpError(
            f"{what} is one number, and {list(array.shape)} came", where, "pick or reduce: x[0], reduce_max"
        )
    return array.reshape(-1)[0]


def _when(op: BoundOp, env: BindEnv) -> Run:
    where = op.spec.name
    return lambda ctx, condition: TRIGGER if one_element(condition, "the condition", where) else None


def _stop_rounds(op: BoundOp, env: BindEnv) -> Run:
    where, fired = op.spec.name, done(op)

    def run(ctx: OpContext, condition: object) -> object:
        started = ctx.execution
        while started.parent is not None:
            started = started.parent
        if started.cause is None or started.cause.round is None:
            raise OpError("no round started this execution", where, "record it where the rounds are: home")
        if one_element(condition, "the condition", where):
            started.ends_rounds = True
        return fired

    return run


def _token(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, *_: env.runtime.ids.getrandbits(64)


BINDERS: dict[str, Bind] = {
    "OnTrigger": _trigger,
    "When": _when,
    "StopRounds": _stop_rounds,
    "PassThrough": _first,
    "GateDispatch": _first,
    "GateManyDispatch": _first,
    "Tee": _tee,
    "Any": _first_arrival,
    "DeadlineMatch": _first_arrival,
    "CorrelateTag": _token,
    "MintDispatch": _token,
}
