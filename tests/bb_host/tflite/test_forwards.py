"""Models in slots that only run: their graph `forward` is lowered as a plain model is."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.components import GraphModel
from bb_edge.engine.steps import AppEvent
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable
from bb_host.tflite.lower import TFLITE_BACKEND
from benchmarks.training_nets import NETS

SHAPES = {"MLP 64-32-10": (64,), "digits CNN": (1, 8, 8), "transformer block": (16, 32)}
CONFIG = NodeConfig(app_event_bytes=1 << 20)


class Runs(Module):
    """Other parameters, then the output for them."""

    name = "Runs"
    model = ModelSlot("model")

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def body(self, g: Graph) -> None:
        x = g.input("x", np.float32, [None, *self.shape])
        loaded = self.model.load_parameters(g, self.model.params(g, after=x) * 0.5)
        g.output("y", self.model.forward(g, g.gate(x, loaded)))


class Trains(Module):
    name = "Trains"
    model = ModelSlot("model")

    def body(self, g: Graph) -> None:
        x, t = (g.input(name, np.float32, [None, n]) for name, n in (("x", 64), ("t", 10)))
        g.output("loss", self.model.train(g, x, t))


@cache
def built(net: str, backend: str) -> Any:
    compiler = Compiler().bind_model("model", GraphModel, trainable(NETS[net]()))
    return build_edge(Runs(SHAPES[net]), compiler, backend=backend).artifacts[0]


def forward_of(artifact: Any) -> Any:
    (found,) = (f for f in artifact.program.functions if f.name.partition("#")[0] == "model.forward")
    return found


@pytest.mark.parametrize("net", SHAPES)
def test_a_device_runs_it_as_on_numpy_with_the_parameters_that_it_has(net, run_on):
    x = np.random.default_rng(4).standard_normal((5, *SHAPES[net])).astype(np.float32)
    node = install(PeerId.from_name("t"), (), load(built(net, "numpy").data), ["Runs"], CONFIG)
    node.invoke("Runs", {"x": x})
    (want,) = (np.asarray(s.value) for s in node.poll(1) if isinstance(s, AppEvent))
    artifact = built(net, "tflite")
    assert artifact.program.facts.bound("Runs", "backend").type_name == TFLITE_BACKEND
    assert any(op.op_type == "Model" for op in forward_of(artifact).ops)
    (got,) = run_on("invoked", artifact.data, [x])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_graph_that_nothing_runs_stays_as_it_is():
    compiler = Compiler().bind_model("model", GraphModel, trainable(mlp([64, 32, 10])))
    artifact = build_edge(Trains(), compiler, backend="tflite").artifacts[0]
    assert all(op.op_type != "Model" for op in forward_of(artifact).ops)
