"""Finds which executions each value can be in, and refuses ops whose inputs never meet in one.

An execution is named by its entry: an entry op, or the invoke that brings the function's inputs. A value
may be in several (what `Any` or a stateful op passes on). The answers of a request are in a child of the
execution that asked; it sees what its parent sees, but not what comes when the request is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpKind
from bb_edge.ir.opsets.wire import OP_RECV, OP_RECV_REQ, OP_RECV_RESP, OP_RECV_RESP_BATCHED, OP_SEND_REQ
from bb_host.errors import CrossExecutionJoin, JoinAcrossSends, named
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import fires_on_one, is_entry, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.host_gates import ACROSS

_INVOKE = -1
_NO_REQUESTS: frozenset[str] = frozenset()

Where = Mapping[int, frozenset[str]]
"""Entry → the requests that must be closed before the value is there."""


@dataclass(slots=True)
class Joins:
    """What is known of a function's values: in which executions each is, and where each request asks."""

    ops: Sequence[Op]
    values: dict[str, Where] = field(default_factory=dict)
    parents: dict[int, frozenset[int]] = field(default_factory=dict)
    opened_by: dict[int, str] = field(default_factory=dict)  # child entry → wire id of its request
    asking: dict[str, Where] = field(default_factory=dict)  # request's wire id → where it asks


def check_joins(function: Function) -> Joins | None:
    """Raises CrossExecutionJoin (JoinAcrossSends) at an op whose inputs never meet.

    None for a function of one execution only.
    """
    if _entries(function) < 2:
        return None
    state = Joins(function.ops)
    everywhere = {_INVOKE: _NO_REQUESTS}
    for name in function.inputs:
        state.values[name] = everywhere
    for index, op in enumerate(function.ops):
        found = _where(index, op, state)
        if found is not None:
            for name in op.outputs:
                if name:
                    state.values[name] = found
            if flow.is_wire(op) and op.op_type == OP_SEND_REQ:
                state.asking[flow.wire_id(op)] = found
    return state


def _entries(function: Function) -> int:
    count = 1 if function.inputs else 0
    if flow.summary(function.ops).domains.isdisjoint((keys.WIRE_DOMAIN, keys.SYSCALL_DOMAIN)):
        return count
    return count + sum(map(is_entry, [op for op in function.ops if not op.inputs]))


def _where(index: int, op: Op, state: Joins) -> Where | None:
    """Where the op's outputs are; None for sources and constants, which are wherever they are read."""
    row = opsets.lookup(op.domain, op.op_type) if op.domain in flow.LEAF_DOMAINS else None
    if row is not None and row.kind is OpKind.ENTRY:
        if op.op_type == OP_RECV_RESP:
            _open_child(index, op, state)
        return {index: _NO_REQUESTS}
    values = state.values
    names = [name for name in reads(op) if name in values]
    if not names:
        return None
    if len(names) == 1:
        found = values[names[0]]
    elif row is not None and (fires_on_one(row) or (ACROSS in op.attrs and op.op_type == "Gate")):
        return _any_of(names, state)
    else:
        found = _meeting(op, names, state)
    if flow.is_wire(op) and op.op_type == OP_RECV_RESP_BATCHED:
        number = op.facts.request
        return {entry: closed | {number} for entry, closed in found.items()}
    return found


def _open_child(index: int, op: Op, state: Joins) -> None:
    number = op.facts.request
    state.opened_by[index] = number
    state.parents[index] = frozenset(state.asking.get(number, {_INVOKE: _NO_REQUESTS}))


def _any_of(names: Sequence[str], state: Joins) -> Where:
    found: dict[int, frozenset[str]] = {}
    for name in names:
        for entry, closed in state.values[name].items():
            found[entry] = closed if entry not in found else found[entry] & closed
    return found


def _meeting(op: Op, names: Sequence[str], state: Joins) -> Where:
    """The executions in which all of these values are. CrossExecutionJoin where there is none."""
    wheres = [state.values[n] for n in names]
    if wheres.count(wheres[0]) == len(wheres):
        return wheres[0]
    found: dict[int, frozenset[str]] = {}
    for entry in dict.fromkeys(e for w in wheres for e in w):
        closed: frozenset[str] | None = _NO_REQUESTS
        for where in wheres:
            seen = _seen_from(entry, where, state)
            closed = None if seen is None or closed is None else closed | seen
        if closed is not None and not closed & _requests_above(entry, state):
            found[entry] = closed
    if not found:
        raise _refusal(op, names, state)
    return found


def _seen_from(entry: int, where: Where, state: Joins) -> frozenset[str] | None:
    """What must be closed for a value to be seen in an execution; None where it never is."""
    todo, met = [entry], set()
    while todo:
        at = todo.pop()
        if at in where:
            return where[at]
        met.add(at)
        todo.extend(p for p in state.parents.get(at, ()) if p not in met)
    return None


def _requests_above(entry: int, state: Joins) -> frozenset[str]:
    """The requests that cannot be closed before this execution has ended: those that it is an answer of."""
    found = set()
    todo, met = [entry], set()
    while todo:
        at = todo.pop()
        met.add(at)
        if at in state.opened_by:
            found.add(state.opened_by[at])
        todo.extend(p for p in state.parents.get(at, ()) if p not in met)
    return frozenset(found)


def _refusal(op: Op, names: Sequence[str], state: Joins) -> CrossExecutionJoin:
    yields = {n: o for o in state.ops for n in o.outputs if n}
    sides: dict[int, str] = {}
    for name in names:
        for entry in state.values[name]:
            source = yields.get(name)
            text = f"{name!r}" if source is None else f"{name!r} of {named(source)}"
            sides.setdefault(entry, text)
    entries = [state.ops[e] for e in sides if e != _INVOKE]
    across = len(entries) > 1 and all(e.op_type in (OP_RECV, OP_RECV_REQ) for e in entries)
    listed = " and ".join(
        f"{text}, which stems from {entry_of(e, state)}" for e, text in list(sides.items())[:2]
    )
    if len(sides) == 1:  # an answer, and what comes when its request is closed
        listed = " and ".join(repr(n) for n in dict.fromkeys(names))
    if across:
        return JoinAcrossSends(
            f"it needs {listed}: they arrive by different sends",
            hint="send them in one list, or bundle them",
            op=op,
        )
    return CrossExecutionJoin(
        f"it needs {listed}: they never meet in one execution",
        hint="keep one of them in a component, or in a Hold",
        op=op,
    )


def entry_of(entry: int, state: Joins) -> str:
    """What starts an execution, for messages."""
    if entry == _INVOKE:
        return "the program's inputs"
    return named(state.ops[entry])
