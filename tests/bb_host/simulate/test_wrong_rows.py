"""Rows that a device refuses are refused when a simulated node has them."""

from __future__ import annotations

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
