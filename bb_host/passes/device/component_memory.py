"""What the components of a partition keep in memory, as far as the compiler knows them.

Of components of an author's own only the parameters are known, and of their aggregators that they hold a sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from bb_edge.components import FedAvg, GraphModel
from bb_edge.components.fed_avg import sum_bytes
from bb_edge.components.optimizers import kept_vectors, scratch_bytes
from bb_edge.ir import keys
from bb_edge.ir.stamped_shapes import read_shapes
from bb_host.ir.program import Function, Op, Program, Slot, Subgraph, walk_ops
from bb_host.ir.proto import array_of

_TRAINED = ("train", "fit")
"""Graphs of a model that only nodes have which train it."""


def component_memory(program: Program) -> Iterator[tuple[str, int]]:
    """Rows of a budget: what it is, and bytes."""
    graphs = {f.name for f in program.functions if f.domain == keys.COMPONENT_DOMAIN}
    for function in program.functions:
        for name, slot in function.slots.items():
            yield from _parameters(program, function, name, slot, graphs)
        yield from _sums(program, function)


def tensor_bytes(slot: Slot) -> int:
    """Bytes of the tensors of a slot's construction state."""
    if not isinstance(slot.state, Subgraph):
        return 0
    return sum(array_of(tensor).nbytes for tensor in slot.state.initializers.values())


def _parameters(
    program: Program, function: Function, name: str, slot: Slot, graphs: set[str]
) -> Iterator[tuple[str, int]]:
    """Parameters of a component, and what training and answering keep beside them."""
    size = tensor_bytes(slot)
    if not size:
        return
    yield f"parameters of {name}", size
    if _type_of(program, function, name) != GraphModel.TYPE_NAME:
        return
    if not any(graph.startswith(tuple(f"{name}.{kind}" for kind in _TRAINED)) for graph in graphs):
        if any(op.op_type == "Params" and op.slot == name for op in walk_ops(function.ops)):
            yield f"a copy of the parameters of {name} while they are sent", size
        return
    yield f"gradient of {name}, and a copy while it answers", 2 * size
    assert isinstance(slot.state, Subgraph)
    settings = {key: json.loads(text) for key, text in slot.state.config.items()}
    kept = kept_vectors(settings)
    if kept:
        yield f"what the optimizer of {name} keeps ({', '.join(kept)})", len(kept) * size
    yield f"what a step of {name} works in", scratch_bytes(settings, size // 4)


def _sums(program: Program, function: Function) -> Iterator[tuple[str, int]]:
    """A sum per aggregator, where the compiler knows how large contributions are."""
    sizes: dict[str, int] = {}
    for op in walk_ops(function.ops):
        if op.domain == keys.ROLE_AGGREGATOR_DOMAIN and op.op_type == "Contribute":
            sizes[op.slot] = max(sizes.get(op.slot, 0), _size(op))
    for name, size in sizes.items():
        own = _type_of(program, function, name) != FedAvg.TYPE_NAME
        yield f"a sum of {name}{', as bb.FedAvg holds it (estimate)' if own else ''}", sum_bytes(size)


def _size(op: Op) -> int:
    """How many numbers a contribution has; 0 where the compiler does not know."""
    shapes = read_shapes(op.facts.shapes)
    shape = shapes[0] if shapes else None
    return math.prod(shape) if shape is not None and all(size > 0 for size in shape) else 0


def _type_of(program: Program, function: Function, slot: str) -> str:
    bound = program.facts.bound(function.name, slot)
    return "" if bound is None else bound.type_name
