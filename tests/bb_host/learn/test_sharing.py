"""The last layers alone, and layers that are trained and not sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.components import GraphModel
from bb_edge.ir.annotated import metadata_of
from bb_edge.roles import ComponentError
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.cli import main
from bb_host.errors import LearnError, ModelImportError
from bb_host.learn import TrainableModel, mlp, trainable
from tests.aids.graph_models import built
from tests.aids.refusals import refused

NET = mlp([4, 5, 6, 3], seed=1)
NAMES = ["w1", "b1", "w2", "b2", "w3", "b3"]


class Ctx:
    exec_id = 1


def learned(model: TrainableModel) -> list[str]:
    return list(model.model.parameters)


# --- the last layers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "names"), [(1, NAMES[4:]), (2, NAMES[2:]), (3, NAMES)])
def test_the_last_layers_are_trained_with_their_biases(last: int, names: list[str]) -> None:
    model = trainable(NET, train_last=last)
    assert learned(model) == names
    held = [i for i in model.initializers if i.frozen]
    assert [i.name for i in held] == [n for n in NAMES if n not in names]
    which = "the last layer" if last == 1 else f"the last {last} layers"
    assert all(i.why.startswith(f"before {which}, ") for i in held)


def test_the_gradient_stops_there() -> None:
    one, all_ = (trainable(NET, train_last=last).gradient for last in (1, 3))
    assert one is not None and all_ is not None
    assert len(one.backward.ops) < len(all_.backward.ops) and one.backward.outputs == ("d_w3", "d_b3")


def test_what_is_named_stays_trained() -> None:
    assert learned(trainable(NET, train_last=1, train=["b1"])) == ["b1", "w3", "b3"]


def test_frozen_layers_do_not_count() -> None:
    assert learned(trainable(NET, train_last=1, frozen=["*3"])) == ["w2", "b2"]


@pytest.mark.parametrize(
    ("last", "error"), [(4, ModelImportError), (0, LearnError), (True, LearnError), ("1", LearnError)]
)
def test_a_number_of_layers_that_cannot_be(last: Any, error: type[Exception]) -> None:
    with refused(error, "layers"):
        trainable(NET, train_last=last)  # <-


# --- personal ones --------------------------------------------------------------------------------


def test_personal_ones_come_first_and_are_said() -> None:
    model = trainable(NET, personal=["*3"])
    assert learned(model) == ["w3", "b3", "w1", "b1", "w2", "b2"]
    assert model.model.personal == ("w3", "b3")
    assert [i.name for i in model.initializers] == NAMES  # the list keeps the file's order
    table = model.table()
    assert "personal  w3" in table and "21 of them in 2 are personal, and not sent" in table


def test_they_are_learned_and_neither_given_nor_taken() -> None:
    ctx: Any = Ctx()
    model, plain = built(trainable(NET, personal=["*1"])), built(trainable(NET))
    x, dy = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    before = model.named_parameters()
    for one in (model, plain):
        one.forward(ctx, x)
        one.backward(ctx, dy)
        one.step(ctx)
    after, wanted = model.named_parameters(), plain.named_parameters()
    assert set(after) == set(NAMES)
    for name in NAMES:  # as it would be learned by a model that shares all
        np.testing.assert_array_equal(after[name], wanted[name])
        assert not np.array_equal(after[name], before[name]), name
    shared = np.concatenate([after[n].ravel() for n in ("w2", "b2", "w3", "b3")])
    np.testing.assert_array_equal(model.params(ctx), shared)
    model.load_parameters(ctx, np.zeros_like(shared))
    model.apply_delta(ctx, np.full_like(shared, 2))
    found = model.named_parameters()
    for name in NAMES:
        expected = after[name] if name in ("w1", "b1") else np.full_like(after[name], 2)
        np.testing.assert_array_equal(found[name], expected)


def test_gradient_and_step_are_about_all_that_is_trained() -> None:
    ctx: Any = Ctx()
    model = built(trainable(NET, personal=["*1"]), learning_rate=1.0)
    size = sum(a.size for a in model.named_parameters().values())
    before = model.named_parameters()["w1"]
    assert model.gradient(ctx).shape == (size,)
    model.step(ctx, np.ones(size, np.float32))
    np.testing.assert_allclose(model.named_parameters()["w1"], before - 1, rtol=1e-6)


def test_the_layout_is_that_of_what_is_sent() -> None:
    ctx: Any = Ctx()
    model, other, plain = (built(trainable(NET, personal=p)) for p in (["*1"], ["*1"], []))
    assert metadata_of(model.params(ctx))["layout"] == "w2:5x6;b2:6;w3:6x3;b3:3"
    other.load_parameters(ctx, model.params(ctx))
    with pytest.raises(ComponentError, match=r"has shape \[82\], the model takes \[57\]"):
        model.load_parameters(ctx, plain.params(ctx))
    another = built(trainable(mlp([4, 5, 6, 3]), personal=["w2", "b2", "w3", "b1"]))
    assert another.layout_hash != model.layout_hash


def test_a_snapshot_has_all_of_it() -> None:
    ctx: Any = Ctx()
    model, restarted = built(trainable(NET, personal=["*1"])), built(trainable(NET, personal=["*1"]))
    model.step(ctx, np.ones(sum(a.size for a in model.named_parameters().values()), np.float32))
    restarted.restore(model.serialize())
    for name, array in model.named_parameters().items():
        np.testing.assert_array_equal(restarted.named_parameters()[name], array)


class Shares(Module):
    model = ModelSlot("model")

    def body(self, g: Graph) -> None:
        y = self.model.forward(g, g.input("x", "F32", (2, 4)))
        grad = self.model.gradient(g, after=self.model.backward(g, y))
        g.app_emit("both", g.bundle([grad, self.model.params(g, after=self.model.step(g, grad))]))


def test_the_compiler_knows_both_lengths() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(NET, personal=["*1"]))
    main_, *_ = compiler.run(Shares()).program.functions
    lengths = {
        op.op_type: main_.types[op.outputs[0]].shape
        for op in main_.ops
        if op.op_type in ("Gradient", "Params")
    }
    assert lengths == {"Gradient": (82,), "Params": (57,)}


@pytest.mark.parametrize(
    ("personal", "words"),
    [
        (["*4"], ("no initializer '*4' to keep personal",)),
        (["*"], ("all that is learned is personal",)),
        (["b1"], ("'b1' cannot be personal, it is not learned: frozen by its author",)),
    ],
)
def test_what_cannot_be_personal(personal: list[str], words: tuple[str, ...]) -> None:
    with refused(ModelImportError, *words):
        trainable(NET, personal=personal, frozen=["b1"] if personal == ["b1"] else [])  # <-


def test_a_device_cannot_have_more_of_them_than_there_are() -> None:
    with pytest.raises(ComponentError, match="personal_tensors is 7, it has 6 parameters"):
        built(trainable(NET), personal_tensors=7)


def test_the_command_lists_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    assert main(["compile", str(path), "--trainable", "--train-last", "2", "--personal", "*3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = {line.split()[1]: line.split()[0] for line in lines[1:-1]}
    assert kinds == {
        "w1": "frozen",
        "b1": "frozen",
        "w2": "learned",
        "b2": "learned",
        "w3": "personal",
        "b3": "personal",
    }
    assert main(["compile", str(path), "--trainable", "--json", "--train-last", "1"]) == 0
    listed = json.loads(capsys.readouterr().out)["initializers"]
    assert [i["name"] for i in listed if i["learned"]] == ["w3", "b3"]


def test_the_command_uses_them_for_nothing_else(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    assert main(["compile", str(path), "--train-last", "1", "-o", str(tmp_path)]) != 0
    assert "--train-last" in capsys.readouterr().err
