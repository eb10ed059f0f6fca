"""What is not trained and sent all the same: frozen layers that a server replaces, statistics as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_edge.components import FedAvg, GraphModel
from bb_edge.ir.annotated import metadata_of
from bb_edge.roles import ComponentError
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.cli import main
from bb_host.errors import ModelImportError
from bb_host.learn import TrainableModel, mlp, trainable
from tests.aids.graph_models import built
from tests.aids.peers import numbered
from tests.aids.refusals import refused

NET = mlp([4, 5, 6, 3], seed=1)
CTX: Any = SimpleNamespace(exec_id=1, cohort=0)
X, Y = np.ones((2, 4), np.float32), np.eye(3, dtype=np.float32)[:2]


def normalized() -> onnx.ModelProto:
    """A dense layer, its normalization, and a dense head."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 5), "scale": (5,), "shift": (5,), "mean": (5,), "var": (5,), "head": (5, 3)}
    tensors = {name: rng.random(shape, np.float32) + 0.5 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "dense"),
        helper.make_node("BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "head"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def changed(model: GraphModel, before: dict[str, np.ndarray]) -> set[str]:
    return {n for n, array in model.named_parameters().items() if not np.array_equal(array, before[n])}


def learn(model: GraphModel, way: str) -> None:
    if way == "train":
        model.train(CTX, X, Y)
    else:
        model.backward(CTX, model.forward(CTX, X) - Y)
    model.step(CTX)


def kinds(model: TrainableModel) -> dict[str, str]:
    return {line.split()[1]: line.split()[0] for line in model.table().splitlines()[1:-1]}


@pytest.mark.parametrize("way", ["train", "backward"])
def test_they_have_no_gradient_and_no_optimizer_touches_them(way: str) -> None:
    frozen: dict[str, Any] = {"train_last": 1, "optimizer": "adamw", "config": {"weight_decay": 0.5}}
    model, plain = built(trainable(NET, sent=["*1", "w2"], **frozen)), built(trainable(NET, **frozen))
    before = model.named_parameters()
    assert list(before) == ["w3", "b3", "w1", "b1", "w2"]
    learn(model, way)
    learn(plain, way)
    assert changed(model, before) == {"w3", "b3"}
    for name, array in plain.named_parameters().items():  # b2 is a constant in both
        np.testing.assert_array_equal(model.named_parameters()[name], array)


def test_they_travel_and_are_loaded_and_averaged() -> None:
    chosen: dict[str, Any] = {"frozen": ["*1"], "sent": ["*1"]}
    server, client = built(trainable(NET, **chosen)), built(trainable(NET, **chosen))
    vector = client.params(CTX)
    assert metadata_of(vector)["layout"] == "w2:5x6;b2:6;w3:6x3;b3:3;w1:4x5;b1:5"
    assert client.layout_hash == server.layout_hash != built(trainable(NET, frozen=["*1"])).layout_hash
    server.load_parameters(CTX, np.arange(vector.size, dtype=np.float32))
    agg = FedAvg()
    for number, weight, sender in ((1, 1.0, client), (2, 3.0, server)):
        peer = (numbered(number),)
        agg.contribute(CTX, sender.params(CTX), np.array(weight, np.float32), peer, np.array(0))
    mean, *_ = agg.aggregate(CTX)
    client.load_parameters(CTX, mean)
    expected = vector / 4 + np.arange(vector.size, dtype=np.float32) * 3 / 4
    np.testing.assert_allclose(client.params(CTX), expected, rtol=1e-6)
    backbone = client.named_parameters()["w1"]
    np.testing.assert_allclose(backbone.ravel(), expected[57:77], rtol=1e-6)
    x = np.ones((1, 4), np.float32)  # and the forward pass reads what was loaded
    first = np.maximum(x @ backbone + client.named_parameters()["b1"], 0)
    second = np.maximum(first @ client.named_parameters()["w2"] + client.named_parameters()["b2"], 0)
    wanted = second @ client.named_parameters()["w3"] + client.named_parameters()["b3"]
    np.testing.assert_allclose(client.forward(CTX, x), wanted, rtol=1e-5)


def test_statistics_that_stay_as_they_are_are_sent_by_name() -> None:
    model = trainable(normalized(), sent=["mean", "var"])
    assert list(model.model.parameters) == ["w", "scale", "shift", "head", "mean", "var"]
    assert model.warnings() == ()  # whoever sends them knows that training does not move them
    learner = built(model)
    before = learner.named_parameters()
    learn(learner, "train")
    assert changed(learner, before) == {"w", "scale", "shift", "head"}


def test_beside_statistics_that_batches_update_and_personal_layers() -> None:
    model = trainable(normalized(), batch_norm="update", frozen=["w"], sent=["w"], personal=["head"])
    assert list(model.model.parameters) == ["head", "scale", "shift", "w", "mean", "var"]
    assert kinds(model)["w"] == kinds(model)["mean"] == "sent"
    learner = built(model)
    before = learner.named_parameters()
    learner.train(CTX, X + np.arange(2, dtype=np.float32)[:, None], Y)
    assert changed(learner, before) == {"mean", "var"}
    learner.step(CTX)
    assert changed(learner, before) == {"head", "scale", "shift", "mean", "var"}
    assert metadata_of(learner.params(CTX))["layout"] == "scale:5;shift:5;w:4x5;mean:5;var:5"


def test_the_list_and_the_command_name_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    assert main(["compile", str(path), "--trainable", "--train-last", "2", "--sent", "w1"]) == 0
    listed = capsys.readouterr().out
    model = trainable(NET, train_last=2, sent=["w1"])
    assert listed == model.table() + "\n"
    assert kinds(model)["w1"] == "sent" and kinds(model)["b1"] == "frozen"
    assert listed.endswith("57 parameters in 4 tensors are learned; 20 more in 1 are sent, and not learned\n")
    assert main(["compile", str(path), "--sent", "w1", "-o", str(tmp_path)]) != 0
    assert "trainable(file, sent=…)" in capsys.readouterr().err


def test_the_compiler_knows_what_travels() -> None:
    class Shares(Module):
        model = ModelSlot("model", GraphModel, trainable(NET, train_last=1, sent=["w1"]))

        def body(self, g: Graph) -> None:
            g.app_emit("params", self.model.params(g))

    main_, *_ = Compiler().run(Shares()).program.functions
    (op,) = (op for op in main_.ops if op.op_type == "Params")
    assert main_.types[op.outputs[0]].shape == (6 * 3 + 3 + 4 * 5,)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (NET, {"sent": ["*4"]}, ("no initializer '*4' to send",)),
        (NET, {"sent": ["*2"]}, ("'b2' is trained, and sent already", "frozen=['*2']")),
        (normalized(), {"batch_norm": "update", "sent": ["mean"]}, ("'mean'", "sends it already")),
        (
            NET,
            {"frozen": ["w1"], "sent": ["w1"], "personal": ["w1"]},
            ("'w1' cannot be personal, it is not learned",),
        ),
    ],
)
def test_what_cannot_be_sent(model: Any, settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(ModelImportError, *words):
        trainable(model, **settings)  # <-


def test_settings_and_integers_are_never_sent() -> None:
    model = mlp([4, 6])
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([-1, 6], np.int64), "shape"))
    graph.initializer.append(numpy_helper.from_array(np.float32(4), "most"))
    graph.node.append(helper.make_node("Reshape", ["logits", "shape"], ["flat"]))
    graph.node.append(helper.make_node("Clip", ["flat", "", "most"], ["y"]))
    graph.output[0].name = "y"
    for name, why in (("shape", "int64: only float32 is sent"), ("most", "a setting of Clip")):
        with refused(ModelImportError, f"'{name}' cannot be sent: {why}"):
            trainable(model, sent=[name])  # <-
    held = trainable(model, frozen=["w1"], sent=["*"])  # a pattern passes over them
    assert list(held.model.parameters) == ["b1", "w1"]


def test_a_device_cannot_have_more_of_them_than_there_are() -> None:
    with pytest.raises(ComponentError, match="personal_tensors is 5, it has 6 parameters, 4 of which"):
        built(trainable(NET), untrained_tensors=2, personal_tensors=5)
