"""RESHAPEs, whose results lie where their inputs do: one for several, none of what somebody else reads."""

from __future__ import annotations

from bb_host.tflite.graph import Operator, TfliteGraph


def shorten(graph: TfliteGraph) -> None:
    """In place: a RESHAPE of a RESHAPE is one, one to the shape that is there is none, equal ones are one.

    That spares a copy too, where `separate` makes one for each.
    """
    asked = set(graph.outputs)
    producers: dict[int, Operator] = {}
    same: dict[int, int] = {}
    known: dict[tuple[int, tuple[int, ...]], int] = {}  # results by what is reshaped, and to which shape
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
            first = known.setdefault((op.inputs[0], graph.shape(result)), result)
            if first != result and result not in asked:
                same[result] = first
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
