"""What TFLite has as one operator: activations inside the operator before them, biases inside a product.

Works on a graph that is complete but for its outputs' names; results that are asked for are never swallowed.
"""

from __future__ import annotations

from bb_host.tflite.graph import Operator, TfliteGraph
from bb_host.tflite.schema import NONE, RELU, RELU6

_ACTIVATIONS = {"RELU": RELU, "RELU6": RELU6}

_IGNORANT = ("CONCATENATION", "TRANSPOSE_CONV")
"""Their options name an activation, which the kernels (of the version that we write) pass over in silence."""


def fuse(graph: TfliteGraph) -> None:
    """In place: FULLY_CONNECTED + ADD of a vector, then RELU and RELU6 into what has an activation."""
    asked = set(graph.outputs)
    producers, readers = graph.producers(), graph.readers()
    gone: set[int] = set()
    for op in graph.operators:
        if op.kind == "ADD":
            for x, added in (op.inputs, op.inputs[::-1]):
                before = producers.get(x)
                constant = graph.tensors[added]
                if (
                    before is None
                    or before.kind != "FULLY_CONNECTED"
                    or before.inputs[2] >= 0
                    or x in asked
                    or len(readers[x]) != 1
                    or constant.data is None
                    or constant.shape != graph.shape(x)[-1:]
                ):
                    continue
                before.inputs = (*before.inputs[:2], added)
                before.outputs = op.outputs
                before.options["act"] = op.options["act"]
                producers[op.outputs[0]] = before
                gone.add(id(op))
                break
        elif op.kind in _ACTIVATIONS:
            x = op.inputs[0]
            before = producers.get(x)
            if before is None or before.options.get("act") != NONE or x in asked or len(readers[x]) != 1:
                continue
            if before.kind in _IGNORANT:
                continue
            before.options["act"] = _ACTIVATIONS[op.kind]
            before.outputs = op.outputs
            producers[op.outputs[0]] = before
            gone.add(id(op))
    graph.operators = [op for op in graph.operators if id(op) not in gone]


def take_transposes(graph: TfliteGraph) -> None:
    """In place: products of turned matrices read what was turned, and turn it themselves."""
    producers = graph.producers()
    for op in graph.operators:
        if op.kind != "BATCH_MATMUL":
            continue
        for position, option in enumerate(("adj_x", "adj_y")):
            before = producers.get(op.inputs[position])
            while before is not None and before.kind == "TRANSPOSE" and _turns_matrices(graph, before):
                inputs = list(op.inputs)
                inputs[position] = before.inputs[0]
                op.inputs = tuple(inputs)
                op.options[option] = not op.options[option]
                before = producers.get(before.inputs[0])


def casts_first(graph: TfliteGraph) -> None:
    """In place: what only converts an input is done before all else.

    XNNPACK takes no CAST, and takes what lies before one and what lies behind it as two.
    """
    inputs = set(graph.inputs)
    graph.operators.sort(key=lambda op: not (op.kind == "CAST" and inputs.issuperset(op.inputs)))


def _turns_matrices(graph: TfliteGraph, op: Operator) -> bool:
    """Whether a TRANSPOSE exchanges the last two axes, and no others."""
    perm = graph.tensors[op.inputs[1]].data
    rank = len(graph.shape(op.inputs[0]))
    return perm is not None and perm.tolist() == [*range(rank - 2), rank - 1, rank - 2]


def without_unused(graph: TfliteGraph) -> TfliteGraph:
    """A copy without operators that no output needs and without tensors that nobody names."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.operators):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    kept.reverse()
    needed.update(graph.inputs)
    order = [index for index in range(len(graph.tensors)) if index in needed]
    number = {index: n for n, index in enumerate(order)} | {-1: -1}
    for op in kept:
        op.inputs = tuple(number[i] for i in op.inputs)
        op.outputs = tuple(number[i] for i in op.outputs)
    return TfliteGraph(
        [graph.tensors[index] for index in order],
        kept,
        [number[i] for i in graph.inputs],
        [number[i] for i in graph.outputs],
    )
