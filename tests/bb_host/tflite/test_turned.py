"""What is computed with rows and columns exchanged: which operators, and that the numbers stay the same."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from bb_host.tflite.graph import TfliteGraph
from bb_host.tflite.reshapes import separate
from bb_host.tflite.turned import pack_less, turn_rows
from bb_host.tflite.writer import write

ROWS, CLASSES = 40, 5


def product(graph: TfliteGraph, a: int, b: int, *, adj_x: bool = False, adj_y: bool = False) -> int:
    shape = graph.shape(a)[1 if adj_x else 0], graph.shape(b)[0 if adj_y else 1]
    return graph.op("BATCH_MATMUL", [a, b], shape, options={"adj_x": adj_x, "adj_y": adj_y})


def summed(graph: TfliteGraph, kind: str, x: int, axes: list[int], *, keep: bool = True) -> int:
    shape = [1 if n in axes else d for n, d in enumerate(graph.shape(x)) if keep or n not in axes]
    return graph.op(kind, [x, graph.constant(np.array(axes, np.int32))], shape, options={"keep_dims": keep})


def each(graph: TfliteGraph, kind: str, *inputs: int) -> int:
    return graph.op(kind, inputs, np.broadcast_shapes(*map(graph.shape, inputs)))


def softmax(graph: TfliteGraph, x: int) -> int:
    away = each(graph, "SUB", x, summed(graph, "REDUCE_MAX", x, [1]))
    power = each(graph, "EXP", away)
    return each(graph, "DIV", power, summed(graph, "SUM", power, [1]))


def same(run_on: Any, graph: TfliteGraph, *passes: Any) -> TfliteGraph:
    """The graph after the passes, whose results are those of before."""
    for number, index in enumerate(graph.outputs):
        graph.tensors[index].name = f"y{number}"
    changed = copy.deepcopy(graph)
    for each_pass in passes:
        each_pass(changed)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.shape(i)).astype(np.float32) for i in graph.inputs]
    for some in (graph, changed):
        separate(some)
    want, got = (run_on("flatbuffer", write(some), inputs) for some in (graph, changed))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return changed


def kinds(graph: TfliteGraph) -> list[str]:
    return [op.kind for op in graph.operators]


@pytest.mark.parametrize(
    ("rows", "wide", "depth", "turned"),
    [
        (32, 256, 64, True),
        (16, 144, 64, True),
        (15, 256, 64, False),
        (32, 144, 64, False),
        (64, 64, 512, False),
    ],
)
def test_the_smaller_operand_is_copied(rows, wide, depth, turned, run_on):
    graph = TfliteGraph()
    x, w = graph.input("x", (rows, depth)), graph.input("w", (wide, depth))
    graph.outputs.append(product(graph, x, w, adj_y=True))
    changed = same(run_on, graph, pack_less)
    assert kinds(changed) == ["BATCH_MATMUL"] + ["TRANSPOSE"] * turned
    assert changed.operators[0].inputs == ((w, x) if turned else (x, w))


@pytest.mark.parametrize(
    ("adj_x", "adj_y", "constant"), [(True, True, 0), (False, False, 0), (False, True, 1)]
)
def test_other_products_stay(adj_x, adj_y, constant, run_on):
    graph = TfliteGraph()
    x = graph.input("x", (64, 32) if adj_x else (32, 64))
    shape = (256, 64) if adj_y else (64, 256)
    w = graph.constant(np.ones(shape, np.float32)) if constant else graph.input("w", shape)
    graph.outputs.append(product(graph, x, w, adj_x=adj_x, adj_y=adj_y))
    assert kinds(same(run_on, graph, pack_less)) == ["BATCH_MATMUL"]


def loss(rows: int = ROWS, classes: int = CLASSES) -> TfliteGraph:
    """Softmax of a layer less the target, weighted by rows, and the gradients of the layer."""
    graph = TfliteGraph()
    x, w = graph.input("x", (rows, 12)), graph.input("w", (classes, 12))
    b, t, r = graph.input("b", (classes,)), graph.input("t", (rows, classes)), graph.input("r", (rows,))
    y = softmax(graph, each(graph, "ADD", product(graph, x, w, adj_y=True), b))
    column = graph.op("RESHAPE", [r, graph.constant(np.array([rows, 1], np.int32))], (rows, 1))
    d = each(graph, "MUL", each(graph, "SUB", y, t), column)
    graph.outputs += [product(graph, d, x, adj_x=True), product(graph, d, w)]
    graph.outputs += [summed(graph, "SUM", d, [0], keep=False), summed(graph, "SUM", d, [0, 1], keep=False)]
    graph.outputs.append(summed(graph, "MEAN", each(graph, "MUL", d, d), [1], keep=False))
    return graph


def test_a_loss_works_on_columns(run_on):
    changed = same(run_on, loss(), turn_rows)
    assert kinds(changed).count("TRANSPOSE") == 1, "the target alone: products turn the rest"
    for op in changed.operators:
        if op.kind in ("EXP", "SUB", "DIV", "SUM", "REDUCE_MAX"):
            assert changed.shape(op.inputs[0]) == (CLASSES, ROWS)
    first, *gradients = [op for op in changed.operators if op.kind == "BATCH_MATMUL"]
    assert changed.shape(first.outputs[0]) == (CLASSES, ROWS)
    assert [(op.options["adj_x"], op.options["adj_y"]) for op in gradients] == [(False, False), (True, False)]


@pytest.mark.parametrize(("rows", "classes"), [(15, 5), (20, 11), (40, 1)])
def test_few_rows_and_long_ones_stay(rows, classes):
    graph = loss(rows, classes)
    before = kinds(graph)
    turn_rows(graph)
    assert kinds(graph) == before


def test_what_would_have_to_be_turned_for_one_sum_stays(run_on):
    graph = TfliteGraph()
    x = graph.input("x", (ROWS, CLASSES))
    graph.outputs.append(each(graph, "SUB", x, summed(graph, "SUM", x, [1])))
    assert kinds(same(run_on, graph, turn_rows)) == ["SUM", "SUB"]


def test_results_that_are_asked_for_are_turned_back(run_on):
    graph = TfliteGraph()
    x = graph.input("x", (ROWS, CLASSES))
    y = x
    for _ in range(3):
        y = softmax(graph, y)
    column = summed(graph, "REDUCE_MIN", y, [1])
    flat = graph.op("RESHAPE", [column, graph.constant(np.array([ROWS], np.int32))], (ROWS,))
    softer = graph.op("SOFTMAX", [y], (ROWS, CLASSES), options={"beta": 1.0})
    graph.outputs += [y, column, each(graph, "NEG", flat), softer]
    changed = same(run_on, graph, turn_rows)
    assert kinds(changed).count("TRANSPOSE") == 2


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_give_the_same(seed, run_on):
    rng = np.random.default_rng(seed)
    graph = TfliteGraph()
    wide = [graph.input("a", (ROWS, CLASSES)), graph.constant(rng.random((ROWS, CLASSES)).astype(np.float32))]
    long = [graph.input("c", (ROWS, 1)), graph.constant(rng.random((ROWS, 1)).astype(np.float32))]
    few = [graph.input("d", (CLASSES,)), graph.constant(np.float32([0.5])), graph.constant(np.float32(2))]
    few.append(graph.constant(rng.random(CLASSES).astype(np.float32)))
    square = graph.input("w", (CLASSES, CLASSES))

    def some(values: list[int]) -> int:
        return values[int(rng.integers(len(values)))]

    for _ in range(25):
        match int(rng.integers(8)):
            case 0 | 1:
                wide.append(each(graph, str(rng.choice(["ADD", "SUB", "MAXIMUM"])), some(wide), some(long)))
            case 2:
                wide.append(each(graph, "MUL", each(graph, "TANH", some(wide)), some([*wide, *few])))
            case 3:
                long.append(summed(graph, str(rng.choice(["SUM", "MEAN", "REDUCE_MAX"])), some(wide), [1]))
            case 4:
                wide.append(product(graph, some(wide), square, adj_y=bool(rng.integers(2))))
            case 5:
                square = product(graph, some(wide), each(graph, "TANH", some(wide)), adj_x=True)
                square = each(graph, "TANH", square)
            case 6:
                long.append(each(graph, "LOGISTIC", some(long)))
            case 7:
                few.append(each(graph, "TANH", summed(graph, "SUM", some(wide), [0], keep=False)))
    made = {i for op in graph.operators for i in op.outputs}
    unread = [i for i in made if not graph.readers().get(i)]
    graph.outputs += sorted({*unread, *(i for i in (wide[-1], long[-1], few[-1]) if i in made)})
    same(run_on, graph, turn_rows)
