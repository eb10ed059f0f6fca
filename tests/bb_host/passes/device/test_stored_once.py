"""What an artifact holds of components: each state once, and what a device has to know of its graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.components import GraphModel
from bb_edge.engine import steps
from bb_edge.roles import ComponentError
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable

HIDDEN = 4000
WEIGHTS = 4 * (2 * HIDDEN + HIDDEN + HIDDEN * 2 + 2)


class Learner(Module):
    """Trains for some steps of a loop, which is a function of its own, on numbers of classes."""

    name = "Learner"

    def body(self, g: Graph) -> None:
        x, y = g.input("x", "F32", (4, 2)), g.input("y", "I64", (4,))
        with g.loop(2, after=x) as step:
            loss = self.model.train(g, x, y)
            self.model.step(g, after=loss)
        g.output("params", self.model.params(g, after=step))


def compiled(concrete: bool) -> bytes:
    net = trainable(mlp([2, HIDDEN, 2]), loss="sparse_softmax_cross_entropy")

    class Mine(Learner):
        model = ModelSlot("model", GraphModel, net) if concrete else ModelSlot("model")

    compiler = Compiler() if concrete else Compiler().bind_model("model", GraphModel, net)
    (artifact,) = build_edge(Mine(), compiler).artifacts
    data: bytes = artifact.data
    return data


@pytest.mark.parametrize("concrete", [True, False])
def test_parameters_are_in_the_artifact_once_also_where_a_loop_uses_the_slot(concrete: bool) -> None:
    assert WEIGHTS < len(compiled(concrete)) < 1.15 * WEIGHTS


@pytest.mark.parametrize("concrete", [True, False])
def test_a_device_refuses_classes_that_the_model_does_not_have(concrete: bool) -> None:
    node = install(PeerId.from_name("n"), (), compiled(concrete), ["Learner"], seed=1)

    def seen(*classes: int) -> list[Any]:
        x = np.ones((4, 2), np.float32)
        node.invoke("Learner", {"x": x, "y": np.array(classes, np.int64)})
        return [step for _ in range(4) for step in node.poll(0)]

    assert not [step for step in seen(0, 1, 1, -1) if isinstance(step, steps.OpFailed)]
    failed = next(step for step in seen(0, 1, 2, 1) if isinstance(step, steps.OpFailed))
    assert isinstance(failed.error, ComponentError)
    assert failed.error.what == "a target is class 2, the model has 2 classes, 0 to 1"
