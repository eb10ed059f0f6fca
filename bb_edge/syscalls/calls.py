"""Calls of the artifact's own functions: the callee gets a frame in the same execution.

Nothing recurses: the callee's ops join the execution's ready queue, and a value that reaches an output of the
callee is written to the caller's frame.
"""

from __future__ import annotations

from bb_edge.engine.binding import BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.waiting import PENDING


def bind(op: BoundOp, env: BindEnv) -> Run:
    """Binds a FunctionCall. OpError where the artifact has no such function, or the arity is wrong."""
    callee = env.graphs.get((op.spec.domain, op.spec.op_type))
    if callee is None:
        raise OpError(f"the artifact has no function {op.spec.domain}::{op.spec.op_type}", where=op.spec.name)
    slot = callee.slot
    formals = tuple(slot.inputs.values())
    results = tuple(slot.outputs.values())
    if len(op.spec.inputs) > len(formals) or len(op.outs) > len(results):
        raise OpError(
            f"{slot.name} takes {len(formals)} inputs and has {len(results)} outputs", where=op.spec.name
        )
    forward: dict[int, tuple[int, ...]] = {}
    for inner, outer in zip(results, op.outs):  # noqa: B905 (a caller may omit trailing outputs)
        if outer >= 0:
            forward[inner] = (*forward.get(inner, ()), outer)
    constants = tuple(
        (slot.values[inner], outers) for inner, outers in forward.items() if slot.values[inner] is not None
    )
    region = callee.regions[0]
    scheduler = env.scheduler
    op.forward = forward

    def run(ctx: OpContext, *inputs: object) -> object:
        frame = ctx.execution.new_frame(region)
        frame.called_by(ctx.frame, op)
        for value, outers in constants:
            for outer in outers:
                scheduler.write(ctx.frame, outer, value)
        scheduler.write_all(frame, zip(formals, inputs))  # noqa: B905 (trailing inputs may be omitted)
        scheduler.pull_unreached(frame)
        return PENDING

    return run
