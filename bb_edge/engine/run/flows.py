"""Which components a flow touches: what bootstraps lock, and what executions claim ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bb_edge.engine.program.program import FunctionKey
from bb_edge.engine.run.bound import INVOKE, BoundGraph, BoundOp
from bb_edge.engine.run.components import Components
from bb_edge.ir.opsets import OpKind

Graphs = Mapping[FunctionKey, BoundGraph]


def touch_set(graph: BoundGraph, graphs: Graphs) -> tuple[int, ...]:
    """All components that a graph's ops touch, through the functions that it calls."""
    found: set[int] = set()
    todo, seen = [graph], {id(graph)}
    while todo:
        for op in todo.pop().ops:
            if op.touches >= 0:
                found.add(op.touches)
            callee = graphs.get((op.spec.domain, op.spec.op_type))
            if callee is not None and id(callee) not in seen:
                seen.add(id(callee))
                todo.append(callee)
    return tuple(sorted(found))


def find_claims(graphs: Graphs, components: Components) -> None:
    """Fills `claims` of every graph: for each entry the unshared components that its flow writes."""
    written: dict[FunctionKey, frozenset[int]] = {}

    def writes(op: BoundOp) -> frozenset[int]:
        key = (op.spec.domain, op.spec.op_type)
        if key in graphs:
            if key not in written:
                written[key] = frozenset()  # a function in its own call chain adds nothing
                written[key] = frozenset(c for inner in graphs[key].ops for c in writes(inner))
            return written[key]
        owned = op.writes and not components[op.component].shared
        return frozenset((op.component,)) if owned else frozenset()

    for graph in graphs.values():
        starts = {entry: [op.index for op in ops] for entry, ops in graph.starts.items()}
        readers: dict[int, list[int]] = {}
        for op in graph.ops:
            for site in (*op.spec.inputs, *op.spec.controls):
                readers.setdefault(site, []).append(op.index)
        own_writes = [writes(op) for op in graph.ops]
        for op in graph.ops:
            if op.spec.kind is OpKind.ENTRY:
                graph.claims[op.index] = _flow(
                    graph, readers, own_writes, [op.index, *starts.get(op.index, ())], op.spec.region
                )
        for site in graph.slot.inputs.values():
            first = [*readers.get(site, ()), *starts.get(INVOKE, ())]
            if wanted := _flow(graph, readers, own_writes, first, 0):
                graph.input_claims[site] = wanted
        pulled = [op.index for op in graph.ops if op.spec.pulls]
        graph.claims[INVOKE] = _flow(graph, readers, own_writes, pulled, 0)


def _flow(
    graph: BoundGraph,
    readers: Mapping[int, Sequence[int]],
    writes: Sequence[frozenset[int]],
    start: Iterable[int],
    region: int,
) -> tuple[int, ...]:
    """What the ops reached from `start`, within one region, write."""
    todo = list(start)
    seen = set(todo)
    found: set[int] = set()
    while todo:
        op = graph.ops[todo.pop()]
        found |= writes[op.index]
        reached = [r for s in op.outs if s >= 0 for r in readers.get(s, ())]
        for number in (*reached, *op.spec.pulls):
            if number not in seen and graph.ops[number].spec.region == region:
                seen.add(number)
                todo.append(number)
    return tuple(sorted(found))
