"""Which graphs of a component an artifact needs: those that an op of its program reads.

A component's class says it (`Component.GRAPH_OPS`): a server that averages models and never trains one goes
without the gradient of the model, and needs no memory for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from bb_edge.ir import keys
from bb_host.errors import ConstructionError
from bb_host.ir.construction import class_of
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Function, Program
from bb_host.ir.queries import component_graph, live
from bb_host.passes.analysis.slot_table import targets_of


def is_read(component: object, graph: str, op_types: Collection[str]) -> bool:
    """Whether a component, given as class or TYPE_NAME, may read a graph, where these ops are all of its own.

    One that this host does not know may read any.
    """
    try:
        kind = class_of(component)
    except ConstructionError:
        return True
    readers = None if kind is None else kind.GRAPH_OPS.get(graph)
    return readers is None or not set(readers).isdisjoint(op_types)


def without_unread_graphs(program: Program, target: str) -> Program:
    """The program without the graphs that no op of a target reads; the same one where all are read.

    Where nobody reads the gradient, `forward` hands out no activations for it.
    """
    types = {
        slot: bound.type_name for (name, slot), bound in program.facts.bindings.items() if name == target
    }
    ops = _op_types(program, target)
    gone = {
        function.key: slot
        for function in program.functions
        if function.domain == keys.COMPONENT_DOMAIN
        for slot, graph, owner in (component_graph(function),)
        if slot in types and owner in ("", target) and not is_read(types[slot], graph, ops.get(slot, ()))
    }
    if not gone:
        return program
    untrained = {slot for (_, name), slot in gone.items() if name.partition("#")[0] == f"{slot}.train"}
    kept = (f for f in program.functions if f.key not in gone)
    return program.with_functions(
        _alone(f) if f.domain == keys.COMPONENT_DOMAIN and _is_forward(f, untrained) else f for f in kept
    )


def _op_types(program: Program, target: str) -> Mapping[str, set[str]]:
    """By slot, the ops of a target."""
    uses = next((found for found in targets_of(program) if found.main.name == target), None)
    return {} if uses is None else {slot: {op.op_type for op in ops} for slot, ops in uses.ops.items()}


def _is_forward(function: Function, slots: Collection[str]) -> bool:
    slot, graph, _ = component_graph(function)
    return graph == "forward" and slot in slots


def _alone(forward: Function) -> Function:
    """A forward graph with its first result alone."""
    outputs = forward.outputs[:1]
    facts = forward.facts
    if facts.arity:
        facts |= FunctionFacts(arity=(*facts.arity[:2], 0))
    return dataclasses.replace(forward, outputs=outputs, ops=live(forward.ops, outputs), facts=facts)
