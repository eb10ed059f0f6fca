"""Gradients that are times the learning rate from the start: a step only adds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest
from learners import chunked, component

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components.graph_model import GraphModel
from bb_edge.components.optimizers import OPTIMIZER_CONFIG, RATES, Optimizer
from bb_edge.components.state import StateReader
from bb_edge.roles.errors import ComponentStateError
from bb_host.learn import mlp, trainable

CTX: Any = SimpleNamespace(exec_id=1)
RATE = 0.3
"""No power of two: times it and by it again is another number."""
BATCH = (
    np.random.default_rng(9).standard_normal((7, 6)).astype(np.float32),
    np.eye(3, dtype=np.float32)[[0, 2, 1, 1, 2, 0, 2]],
)


def learner(chunk: int = 0, **config: Any) -> GraphModel:
    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=RATE)
    return component(chunked(net, chunk) if chunk else net, config=config, ops=("Train", "Backward"))


class Scaling(GraphModel):
    """Changes nothing in a gradient, but might: its rows weigh no rate."""

    def adjust_gradient(self, gradient: Any) -> None:
        pass


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(chunk: int = 0) -> GraphModel:
        with monkeypatch.context() as patch:
            patch.setattr("learners.GraphModel", Scaling)
            return learner(chunk)

    return made


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({}, -RATE),
        ({"learning_rate": RATES[0]}, -RATES[0]),
        ({"learning_rate": RATES[0] / 2}, 1.0),
        ({"learning_rate": RATES[1] * 2}, 1.0),
        ({"learning_rate": 0.0}, 1.0),
        ({"momentum": 0.9}, 1.0),
        ({"weight_decay": 0.1}, 1.0),
        ({"clip_norm": 1.0}, 1.0),
        ({"optimizer": "adam"}, 1.0),
        ({"schedule": "cosine"}, 1.0),
        ({"warm_up": 3}, 1.0),
    ],
)
def test_who_only_adds(config: dict[str, Any], factor: float) -> None:
    defaults = {key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}
    assert Optimizer({**defaults, "learning_rate": RATE, **config}, 5).factor == factor


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("passes", [1, 2])
def test_steps_and_losses_are_those_of_a_gradient_that_is_scaled_later(
    scaling: Any, chunk: int, passes: int
) -> None:
    adding, other = learner(chunk), scaling(chunk)
    for _ in range(5):
        for _ in range(passes):
            losses = [each.train(CTX, *BATCH) for each in (adding, other)]
            assert all(loss.shape == () and loss.dtype == np.float32 for loss in losses)
            np.testing.assert_allclose(*losses, rtol=1e-6)
        for each in (adding, other):
            each.step(CTX)
    np.testing.assert_allclose(adding.params(CTX), other.params(CTX), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [0, 3])
def test_the_gradient_is_that_of_the_loss(scaling: Any, chunk: int) -> None:
    adding, other = learner(chunk), scaling(chunk)
    for each in (adding, other):
        each.train(CTX, *BATCH)
    gradient = adding.gradient(CTX)
    np.testing.assert_allclose(gradient, other.gradient(CTX), rtol=1e-5, atol=1e-7)
    assert not adding.gradient(CTX).any(), "the next sum begins anew"


@pytest.mark.parametrize("first", ["train", "backward"])
def test_passes_with_a_rate_and_without_one_are_one_sum(scaling: Any, first: str) -> None:
    adding, other = learner(), scaling()
    for each in (adding, other):
        for kind in sorted(["train", "backward"], reverse=first == "train"):
            if kind == "train":
                each.train(CTX, *BATCH)
            else:
                each.forward(CTX, BATCH[0])
                each.backward(CTX, BATCH[1])
    state = adding.serialize()
    for each in (adding, other):
        each.step(CTX)
    np.testing.assert_allclose(adding.params(CTX), other.params(CTX), rtol=1e-5, atol=1e-6)
    restored = learner()
    restored.restore(state)
    restored.step(CTX)
    np.testing.assert_array_equal(restored.params(CTX), adding.params(CTX))


def test_a_gradient_of_a_backward_pass_is_exact() -> None:
    adding, other = learner(), learner(momentum=0.9)
    for each in (adding, other):
        each.forward(CTX, BATCH[0])
        each.backward(CTX, BATCH[1])
    np.testing.assert_array_equal(adding.gradient(CTX), other.gradient(CTX))


@pytest.mark.parametrize("config", [{"learning_rate": 0.7}, {"momentum": 0.9}, {"learning_rate": 0.0}])
def test_a_snapshots_gradient_is_applied_by_whoever_restores_it(config: dict[str, Any]) -> None:
    adding, other, restored = learner(), learner(**config), learner(**config)
    adding.train(CTX, *BATCH)
    other.train(CTX, *BATCH)
    restored.restore(adding.serialize())
    for each in (other, restored):
        each.step(CTX)
    np.testing.assert_allclose(restored.params(CTX), other.params(CTX), rtol=1e-5, atol=1e-6)


def test_a_snapshot_of_a_gradient_that_was_not_times_anything() -> None:
    """As older ones are."""
    adding, other = learner(), learner(momentum=0.0, clip_norm=1e9)
    other.train(CTX, *BATCH)
    state = other.serialize()
    assert not StateReader(other, 1, state).has("change")
    adding.restore(state)
    for each in (adding, other):
        each.step(CTX)
    np.testing.assert_array_equal(adding.params(CTX), other.params(CTX))


@pytest.mark.parametrize("factor", [0.0, float("nan"), float("inf")])
def test_a_snapshot_that_is_damaged(factor: float) -> None:
    adding = learner()
    adding.train(CTX, *BATCH)
    fields = cbor2.loads(adding.serialize())
    assert fields["change_factor"] == -RATE
    with pytest.raises(ComponentStateError, match="its gradient is times"):
        learner().restore(cbor2.dumps({**fields, "change_factor": factor}))


def test_a_loss_that_f32_cannot_hold_is_infinite() -> None:
    class Large(NumPyBackend):
        def prepare(self, function: Any, *given: Any) -> Any:
            program = super().prepare(function, *given)
            if function.name.endswith(".fit"):
                made = program.runner

                def large(outputs: Any, *given: Any) -> Any:
                    run = made(outputs, *given)
                    return lambda inputs: (run(inputs), outputs[0].fill(-3e38))[0]

                program.runner = large
            return program

    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=RATE)
    for _ in range(2):
        assert component(net, backend=Large()).train(CTX, *BATCH) == np.inf
