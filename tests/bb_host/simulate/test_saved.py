"""`bb-host simulate --save-model`: the model that a run ends with, and what is refused before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bb_host.cli import main
from bb_host.errors import ScenarioError
from bb_host.simulate.saved import SavedModel

PROGRAM = """
from bb_edge.components import FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.learn import mlp, trainable


class Adds(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 3, 2])))
    average = AggregatorSlot("average", FedAvg, at="Server")

    def body(self, g):
        with g.rounds(3) as start:
            params = self.model.params(g, after=start)
            peers = self.clients.sample(g, n=2, min=1, after=start)
            r = g.request("add", peers, params, deadline_ns=S)
            r.reply(self.model.params(g, after=self.model.load_parameters(g, r.value)) + STEP)
            self.average.contribute(g, r.answer, peer=r.answer.sender, sent=params)
            mean, _ = self.average.aggregate(g, after=r.closed)
            g.app_emit("sum", g.onnx.reduce_sum(mean, keepdims=0))
            self.model.load_parameters(g, mean)


class Sums(Adds):
    other = ModelSlot("other", GraphModel, trainable(mlp([2, 2])))

    def body(self, g):
        super().body(g)
        g.app_emit("other", self.other.params(g, after=g.pulse()))


def program():
    return MODULE(), Compiler()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Any) -> Any:
    """Simulates the program in a folder of its own: the exit code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()

    def simulate(*more: str, module: str = "Adds", step: str = "0.5") -> int:
        Path("adds.py").write_text(PROGRAM.replace("MODULE", module).replace("STEP", step))
        return main(["simulate", "adds.py", "--quiet", "--json", *more])

    return simulate


def parameters(path: str) -> dict[str, Any]:
    model = onnx.load(path)
    onnx.checker.check_model(model)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("named", ["", "model=", "Server.model="])
def test_the_model_of_the_server_after_the_last_round_is_an_onnx_file(
    run: Any, capsys: Any, named: str
) -> None:
    assert run("--clients", "4", "--save-model", f"{named}last.onnx") == 0
    said = capsys.readouterr()
    sums = [record["value"] for record in map(json.loads, said.out.splitlines()) if "value" in record]
    found = parameters("last.onnx")
    assert {name: array.shape for name, array in found.items()} == {
        "w1": (2, 3),
        "b1": (3,),
        "w2": (3, 2),
        "b2": (2,),
    }
    assert sum(array.sum() for array in found.values()) == pytest.approx(sums[-1], rel=1e-5)
    assert "the model of slot 'model' is in last.onnx" in said.err


def test_with_one_client_it_is_that_of_the_class_that_has_the_rounds(run: Any) -> None:
    assert run("--clients", "1", "--save-model", "server.onnx") == 0
    assert run("--clients", "1", "--save-model", "Client.model=client.onnx") == 0
    server, client = parameters("server.onnx"), parameters("client.onnx")
    for name, array in client.items():  # which has what the last round began with
        np.testing.assert_allclose(server[name], array + 0.5, rtol=1e-6)


def test_of_several_models_the_slot_is_named(run: Any, capsys: Any) -> None:
    assert run("--clients", "2", "--save-model", "x.onnx", module="Sums") == 1
    assert (
        "--save-model Server.model=FILE.onnx or --save-model Server.other=FILE.onnx"
        in capsys.readouterr().err
    )
    assert run("--clients", "2", "--save-model", "other=other.onnx", module="Sums") == 0
    assert set(parameters("other.onnx")) == {"w1", "b1"}


@pytest.mark.parametrize("place", [".model", "Client.", "a.b.c", ""])
def test_what_is_no_class_and_slot_is_refused_and_no_hidden_file_is_written(
    run: Any, capsys: Any, place: str
) -> None:
    assert run("--save-model", f"{place}=x.onnx") == 1
    assert (
        f"{place!r} is not a class and a slot (write --save-model CLASS.SLOT=FILE.onnx"
        in capsys.readouterr().err
    )
    assert not list(Path().glob("*x.onnx")) + list(Path().glob(".*x.onnx"))


def test_without_a_file_the_place_is_looked_at_first(run: Any, capsys: Any) -> None:
    assert run("--clients", "3", "--save-model", "Client.model=") == 1
    assert "no class of one node has the model 'model' (Server 1, Client 3)" in capsys.readouterr().err
    assert run("--clients", "3", "--save-model", "model=") == 1
    said = "'model=' names no file (write --save-model Server.model=FILE.onnx)"
    assert said in capsys.readouterr().err


def test_a_model_that_has_diverged_is_not_saved(tmp_path: Path) -> None:
    saved = SavedModel("Server", "model", tmp_path / "x.onnx", b"")
    with pytest.raises(ScenarioError, match="was not saved: it holds inf or nan in 'b1'"):
        saved.write({"w1": np.ones(2, np.float32), "b1": np.array([1, np.inf], np.float32)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--save-model", "net.npz"], "'net.npz' is not the name of a model (write net.onnx)"),
        (["--save-model", "folder/none/x.onnx"], "there is no folder 'folder/none'"),
        (["--save-model", "folder.onnx"], "it is a folder"),
        (["--save-model", "modell=x.onnx"], "no slot 'modell' holds a model (did you mean 'model'?"),
        (["--save-model", "average=x.onnx"], "no slot 'average' holds a model (models: model"),
        (
            ["--save-model", "Client.model=x.onnx"],
            "no class of one node has the model 'model' (Server 1, Client 4)",
        ),
        (["--save-model", "server.model=x.onnx"], "no class 'server' (did you mean 'Server'?"),
        (["--save-model", "x.onnx", "--sweep", "seed=1,2"], "each run would write the file anew"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_runs(
    run: Any, capsys: Any, more: list[str], words: str
) -> None:
    Path("folder.onnx").mkdir()
    assert run("--clients", "4", *more) == 1
    said = capsys.readouterr()
    assert words in said.err and not said.out
