"""Stamps every Send-flavored op with its deadline, in nanoseconds from the send; 0 means no deadline.

1. The author's own (`deadline_ns` attribute), else the stamp that is there, else per-hop budget × chain depth
   if a budget is declared, else 0. The op may say its depth; else it is 1 for a send, and
   for a request the hops until its reply is back (`bb_host.passes.analysis.hops`).
2. A request needs one: `MissingDeadline`. Replies need none: what remains of the request's travels with it.
3. Where a budget is declared, a deadline shorter than budget × chain depth cannot be met:
   `InfeasibleDeadline`.
4. Other ops are left alone.

Rule P22 of the specification.
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_SEND_REQ, OP_SEND_RESP
from bb_host.errors import InfeasibleDeadline, MalformedWireOp, MissingDeadline
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.hops import request_hops
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("deadlines_stamped", 0)
    functions = tuple(
        _stamp(f, options.per_hop_budget_ns, stats) if flow.has_wire(f) else f for f in program.functions
    )
    return program.with_functions(functions)


def _stamp(function: Function, budget_ns: int, stats: Stats) -> Function:
    ops = function.ops
    hops = request_hops(ops) if budget_ns else {}
    changed: dict[int, Op] = {}
    for index in flow.summary(ops).wire:
        op = ops[index]
        if not flow.is_send_flavored(op):
            continue
        new = op.saying(OpFacts(deadline_ns=deadline_of(op, budget_ns, hops.get(flow.wire_id(op), 1))))
        if new is not op:
            changed[index] = new
            stats.count("deadlines_stamped")
    return flow.restamped(function, changed)


def deadline_of(op: Op, budget_ns: int, hops: int = 1) -> int:
    """The deadline of a Send-flavored op by rules 1 to 3; `hops` is its depth where the op names none."""
    depth = hops if op.facts.chain_depth is None else op.facts.chain_depth
    least = depth * budget_ns
    own = op.attrs.get(keys.ATTR_DEADLINE_NS)
    given = own if isinstance(own, int) else op.facts.deadline_ns or 0
    if given < 0:
        raise MalformedWireOp(f"a deadline of {given} ns", hint="deadlines are relative; 0 means none", op=op)
    if given == 0:
        if op.op_type == OP_SEND_REQ and least == 0:
            raise MissingDeadline(
                "a request without a deadline would wait for ever",
                hint="give deadline_ns=…, or declare Compiler().with_per_hop_budget_ns(…)",
                op=op,
            )
        return 0 if op.op_type == OP_SEND_RESP else least
    if given < least:
        raise InfeasibleDeadline(
            f"{given} ns are less than {depth} hops of the declared {budget_ns} ns",
            hint="allow more time, or ask through fewer hops",
            op=op,
        )
    return given
