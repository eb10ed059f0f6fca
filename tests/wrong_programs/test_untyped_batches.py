"""Batches whose types no binding says: data that the program does not take are refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, CsvDataSource
from bb_edge.engine.errors import OpError
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.errors import TypeConstraintFailed
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused


class Reads(Module):
    home = "Device"
    data = DataSourceSlot("data")

    def __init__(self, act: Callable[[Graph, Any], Any]) -> None:
        self._act = act
        super().__init__()

    def body(self, g: Graph) -> None:
        x, _ = self.data.next_batch(g)
        g.app_emit("y", self._act(g, x))


def carried(g: Graph, x: Any) -> Any:
    with g.loop(3, carry=x) as step:
        step.next(g.onnx.cast(step.carried, to="I64"))
    return step.result


def onnx_loop(g: Graph, x: Any) -> Any:
    return g.onnx.loop(3, None, x, body=lambda g, i, c, v: [c, g.onnx.cast(v, to="I64")])  # <-


def scaled(g: Graph, x: Any) -> Any:
    return x * np.ones(2)


@pytest.mark.parametrize(("act", "wanted"), [(carried, "I64"), (onnx_loop, "I64"), (scaled, "F64")])
def test_data_that_do_not_fit_are_refused_with_a_remedy(
    tmp_path: Path, act: Callable[[Graph, Any], Any], wanted: str
) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((4, 2), np.float32), y=np.zeros(4, np.int64))
    compiler = Compiler().bind_data_source("data", ArrayDataSource)
    (tmp_path / "p.onnx").write_bytes(compile_edge(Reads(act), compiler).artifacts[0].data)
    at = rf"takes Tensor<{wanted}>.*save the data as .*or in the program cast it"
    with pytest.raises(OpError, match=at):
        install(
            PeerId.from_name("d"),
            (),
            load(tmp_path / "p.onnx"),
            ["Device"],
            components={"data": {"path": str(tmp_path / "d.npz")}},
            seed=0,
        )


class Learns(Module):
    model = ModelSlot("model")
    data = DataSourceSlot("data")

    def body(self, g: Graph) -> None:
        with g.rounds(1) as start:
            x, y = self.data.next_batch(g, after=start)
            loss = self.model.train(g, x, y)
            self.model.step(g, after=loss)
            g.app_emit("loss", loss)


@pytest.mark.parametrize(
    ("classes", "labels", "remedy"),
    [
        (3, np.zeros(4, np.int64), "one_hot: 3, or loss='sparse_softmax_cross_entropy'"),
        (1, np.zeros(4, np.float32), r"give them a column: y.reshape\(-1, 1\)"),
    ],
)
def test_labels_of_another_form_are_refused_with_a_remedy(
    tmp_path: Path, classes: int, labels: Any, remedy: str
) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((4, 2), np.float32), y=labels)
    loss = "mse" if classes == 1 else "softmax_cross_entropy"
    compiler = Compiler().bind_model("model", "bb.GraphModel", trainable(mlp([2, classes]), loss=loss))
    compiler = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 2})
    (tmp_path / "p.onnx").write_bytes(compile_edge(Learns(), compiler).artifacts[0].data)
    program, sources = load(tmp_path / "p.onnx"), {"data": {"path": str(tmp_path / "d.npz")}}
    with pytest.raises(OpError, match=remedy):
        install(PeerId.from_name("d"), (), program, [*program.targets], components=sources, seed=0)


def test_a_carried_value_of_a_known_type_is_refused_when_it_is_compiled() -> None:
    compiler = Compiler().bind_data_source("data", CsvDataSource, {"columns": ["a", "b"]})
    with refused(TypeConstraintFailed, "carried value 0 begins as Tensor<F32>", "is Tensor<I64>"):
        compiler.compile_program(Reads(onnx_loop))
