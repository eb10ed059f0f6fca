"""A training step as one flatbuffer: XNNPACK takes all of it, and its gradients are those of float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.learn import LOSSES
from benchmarks import models
from benchmarks.training_nets import NETS, digits_cnn_bn

spec = importlib.util.spec_from_file_location(
    "training_steps", Path(__file__).resolve().parent / "training_steps.py"
)
assert spec is not None and spec.loader is not None
steps = importlib.util.module_from_spec(spec)
spec.loader.exec_module(steps)

BATCH = 4


@pytest.fixture(scope="module")
def step():
    made = {}

    def get(name):
        if name not in made:
            made[name] = steps.Step(NETS[name](), BATCH)
        return made[name]

    return get


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_float64(name, step, interpret):
    found = step(name)
    assert not found.report.kept, found.report.explain()
    (model,) = found.lowered.ops
    feeds = found.feeds()
    results = interpret(model.attrs["model"], [feeds[v] for v in model.inputs])
    named = dict(zip(model.outputs, results, strict=True))
    got, want = [named[v] for v in found.function.outputs], steps.in_double(found.function, feeds)
    assert [x.shape for x in got] == [x.shape for x in want]
    assert steps.worst(got, want) < steps.LARGEST


@pytest.mark.parametrize("name", NETS)
def test_xnnpack_takes_all_of_it(name, step):
    """One delegate that reads the graph's inputs and constants alone, and gives its outputs."""
    (model,) = step(name).lowered.ops
    assert steps.outside(model.attrs["model"]) == []


@pytest.fixture(scope="module")
def normalized():
    return steps.Step(digits_cnn_bn(), BATCH, batch_norm="update")


def test_statistics_of_a_batch_are_part_of_it(normalized, interpret):
    """Gradients through them and new running ones, also where rows only fill the batch up."""
    (model,) = normalized.lowered.ops
    assert steps.outside(model.attrs["model"]) == []
    feeds = normalized.feeds()
    weights = normalized.function.inputs[2]
    for filled in (0, 1):
        share = np.zeros(BATCH, np.float32)
        share[: BATCH - filled] = 1 / (BATCH - filled)
        feeds[weights] = share
        results = interpret(model.attrs["model"], [feeds[v] for v in model.inputs])
        named = dict(zip(model.outputs, results, strict=True))
        pairs = [
            (named[v], wide)
            for v, wide in zip(
                normalized.function.outputs, steps.in_double(normalized.function, feeds), strict=True
            )
        ]
        # A bias before a normalization changes nothing: its gradient is zero but for rounding.
        idle = [got for got, want in pairs if np.abs(want).max() < 1e-6]
        assert len(idle) == 2 and all(np.abs(got).max() < 1e-6 for got in idle)
        moved = [(got, want) for got, want in pairs if np.abs(want).max() >= 1e-6]
        assert steps.worst(*map(list, zip(*moved, strict=True))) < steps.LARGEST


TINY = ("resnet8", "ds_cnn", "autoencoder", "transformer")


@pytest.mark.parametrize("name", TINY)
def test_nets_of_the_benchmarks_are_one_delegate_too(name):
    net = models.ALL[name]()
    for value in (*net.graph.input, *net.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del net.graph.value_info[:]
    (model,) = steps.Step(net, 2, "mse").models
    assert steps.outside(model.attrs["model"]) == []


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_lowered(loss, interpret):
    """Numbers of classes are compared on NumPy; what that gives is converted before all else."""
    found = steps.Step(NETS["MLP 64-32-10"](), BATCH, loss)
    (model,) = found.models
    assert steps.outside(model.attrs["model"]) == (["CAST before it"] if loss.startswith("sparse") else [])
    feeds = found.feeds()
    want = steps.in_double(found.function, feeds)
    values = steps.computed(found.lowered, feeds, interpret)
    assert steps.worst([values[v] for v in found.function.outputs], want) < steps.LARGEST


def test_rows_of_a_table_are_picked_and_their_gradients_scattered_on_numpy():
    rng = np.random.default_rng(0)
    weights = {"e": (50, 8), "w": (10, 8), "b": (10,)}
    held = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("Gather", ["e", "x"], ["h"]),
        helper.make_node("ReduceMean", ["h", "along"], ["m"], keepdims=0),
        helper.make_node("Gemm", ["m", "w", "b"], ["y"], transB=1),
    ]
    ports = (("x", TensorProto.INT64, ["N", 12]), ("y", TensorProto.FLOAT, ["N", 10]))
    inputs, outputs = ([helper.make_tensor_value_info(*port)] for port in ports)
    along = numpy_helper.from_array(np.array([1]), "along")
    graph = helper.make_graph(nodes, "table", inputs, outputs, [*held, along])
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = steps.Step(net, BATCH)
    kinds = [op.op_type for op in found.lowered.ops if op.op_type != "Constant"]
    assert kinds.count("Model") == 1
    assert kinds[0] == "Gather" and kinds[-1] == "ScatterND"


def test_equal_gradients_have_equal_bytes(step):
    again = steps.Step(NETS["digits CNN"](), BATCH)
    assert again.models[0].attrs["sha256"] == step("digits CNN").models[0].attrs["sha256"]
