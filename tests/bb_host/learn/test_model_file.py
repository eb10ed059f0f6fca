"""Slots that are bound to an ONNX file, without a word of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kinds_of_steps import of
from onnx import TensorProto, helper, numpy_helper

from bb_edge.components import GraphModel
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_edge.roles import ComponentError
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.errors import BindingError
from bb_host.learn import mlp, trainable

MODEL = ModelSlot("model")


class Runs(Module):
    def body(self, g: Graph) -> None:
        g.output("y", MODEL.forward(g, g.input("x", "F32", (None, 4))))


class Learns(Module):
    def body(self, g: Graph) -> None:
        x, t = g.input("x", "F32", (None, 4)), g.input("t", "F32", (None, 3))
        loss = MODEL.train(g, x, t)
        MODEL.step(g, after=loss)
        g.output("loss", loss)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def save(model: onnx.ModelProto) -> Path:
        onnx.save(model, tmp_path / "net.onnx")
        return tmp_path / "net.onnx"

    return save


def without_gradient() -> onnx.ModelProto:
    """Its Hardmax jumps: no gradient goes through it."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Hardmax", ["z"], ["y"])],
        "jumps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(module: Module, compiler: Compiler, **inputs: Any) -> tuple[dict[str, np.ndarray], set[str]]:
    """What an installed node answers, and the functions of its artifact."""
    (artifact,) = compile_edge(module, compiler).artifacts
    target = artifact.target
    node = install(PeerId.from_name("n"), (), load(artifact.data), [target], seed=1)
    node.invoke(target, inputs)
    events = {event.topic: np.asarray(event.value) for event in of(steps.AppEvent, node.poll(0))}
    return events, {f.name for f in artifact.program.functions}


@pytest.mark.parametrize("model", [mlp([4, 5, 3], seed=2), without_gradient()], ids=["mlp", "no gradient"])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_runs_as_any_runtime_runs_it(model: onnx.ModelProto, kind: Any, saved: Any) -> None:
    path = saved(model)
    x = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
    found, functions = run(Runs(), Compiler().bind_model("model", kind(path)), x=x)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)
    assert "model.forward" in functions and not functions & {"model.train", "model.fit", "model.loss"}


def test_a_file_learns_where_the_program_trains(saved: Any) -> None:
    compiler = Compiler().bind_model("model", str(saved(mlp([4, 3], seed=2))), {"learning_rate": 0.5})
    x, t = np.zeros((2, 4), np.float32), np.eye(3, dtype=np.float32)[:2]
    found, functions = run(Learns(), compiler, x=x, t=t)
    np.testing.assert_allclose(found["loss"], np.log(3), rtol=1e-6)
    assert "model.fit" in functions


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (lambda path: ("absent.onnx",), r"absent\.onnx: No such file"),
        (lambda path: (path, {"learning_rte": 1.0}), "learning_rte"),
        (lambda path: (path, 3), "a config is a mapping"),
    ],
)
def test_what_cannot_be_bound_says_why(bind: Any, message: str, saved: Any) -> None:
    with pytest.raises(BindingError, match=message):
        Compiler().bind_model("model", *bind(str(saved(mlp([4, 3])))))


@pytest.mark.parametrize("key", sorted(GraphModel.COMPILED))
def test_what_belongs_to_the_compiled_graphs_is_no_setting_of_a_device(key: str) -> None:
    model = trainable(mlp([4, 5, 3], seed=2), loss="softmax_cross_entropy")
    (artifact,) = compile_edge(Learns(), Compiler().bind_model("model", GraphModel, model)).artifacts
    given = (PeerId.from_name("n"), (), load(artifact.data), [artifact.target])
    own = GraphModel.CONFIG[key].default  # what it was compiled with
    install(*given, components={"model": {key: own}})
    with pytest.raises(ComponentError) as caught:
        install(*given, components={"model": {key: 1}})
    assert caught.value.what == f"the graphs were compiled with {own}, not 1"
    assert caught.value.where.endswith(f"key {key!r}") and "compile again" in caught.value.hint
