"""RESHAPEs of a TFLite graph: which of them stay, and what is copied before."""

from __future__ import annotations

from bb_host.tflite.graph import TfliteGraph
from bb_host.tflite.reshapes import separate, shorten


def graph_of_two(second: tuple[int, ...], asked: bool = False) -> TfliteGraph:
    """Relu of 2 x 6, which is reshaped twice and read itself; the second result is an output if `asked`."""
    graph = TfliteGraph()
    x = graph.op("RELU", [graph.input("x", (2, 6))], (2, 6))
    for shape in ((3, 4), second):
        reshaped = graph.op("RESHAPE", [x], shape)
        graph.outputs.append(reshaped if asked and shape == second else graph.op("ABS", [reshaped], shape))
    graph.outputs.append(graph.op("NEG", [x], (2, 6)))
    return graph


def kinds(graph: TfliteGraph) -> list[str]:
    shorten(graph)
    separate(graph)
    return [op.kind for op in graph.operators]


def test_equal_reshapes_are_one_with_one_copy_before_it():
    graph = graph_of_two((3, 4))
    assert kinds(graph) == ["RELU", "MAXIMUM", "RESHAPE", "ABS", "ABS", "NEG"]
    first, second = (op for op in graph.operators if op.kind == "ABS")
    assert first.inputs == second.inputs


def test_reshapes_to_other_shapes_stay():
    assert kinds(graph_of_two((4, 3))).count("RESHAPE") == 2


def test_a_reshape_that_is_an_output_stays():
    assert kinds(graph_of_two((3, 4), asked=True)).count("RESHAPE") == 2
