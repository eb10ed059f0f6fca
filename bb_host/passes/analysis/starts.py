"""Warnings about flows that nothing starts, and about deadlines that others cut.

A partition without an entry is driven by `invoke` alone, and so is what the program's inputs lead to. In a
partition with an entry, ops that neither an entry nor an input leads to run for an op that reads their
results, or else in an `invoke` without inputs only; so do those that no input leads to, where inputs are the
only way in. This is most likely an `after=` that was forgotten; `g.on_invoke()` says that the host starts it.
Constants, and syscalls that read nothing else, come with each invoke and with the only entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpKind
from bb_edge.ir.opsets.wire import OP_RECV_REQ, OP_RECV_RESP, OP_SEND_REQ
from bb_host.dsl.remarks import has_effect, matters
from bb_host.errors import label, source
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import ONNX_DOMAINS, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.joins import Joins
from bb_host.passes.one_pass import Stats


@lru_cache(maxsize=1)
def _entry_kinds() -> frozenset[tuple[str, str]]:
    tables = [opsets.opset(domain) for domain in (keys.SYSCALL_DOMAIN, keys.WIRE_DOMAIN)]
    rows = [row for table in tables if table is not None for row in table.ops.values()]
    return frozenset((row.domain, row.name) for row in rows if row.kind is OpKind.ENTRY)


# --- flows ------------------------------------------------------------------------------------------------


def warn_of_dead_flows(main: Function, library: Mapping[tuple[str, str], Function], stats: Stats) -> None:
    """Warns, once per flow, about what no entry and no input of a partition that has some leads to.

    Calls of functions of the `library` that only compute are not missed: recording said that nothing reads
    them.
    """
    entries = _entry_kinds()
    there = flow.summary(main.ops)
    by_inputs = entries.isdisjoint(there.kinds)
    if by_inputs and (not main.inputs or there.domains.issubset(ONNX_DOMAINS)):
        return  # invokes are the only way in, or there are no effects that could be lost
    dead, constant = _dead(main.ops, entries, there.has_subgraphs)
    outputs = set(main.outputs)
    if not main.inputs and constant:
        _warn_of_constants(main, entries, constant, stats)
    dead = [op for op in dead if not _starts_by_itself(op, constant)]
    if not dead:
        return
    for ops in _flows(dead):
        lost = [name for op in ops for name in op.outputs if name in outputs]
        if lost and by_inputs:
            continue  # an output shows that it is meant: an invoke without inputs brings it
        effects = [op for op in ops if matters(op.domain, op.op_type, library)]
        if not (lost or effects) or any(op.facts.on_invoke for op in ops):
            continue
        first = ops[0]
        if lost:
            loss = f"the host never sees {', '.join(map(repr, lost))}"
        else:
            loss = "it never runs" if effects == [first] else f"{label(effects[-1])} never runs"
        stats.warn(
            "never-started",
            f"no entry, port or input of {main.name} starts {label(first)}: {loss}",
            source(first),
            "pass after= to it (rounds, r.closed, a trigger); if the host starts it, record it in"
            " `with g.on_invoke():`",
        )


def _warn_of_constants(
    main: Function, entries: frozenset[tuple[str, str]], constant: set[str], stats: Stats
) -> None:
    """Warns about constant outputs, and syscalls over constants, of a partition with several entries.

    None of them brings a constant.
    """
    ways_in = [op for op in main.ops if (op.domain, op.op_type) in entries and op.op_type != OP_RECV_RESP]
    if len(ways_in) < 2:
        return
    for op in main.ops:
        if op.facts.on_invoke:
            continue
        lost = [n for n in op.outputs if n in constant and n in main.outputs]
        if lost:
            stats.warn(
                "never-started",
                f"{lost[0]!r} is a constant, and none of the {len(ways_in)} entries of {main.name} brings it",
                source(op),
                "say when it is to come: g.gate(value, trigger)",
            )
        elif _starts_by_itself(op, constant) and has_effect(op.domain, op.op_type):
            stats.warn(
                "never-started",
                f"{label(op)} reads constants alone, and none of the {len(ways_in)} entries of {main.name}"
                " starts it",
                source(op),
                "pass after= to it (rounds, r.closed, a trigger); if the host starts it, record it in"
                " `with g.on_invoke():`",
            )


def _dead(
    ops: Sequence[Op], entries: frozenset[tuple[str, str]], branches: bool
) -> tuple[list[Op], set[str]]:
    """The ops, constants excepted, that nothing live leads to and that nothing live reads; in order.

    And the values that are constants, or computed from constants alone.

    Live is what reads a value that stems neither from sources nor from constants.
    """
    tracked: set[str] = set()  # values of sources and constants, and of what reads nothing else
    constant: set[str] = set()
    read: set[str] = set()  # by live ops, and by what these read
    lazy: list[Op] = []
    for op in ops:
        inputs = reads(op) if branches else op.inputs
        if tracked.isdisjoint(inputs):
            if inputs or (op.domain, op.op_type) in entries:
                continue
        elif not tracked.issuperset(filter(None, inputs) if "" in inputs else inputs):
            read.update(inputs)
            continue
        tracked.update(op.outputs)
        tracked.discard("")
        if _is_constant(op, inputs, constant):
            constant.update(op.outputs)
        else:
            lazy.append(op)
    read.discard("")
    dead = []
    for op in reversed(lazy):
        if read.isdisjoint(op.outputs):
            dead.append(op)
        else:
            read.update(reads(op))
            read.discard("")
    return dead[::-1], constant


def _is_constant(op: Op, inputs: Sequence[str], constant: set[str]) -> bool:
    """Whether an op is computed at install, or comes with whatever starts its partition."""
    if op.op_type == "Constant" and op.domain in (*ONNX_DOMAINS, keys.SYSCALL_DOMAIN):
        return True
    return op.domain in (*ONNX_DOMAINS, keys.SYSCALL_DOMAIN) and _reads_alone(inputs, constant)


def _starts_by_itself(op: Op, constant: set[str]) -> bool:
    """Whether an op is a syscall over constants, as `BoundGraph.starts` holds them on the device."""
    return op.domain == keys.SYSCALL_DOMAIN and _reads_alone(op.inputs, constant)


def _reads_alone(inputs: Sequence[str], constant: set[str]) -> bool:
    read = set(filter(None, inputs))
    return bool(read) and constant.issuperset(read)


def _flows(ops: Sequence[Op]) -> list[list[Op]]:
    """The ops, grouped by the values that one yields and another one reads."""
    yielded = {name for op in ops for name in op.outputs if name}
    flows: list[tuple[set[str], list[Op]]] = []
    for op in ops:
        names = yielded.intersection((*reads(op), *op.outputs))
        together = [op]
        apart = []
        for known, members in flows:
            if known.isdisjoint(names):
                apart.append((known, members))
            else:
                names |= known
                together = [*members, *together]
        flows = [*apart, (names, together)]
    order = {id(op): index for index, op in enumerate(ops)}
    grouped = [sorted(members, key=lambda op: order[id(op)]) for _, members in flows]
    return sorted(grouped, key=lambda members: order[id(members[0])])


# --- deadlines --------------------------------------------------------------------------------------------


def warn_of_cut_deadlines(mains: Sequence[tuple[Function, Joins | None]], stats: Stats) -> None:
    """Warns about requests that always end with the request that they are made for."""
    asked = {
        flow.wire_id(op): op
        for main, _ in mains
        for op in flow.wire_ops(main)
        if op.op_type == OP_SEND_REQ and _deadline(op)
    }
    if len(asked) < 2:
        return
    for main, joins in mains:
        for op in flow.wire_ops(main):
            if op.op_type != OP_SEND_REQ or flow.wire_id(op) not in asked:
                continue
            outer = [asked.get(number) for number in _served(main, joins, flow.wire_id(op))]
            if not outer or not all(o is not None and _deadline(o) <= _deadline(op) for o in outer):
                continue
            longest = max((o for o in outer if o is not None), key=_deadline)
            stats.warn(
                "outer-deadline-first",
                f"request {_port(op)!r} has {_seconds(op)} and serves request {_port(longest)!r}, which has"
                f" {_seconds(longest)}: its deadline is never reached",
                source(op),
                f"give it less than {_seconds(longest)}, or the other one ({source(longest)}) more",
            )


def _served(main: Function, joins: Joins | None, number: str) -> list[str]:
    """The requests in whose executions a request is made; empty where one execution serves no request."""
    if joins is None:  # one execution only
        entries = [op for op in flow.wire_ops(main) if flow.is_wire_entry(op)]
        return [flow.wire_id(op) for op in entries if op.op_type == OP_RECV_REQ]
    served: list[str] = []
    todo, met = [*joins.asking.get(number, ())], set[int]()
    while todo:
        entry = todo.pop()
        if entry in met:
            continue
        met.add(entry)
        op = joins.ops[entry] if entry >= 0 else None  # below zero: an invoke
        if op is not None and op.op_type == OP_RECV_REQ and flow.is_wire(op):
            served.append(flow.wire_id(op))
        elif op is not None and op.op_type == OP_RECV_RESP and flow.is_wire(op):
            todo.extend(joins.parents.get(entry, ()))
        else:
            return []
    return served


def _deadline(op: Op) -> int:
    return op.facts.deadline_ns or 0


def _port(op: Op) -> str:
    return op.facts.port


def _seconds(op: Op) -> str:
    return f"{_deadline(op) / 1e9:g} s"
