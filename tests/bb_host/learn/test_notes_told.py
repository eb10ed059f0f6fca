"""What a model and its data have to say of a training step is told behind that step, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.backends import NumPyBackend
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.steps import DataNoted, ModelNoted
from bb_edge.registry import Registry
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.ir.proto import to_proto
from bb_host.learn import mlp, trainable


class Learner(Module):
    name = "Learner"
    model, data = ModelSlot("model"), DataSourceSlot("data")

    def body(self, g: Graph) -> None:
        loss = self.model.train(g, *self.data.next_batch(g, after=g.input("go", np.int64, [])))
        self.model.step(g, after=loss)
        g.output("loss", loss)


class Telling(GraphModel):
    """Has something to say of its own, which is nowhere that its base looks."""

    TYPE_NAME = "test.Telling"

    def take_notes(self) -> Sequence[str]:
        return ("once more", *super().take_notes())


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Gives a function that makes a node of a model whose rate is 0 from step 3 on."""
    path = tmp_path / "shard.npz"

    def node(rows: int, model: type[GraphModel] = GraphModel, snapshot: bytes = b"") -> Any:
        np.savez(path, x=np.ones((rows, 4), np.float32), y=np.arange(rows) % 3)
        net = trainable(mlp([4, 3], seed=1), config={"schedule": "cosine", "schedule_length": 2})
        registry = Registry()
        for each in (GraphModel, Telling, ArrayDataSource, NumPyBackend):
            registry.register(each)
        compiler = Compiler().bind_model("model", model, net)
        compiler = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 2, "one_hot": 3})
        artifact = to_proto(compiler.run(Learner()).program).SerializeToString()
        data = {"data": {"path": str(path)}}
        more: dict[str, Any] = {"snapshot": snapshot} if snapshot else {}
        return install(
            PeerId.from_name("n"),
            (),
            artifact,
            ["Learner"],
            components=data,
            seed=1,
            registry=registry,
            **more,
        )

    return node


def said(node: Any, kind: type, invokes: int) -> list[list[str]]:
    """The notes of that kind that each of so many invokes makes."""
    notes = []
    for now in range(1, invokes + 1):
        node.invoke("Learner", {"go": np.zeros((), np.int64)})
        found = node.poll(now)
        assert any(getattr(step, "topic", "") == "loss" for step in found), found
        notes.append([step.note for step in found if isinstance(step, kind)])
    return notes


def test_that_the_rate_has_fallen_to_0_is_told_behind_the_step_with_that_rate(made: Any) -> None:
    first, second, third, fourth = said(made(6), ModelNoted, 4)
    assert (first, second, fourth) == ([], [], [])
    assert len(third) == 1 and "has fallen to 0 at step 3" in third[0]


def test_a_model_of_ones_own_is_asked_behind_each_step(made: Any) -> None:
    assert [len(notes) for notes in said(made(6, Telling), ModelNoted, 4)] == [1, 1, 2, 1]


def test_that_the_data_are_others_than_before_is_told_with_the_first_batch(made: Any) -> None:
    before = made(6)
    assert said(before, DataNoted, 1) == [[]]
    (first, second) = said(made(8, snapshot=before.snapshot(1)), DataNoted, 2)
    assert second == []
    assert len(first) == 1 and "has 8 samples, and had 6" in first[0]
