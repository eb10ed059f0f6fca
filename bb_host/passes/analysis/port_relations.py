"""What the port types of a catalog row say of an op's values, whatever relation holds between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_edge.ir import types
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.ir.program import Op
from bb_host.ir.queries import fires_on_one
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.type_terms import ANY, Terms, conflict, described


def check_ports(op: Op, row: OpDef, terms: Terms, skip: set[str] | None = None) -> None:
    """Checks the inputs against the row's port types and gives the outputs theirs; variables aside."""
    for ports, names in ((row.inputs, flow.data_inputs(op)), (row.outputs, op.outputs)):
        last = len(ports) - 1
        for index, name in enumerate(names):
            if not name or (skip is not None and name in skip):
                continue
            if index > last and (last < 0 or not ports[last].variadic):
                raise conflict(
                    op,
                    f"it has {len(names)} {'inputs' if ports is row.inputs else 'outputs'}, not {last + 1}",
                )
            node = _port_node(ports[min(index, last)].type)
            if node is None or node is ANY or (node is types.TRIGGER and ports is row.inputs):
                continue  # a trigger port takes any value: what counts is that it fires
            known = terms.types.get(name)
            if known is None or (known.node is not node and known.node.parent is not node):
                terms.element(name, node, op)


_TAKES_ALL = (ANY.id, types.TRIGGER.id)
"""Types of ports that take any value: of a trigger it counts that it fires."""


def _port_node(text: str) -> TypeNode | None:
    return None if len(text) == 1 else types.by_id(text)


def solve_ports(op: Op, row: OpDef, terms: Terms) -> None:
    """Ops without a relation: port types, and SameType over their type variables."""
    check_ports(op, row, terms)
    bound: dict[str, ValueType] = {}
    names = flow.data_inputs(op)
    _arity(op, row, names)
    for ports, values in ((row.inputs, names), (row.outputs, op.outputs)):
        for index, name in enumerate(values):
            port = ports[min(index, len(ports) - 1)]
            if not port.is_variable or not name:
                continue
            known = terms.get(name)
            before = bound.get(port.type)
            if known is None or known.node is ANY:
                continue
            bound[port.type] = (
                known if before is None else _joined(op, before, known, ports is row.outputs, terms)
            )
    if not bound:
        return
    for ports, values in ((row.inputs, names), (row.outputs, op.outputs)):
        for index, name in enumerate(values):
            port = ports[min(index, len(ports) - 1)]
            if port.is_variable and name and port.type in bound:
                found = bound[port.type]
                if ports is row.outputs:
                    terms.put(name, found, op)
                elif terms.is_open(name):
                    terms.element(name, found.node, op)


def fixed_ports(row: OpDef) -> Callable[[Op, OpDef, Terms], None]:
    """`solve_ports` for a row without variables and variadic ports; the fast way is "nothing is new"."""
    node_of = types.REGISTRY.by_id
    wanted = [None if p.type in _TAKES_ALL else node_of(p.type) for p in row.inputs]
    yielded = [None if p.type == ANY.id else node_of(p.type) for p in row.outputs]
    least = row.min_inputs

    def solve(op: Op, row: OpDef, terms: Terms) -> None:
        seen = terms.types
        names = flow.data_inputs(op)
        if len(names) > len(wanted) or len(op.outputs) > len(yielded) or len(names) < least or "" in names:
            solve_ports(op, row, terms)
            return
        for values, nodes in ((names, wanted), (op.outputs, yielded)):
            for name, node in zip(values, nodes, strict=False):
                if node is not None and name:
                    known = seen.get(name)
                    if known is None or (known.node is not node and known.node.parent is not node):
                        terms.element(name, node, op)

    return solve


def _joined(op: Op, a: ValueType, b: ValueType, is_output: bool, terms: Terms) -> ValueType:
    if a is b or a == b:
        return a
    if not types.compatible(a.node, b.node):
        hint = "give it values of one type"
        if types.TRIGGER in (a.node, b.node):
            hint += "; g.threshold(1, value) is a trigger, whatever the value"
        raise conflict(op, f"its values differ: {described(terms, (*op.inputs, *op.outputs))}", hint)
    node = a.node if types.is_subtype(a.node, b.node) else b.node
    if is_output:
        return ValueType(node, a.shape)
    return ValueType(node, a.shape if a.shape == b.shape else None)


def _arity(op: Op, row: OpDef, names: Sequence[str]) -> None:
    least = row.min_inputs
    given = sum(1 for n in names if n)
    if given < least and not fires_on_one(row):
        raise conflict(op, f"it has {given} inputs, {least} at least")
