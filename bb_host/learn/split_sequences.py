"""Sequences of parts of a tensor as the parts: what PyTorch's newer exporter writes of `split` and `chunk`.

With `optimize=False` it leaves `SplitToSequence` and a `SequenceAt` per part, without a gradient. Together
they are a `Split`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from bb_edge.ir import keys
from bb_host.ir.program import Array, Op, RawTensor, Subgraph
from bb_host.ir.queries import is_onnx
from bb_host.ir.rename import fresh_name
from bb_host.ir.values import constant, constant_array


def without_sequences(graph: Subgraph) -> Subgraph:
    """The graph with each sequence of parts as a Split, where their sizes are known, and which are taken."""
    if not any(is_onnx(op, "SplitToSequence") for op in graph.ops):
        return graph
    readers: dict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        for value in op.inputs:
            readers[value].append(op)
    known = {op.outputs[0]: array for op in graph.ops if (array := constant_array(op)) is not None}
    names = {*graph.inputs, *graph.initializers, *(v for op in graph.ops for v in op.outputs)}
    ops: list[Op] = []
    parts: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        if is_onnx(op, "SplitToSequence"):
            (sequence,) = op.outputs
            sizes = _sizes(op, [*readers[sequence]], known, graph.initializers)
            taken = all(is_onnx(r, "SequenceAt") and r.inputs[0] == sequence for r in readers[sequence])
            if sizes is not None and taken and sequence not in graph.outputs:
                parts[sequence] = tuple(fresh_name(f"{sequence}_{i}", names) for i in range(len(sizes)))
                given = fresh_name(f"{sequence}_sizes", names)
                ops.append(constant(given, sizes))
                attrs = {"axis": op.integer("axis", 0)}
                inputs = (op.inputs[0], given)
                ops.append(Op("Split", keys.ONNX_DOMAIN, inputs, parts[sequence], dict(attrs), name=op.name))
                continue
        elif is_onnx(op, "SequenceAt") and op.inputs[0] in parts:
            index = _number(op.inputs[1], known, graph.initializers)
            assert index is not None
            source = parts[op.inputs[0]][index]
            ops.append(Op("Identity", keys.ONNX_DOMAIN, (source,), op.outputs, name=op.name))
            continue
        ops.append(op)
    return dataclasses.replace(graph, ops=tuple(ops))


def _sizes(
    op: Op, readers: list[Op], known: Mapping[str, Array], tensors: Mapping[str, Array | RawTensor]
) -> Array | None:
    """The sizes of the parts; None where they, or the number of a part that is taken, are open."""
    array = _array(op.inputs[1], known, tensors) if len(op.inputs) > 1 else None
    if array is None or any(len(r.inputs) < 2 for r in readers):
        return None
    places = [_number(r.inputs[1], known, tensors) for r in readers]
    if not array.ndim:  # parts of one size: as many as are taken, where all of them are
        if None in places or sorted({p for p in places if p is not None}) != list(range(len({*places}))):
            return None
        return np.full(len({*places}), int(array), np.int64)
    count = array.size
    if any(p is None or not -count <= p < count for p in places):
        return None
    return array.astype(np.int64)


def _array(name: str, known: Mapping[str, Array], tensors: Mapping[str, Array | RawTensor]) -> Array | None:
    array = known.get(name, tensors.get(name))
    return array if isinstance(array, np.ndarray) else None


def _number(name: str, known: Mapping[str, Array], tensors: Mapping[str, Array | RawTensor]) -> int | None:
    array = _array(name, known, tensors)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
