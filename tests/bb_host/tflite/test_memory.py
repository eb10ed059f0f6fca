"""What a lowered target takes of RAM, told at compile time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.build import build_edge
from bb_host.errors import BudgetError
from bb_host.learn import mlp
from bb_host.passes.device.budget import Limits
from bb_host.tflite.graph import DYNAMIC, TfliteGraph
from bb_host.tflite.memory import activation_bytes, has_open_batch


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


def rows(model=None, **options):
    (built,) = build_edge(model or mlp([64, 128, 10], seed=0), backend="tflite", **options).artifacts
    return {share.what: share.nbytes for share in built.budget.ram}, built


def test_a_model_with_an_open_batch_needs_the_largest_one():
    with pytest.raises(BudgetError, match=r"cannot be told.*state the largest batch with --max-batch"):
        rows(limits=Limits(ram=1 << 30))
    one, _ = rows(limits=Limits(ram=1 << 30), max_batch=1)
    eight, built = rows(limits=Limits(ram=1 << 30), max_batch=8)
    assert eight["activations of TFLite models"] == 8 * one["activations of TFLite models"]
    assert eight["weights as TFLite packs them (estimate)"] == built.lowering.models[0].size
    assert not built.budget.unknown


def mixed() -> onnx.ModelProto:
    """Two layers that are lowered, and a sum between them that is not."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        mixed (float[N, 8] x) => (float[N, 8] y) <float[8, 8] w, int64 axis> {
          a = MatMul (x, w)  b = Relu (a)  c = CumSum (b, axis)  d = MatMul (c, w)  y = Relu (d) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.add().CopyFrom(numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    model.graph.initializer.add().CopyFrom(numpy_helper.from_array(np.array(1), "axis"))
    return model


def test_what_runs_between_models_is_told_by_the_plain_ops_that_those_stand_for():
    (built,) = build_edge(mixed(), backend="auto", max_batch=4, limits=Limits(ram=1 << 30)).artifacts
    budget = built.budget
    assert len(built.lowering.models) == 2 and not budget.unknown
    (whole,) = (graph for graph in built.planned if graph.bounded)
    assert whole.arena >= 4 * 8 * 4 and not whole.entries and "plans its memory itself" in whole.reason
    own = [share.nbytes for share in budget.ram if share.what == f"weights and steps of {whole.function}"]
    assert sum(own) == whole.prepared
    alone = build_edge(mixed(), backend="auto").artifacts[0].budget
    assert len(alone.unknown) == 3
    assert all("is open (Tensor<F32>[N,8])" in each.reason for each in alone.unknown)
    assert all("--max-batch" in each.remedy for each in alone.unknown)
    with pytest.raises(BudgetError, match="--backend auto, which writes plain ops beside each model"):
        build_edge(mixed(), backend="tflite", max_batch=4, limits=Limits(ram=1 << 30))


def test_what_does_not_fit_is_refused():
    with pytest.raises(BudgetError, match="too many"):
        rows(limits=Limits(ram=1 << 20), max_batch=1)
    plain, _ = rows(shapes={"x": [1, 64]})
    assert plain["TFLite interpreter (estimate)"] > 0


def test_weights_that_every_step_reads_are_counted_per_step():
    steps, hidden = 10, 8
    zeros = np.zeros((1, 4 * hidden, hidden), np.float32)
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)],
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, hidden))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(zeros, "w"), numpy_helper.from_array(zeros, "r")],
    )
    opsets = [helper.make_opsetid("", 17)]
    found, built = rows(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    (model,) = built.lowering.models
    assert model.repeated == (steps - 1) * 4 * hidden * hidden * 4
    assert found["weights as TFLite packs them (estimate)"] == model.size + model.repeated
