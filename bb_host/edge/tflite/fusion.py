"""What TFLite has as one operator: activations inside the operator before them, biases inside a product,
one RESHAPE for several, and none whose memory somebody else reads.

Works on a graph that is complete but for its outputs' names; results that are asked for are never swallowed.
"""

from __future__ import annotations

from bb_host.edge.tflite.graph import Operator, TfliteGraph
from bb_host.edge.tflite.schema import NONE, RELU, RELU6

__all__ = ["fuse", "separate", "shorten", "without_unused"]

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


def shorten(graph: TfliteGraph) -> None:
    """In place: a RESHAPE of a RESHAPE is one, and one to the shape that is there is none."""
    asked = set(graph.outputs)
    producers: dict[int, Operator] = {}
    same: dict[int, int] = {}
    kept = []
    for op in graph.operators:
        op.inputs = tuple(same.get(i, i) for i in op.inputs)
        (result,) = op.outputs
        if op.kind == "RESHAPE":
            before = producers.get(op.inputs[0])
            if before is not None and before.kind == "RESHAPE":
                op.inputs = (before.inputs[0], *op.inputs[1:])
            if graph.shape(op.inputs[0]) == graph.shape(result) and result not in asked:
                same[result] = op.inputs[0]
                continue
        producers[result] = op
        kept.append(op)
    graph.operators = kept


def separate(graph: TfliteGraph) -> None:
    """In place: what is reshaped, and read elsewhere too, is copied before.

    A RESHAPE's result lies where its input does. tflite-runtime 2.14 loses count of who still reads there
    (its arena planner looks one step back, and other operators work in place), and overwrites it.
    """
    readers, producers = graph.readers(), graph.producers()
    ops = []
    for op in graph.operators:
        source = op.inputs[0]
        shared = len(readers.get(source, ())) > 1 or source in graph.outputs
        tensor = graph.tensors[source]
        if op.kind == "RESHAPE" and source in producers and shared and tensor.dtype in ("float32", "int8"):
            copy = graph.tensor(
                f"t{len(graph.tensors)}", tensor.shape, tensor.dtype, None, tensor.quantization
            )
            # Not a SLICE of all: with that, LiteRT 2.3 confuses memories in its turn, now and then.
            ops.append(Operator("MAXIMUM", (source, source), (copy,)))
            op.inputs = (copy, *op.inputs[1:])
        ops.append(op)
    graph.operators = ops


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
