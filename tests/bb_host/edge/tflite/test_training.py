"""A training step as one flatbuffer: XNNPACK takes all of it, and its gradients are those of float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.training_nets import NETS

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
    """One delegate that reads the graph's inputs and constants, and gives its outputs."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter
    (model,) = step(name).models
    it = interpreter(model_content=model.attrs["model"], num_threads=1)
    it.allocate_tensors()
    (delegate,) = (op for op in it._get_ops_details() if op["op_name"] == "DELEGATE")
    given = {place["index"] for place in it.get_input_details()}
    asked = {place["index"] for place in it.get_output_details()}
    made = {int(i) for op in it._get_ops_details() if op["op_name"] != "DELEGATE" for i in op["outputs"]}
    assert set(delegate["outputs"]) == asked
    assert given <= set(delegate["inputs"])
    assert not set(delegate["inputs"]) & made


def test_equal_gradients_have_equal_bytes(step):
    again = steps.Step(NETS["digits CNN"](), BATCH)
    assert again.models[0].attrs["sha256"] == step("digits CNN").models[0].attrs["sha256"]
