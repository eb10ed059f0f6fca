"""Rows that a device refuses are refused when a simulated node has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_host.cli import main

PROGRAM = """
from bb_edge.components import ArrayDataSource, GraphModel
from bb_host import Compiler, DataSourceSlot, ModelSlot, Module
from bb_host.learn import mlp, trainable


class Learns(Module):
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 3]), "sparse_softmax_cross_entropy"))
    data = DataSourceSlot("data", ArrayDataSource, {"batch_size": 4})

    def body(self, g):
        with g.rounds(2) as start:
            x, y = self.data.next_batch(g, after=start)
            g.app_emit("loss", self.model.train(g, x, y))


def program():
    return Learns(), Compiler()
"""


@pytest.mark.parametrize(("label", "refused"), [(2, False), (3, True)])
def test_a_label_that_is_no_class_of_the_model_is_refused_with_its_row(
    tmp_path, capsys, label: int, refused: bool
) -> None:
    program, rows = tmp_path / "learns.py", tmp_path / "rows.npz"
    program.write_text(PROGRAM)
    labels = np.arange(40) % 3
    labels[17] = label
    np.savez(rows, x=np.ones((40, 2), np.float32), y=labels)
    arguments = ["simulate", str(program), "--nodes", "Learns=4", "--data", f"data={rows}", "--quiet"]
    ended = main(arguments)
    said = capsys.readouterr().err
    assert (ended == 1) == refused, said
    assert (f"row 17 of {rows} has label 3, the model has 3 classes, 0 to 2" in said) == refused, said


ASKED = """
from bb_edge.components import ArrayDataSource, GraphModel, PresenceSelector
from bb_host import Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.learn import mlp, trainable


class Asks(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 3]), LOSS), at="Client")
    data = DataSourceSlot("data", ArrayDataSource, {"batch_size": 4, "one_hot": HOT}, at="Client")

    def body(self, g):
        with g.rounds(2) as start:
            r = g.request("ask", self.clients.sample(g, n=1, min=1, after=start), start.round, deadline_ns=S)
            x, y = self.data.next_batch(g, after=r.value)
            loss = self.model.train(g, x, y)
            r.reply(g.pass_through(loss, after=self.model.step(g, after=loss)))
            g.app_emit("loss", r.answer)


def program():
    return Asks(), Compiler()
"""


@pytest.mark.parametrize(
    ("loss", "one_hot", "said"),
    [
        ("sparse_softmax_cross_entropy", 0, "the model has 3 classes, 0 to 2 (number the labels from 0"),
        ("softmax_cross_entropy", 3, "one_hot is 3 classes, 0 to 2 (number the labels from 0"),
    ],
)
def test_a_wrong_label_of_a_client_that_sleeps_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str, one_hot: int, said: str
) -> None:
    program, rows = tmp_path / "asks.py", tmp_path / "rows.npz"
    program.write_text(ASKED.replace("LOSS", repr(loss)).replace("HOT", str(one_hot)))
    labels, whose = np.arange(40) % 3, np.arange(40) // 10
    labels[37] = 3  # a row of the last client
    np.savez(rows, x=np.ones((40, 2), np.float32), y=labels, whose=whose)
    arguments = ["simulate", str(program), "--data", f"data={rows}", "--deal", "column:whose"]
    assert main([*arguments, "--clients", "4"]) == 1
    told = capsys.readouterr()
    assert f"slot 'data': row 37 of {rows} has label 3, {said}" in told.err and not told.out
    # Without the last client its rows are nobody's.
    assert main([*arguments, "--clients", "3", "--quiet"]) == 0


def test_numbers_of_classes_for_a_loss_that_takes_none_are_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, rows = tmp_path / "asks.py", tmp_path / "rows.npz"
    program.write_text(ASKED.replace("LOSS", "'mse'").replace("HOT", "0"))
    np.savez(rows, x=np.ones((40, 2), np.float32), y=np.arange(40) % 3)
    assert main(["simulate", str(program), "--data", f"data={rows}", "--clients", "4"]) == 1
    told = capsys.readouterr()
    assert "labels of Tensor<I64>[4], the program takes Tensor<F32>[?,3]" in told.err and not told.out
    assert "one_hot: 3, or loss='sparse_softmax_cross_entropy'; its rows are dealt: see --deal" in told.err
