"""Narrows the types of component outputs to what the bound components yield (a pre-pass).

1. `Params` of a bound model is F32 of as many elements as its construction state has parameters.
2. `Forward` of a bound model has the type of its graph's output (a symbolic size there is unknown here).
3. Outputs that the component class names in `STORAGE_TYPES`, or in what its `port_types` answers for the
   configuration, have the type that stands there, be the class bound or the slot's own.
4. A value that nothing is known of, and that a promised input reads, has that input's type.
5. Of a slot that is bound per class what all that serves it says; an output whose type is narrower already
   is left alone.
6. Needs the bindings; changes nothing but value types. What the component takes is the type solver's to hold
   against what it gets.
"""

from __future__ import annotations

from bb_edge.ir import types
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.ir.program import Function, Op, Program
from bb_host.passes.analysis.bound_types import Promises, ports_of, promises
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    promised = promises(program, options)
    stats.count("types_narrowed", 0)
    if not promised:
        return program
    functions = tuple(_narrow(f, promised, stats) for f in program.functions)
    return program.with_functions(functions)


def _narrow(function: Function, promised: dict[str, Promises], stats: Stats) -> Function:
    changed: dict[str, ValueType] = {}
    by_kind: dict[tuple[str, str], list[tuple[bool, int, ValueType]]] = {}
    seen = function.types
    for op in function.ops:
        slot = op.facts.slot
        if not slot:
            continue
        ports = by_kind.get((slot, op.op_type))
        if ports is None:
            ports = _narrowing(op, promised[slot]) if slot in promised else []
            by_kind[slot, op.op_type] = ports
        for is_input, index, type_ in ports:
            names = op.inputs if is_input else op.outputs
            name = names[index] if index < len(names) else ""
            known = seen.get(name)
            if known is None:
                if name:
                    changed.setdefault(name, type_)
            elif known.shape is None and known.node.abstract:
                changed.setdefault(name, type_)
            elif not is_input and known != type_ and _is_wider(known, type_.node):
                changed[name] = type_
    if not changed:
        return function
    stats.count("types_narrowed", len(changed))
    return function.with_ops(function.ops, {**seen, **changed})


def _narrowing(op: Op, of: Promises) -> list[tuple[bool, int, ValueType]]:
    """The promised ports of an op of this kind, and their types; sizes that differ from op to op are open."""
    found = []
    for port in ports_of(op, of):
        node, shape = port.promise.type
        if port.promise.leading or (node.abstract and shape is None):
            continue
        found.append((port.is_input, port.index, port.promise.opened()))
    return found


def _is_wider(known: ValueType, node: TypeNode) -> bool:
    """Whether the known type leaves open what the promised one says."""
    if not types.is_subtype(node, known.node):
        return False
    return known.node is not node or known.shape is None or any(not isinstance(d, int) for d in known.shape)
