"""Ops that route values and triggers within an execution (ir_and_dsl.txt part 5a)."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, Run
from bb_edge.engine.executions import BoundOp
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
    """`Any` and `DeadlineMatch`: the first arrival of the execution passes, later ones are dropped."""
    site = op.out

    def run(ctx: Any, value: object) -> object:
        return None if ctx.frame.values[site] is not None else value

    return run


def _token(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, *_: ctx.engine.ids.getrandbits(64)


BINDERS: dict[str, Bind] = {
    "OnTrigger": _trigger,
    "PassThrough": _first,
    "Gate": _first,
    "GateDispatch": _first,
    "GateManyDispatch": _first,
    "Tee": _tee,
    "Any": _first_arrival,
    "DeadlineMatch": _first_arrival,
    "CorrelateTag": _token,
    "MintDispatch": _token,
}
