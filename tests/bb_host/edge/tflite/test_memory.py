"""What a lowered target takes of RAM, told at compile time."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host.edge import BudgetError, Limits, build_edge
from bb_host.edge.tflite.graph import DYNAMIC, TfliteGraph
from bb_host.edge.tflite.memory import activation_bytes, has_open_batch
from bb_host.learn import mlp


def chain(batch: int) -> TfliteGraph:
    """4 → 100 → 2 floats per row."""
    graph = TfliteGraph()
    x = graph.input("x", (batch, 4))
    wide = graph.op("FULLY_CONNECTED", [x, graph.constant(np.zeros((100, 4), np.float32))], (batch, 100))
    end = graph.op("FULLY_CONNECTED", [wide, graph.constant(np.zeros((2, 100), np.float32))], (batch, 2))
    graph.outputs.append(end)
    return graph


def test_activations_are_those_that_live_together():
    assert activation_bytes(chain(1)) == 4 * (4 + 100)
    assert activation_bytes(chain(3)) == 3 * 4 * (4 + 100)
    assert activation_bytes(chain(DYNAMIC), 5) == 5 * 4 * (4 + 100)
    assert has_open_batch(chain(DYNAMIC))
    assert not has_open_batch(chain(2))


def rows(**options):
    (built,) = build_edge(mlp([64, 128, 10], seed=0), backend="tflite", **options).artifacts
    return {share.what: share.nbytes for share in built.budget.ram}, built


def test_a_model_with_an_open_batch_needs_the_largest_one():
    with pytest.raises(BudgetError, match="cannot be told"):
        rows(limits=Limits(ram=1 << 30))
    one, _ = rows(limits=Limits(ram=1 << 30), max_batch=1)
    eight, built = rows(limits=Limits(ram=1 << 30), max_batch=8)
    assert eight["activations of TFLite models"] == 8 * one["activations of TFLite models"]
    assert eight["weights as TFLite packs them (estimate)"] == built.lowering.models[0].size
    assert not built.budget.unknown


def test_what_does_not_fit_is_refused():
    with pytest.raises(BudgetError, match="too many"):
        rows(limits=Limits(ram=1 << 20), max_batch=1)
    plain, _ = rows(shapes={"x": [1, 64]})
    assert plain["TFLite interpreter (estimate)"] > 0
