"""Gives async ops a deadline and drops sends whose deadline has passed.

1. The first payload of a Send-flavored op with a deadline passes a `DeadlineCheck` of that deadline.
2. Ops of components that may suspend carry `deadline_ns`: their own, else 30 s.
3. RecvRespBatched carries its request's. Syscalls that wait on purpose (`After`, `Sleep`, `Limit.Acquire`,
   `Serialize.Dequeue`) carry none: they end by what they wait for, or with their execution.
4. Idempotent; needs the final layout.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND_REQ
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program, stamping
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.tx_chain import CHECK
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

LATER_DEADLINE_NS = 30_000_000_000
"""How long an op of a component may take where nobody says otherwise."""

_AT_ONCE = frozenset({keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS, keys.GATE_DOMAIN, keys.SYSCALL_DOMAIN})
"""Domains whose ops answer at once, or wait on purpose."""


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("async_deadlines_stamped", 0)
    functions = tuple(f if f.is_tensor_work else _stamp(f, stats) for f in program.functions)
    return program.with_functions(functions)


def _stamp(function: Function, stats: Stats) -> Function:
    if flow.summary(function.ops).domains <= _AT_ONCE:
        return function
    ops = list(function.ops)
    changed = 0
    checks: dict[int, tuple[Op, Op]] = {}
    types: dict[str, ValueType] = {}
    requests: dict[str, int] = {}
    checked: set[str] | None = None
    for index in flow.summary(function.ops).wire:
        op = function.ops[index]
        if op.op_type == OP_SEND_REQ:
            requests[flow.wire_id(op)] = op.facts.deadline_ns or 0
        if op.op_type == OP_RECV_RESP_BATCHED:
            asked = requests.get(op.facts.request)
            if asked and op.facts.deadline_ns != asked:
                ops[index] = op.saying(OpFacts(deadline_ns=asked))
                changed += 1
        elif flow.is_send_flavored(op) and op.facts.deadline_ns:
            if checked is None:
                checked = {n for o in function.ops if o.op_type == CHECK for n in o.outputs}
            if op.inputs[0] not in checked:
                checks[index] = _checked(op, function, types)
    waiting = {kind: _may_suspend(*kind) for kind in flow.summary(function.ops).kinds}
    saying = stamping(OpFacts(deadline_ns=LATER_DEADLINE_NS))
    suspends = waiting.get
    for index, op in enumerate(function.ops):
        waits = suspends((op.domain, op.op_type), False)
        if waits is not False and op.facts.deadline_ns is None and (waits or op.facts.slot):
            ops[index] = saying(op)
            changed += 1
    if not changed and not checks:
        return function
    stats.count("async_deadlines_stamped", changed + len(checks))
    new = flow.stamped(ops, function.ops, ("deadline_ns",)) if changed else flow.summary(function.ops)
    if checks:
        new = flow.spliced(new, checks)
    imports = {**function.opsets, keys.SYSCALL_DOMAIN: 1} if types else function.opsets
    return function.with_ops(new, {**function.types, **types}, opsets=imports)


def _may_suspend(domain: str, op_type: str) -> bool | None:
    """Whether ops of a kind may answer later; None for a component's own opset, any of whose ops may."""
    if domain in _AT_ONCE or domain == keys.WIRE_DOMAIN:
        return False
    row = opsets.lookup(domain, op_type)
    return None if row is None else row.may_suspend


def _checked(op: Op, function: Function, types: dict[str, ValueType]) -> tuple[Op, Op]:
    """Rule 1; the name under which the payload arrives is kept under its new name."""
    payload = op.inputs[0]
    name = f"{payload}__in_time_{flow.wire_id(op)}"
    while name in function.types:
        name += "_"
    if payload in function.types:
        types[name] = function.types[payload]
    check = Op(
        CHECK,
        keys.SYSCALL_DOMAIN,
        (payload,),
        (name,),
        {keys.ATTR_DEADLINE_NS: op.facts.deadline_ns or 0},
        op.beside(),
    )
    arrives = {name if sent == payload else sent: as_ for sent, as_ in op.facts.arrives_as.items()}
    if payload in op.inputs[1:] and payload in op.facts.arrives_as:
        arrives[payload] = op.facts.arrives_as[payload]
    facts = op.facts | OpFacts(arrives_as=arrives) if arrives else op.facts
    return check, dataclasses.replace(op, inputs=(name, *op.inputs[1:]), facts=facts)
