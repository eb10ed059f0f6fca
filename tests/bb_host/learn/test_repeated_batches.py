"""Batches as large as the one before take a short way: it comes to the same, and what differs leaves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learners import chunked, component

from bb_edge.components.batch_fit import BatchFit
from bb_edge.roles.errors import ComponentError
from bb_host.learn import mlp, trainable
from benchmarks.training_nets import digits_cnn_bn

CTX: Any = SimpleNamespace(exec_id=1)
SIZES = (7, 7, 7, 5, 5, 7, 7, 1, 1, 9, 9, 7, 7)


def learned(model: Any, batches: list[tuple[Any, Any]]) -> list[Any]:
    """Losses, gradients and parameters, with a step behind every other batch."""
    learner = component(model)
    found: list[Any] = []
    for number, (x, y) in enumerate(batches):
        found.append(learner.train(CTX, x, y))
        if number % 2:
            found.append(learner.gradient(CTX) if number % 3 else learner.step(CTX))
            found.append(learner.params(CTX))
    return [each for each in found if each is not None]


@pytest.mark.parametrize("chunk", [0, 5, 7])
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "sparse_softmax_cross_entropy", "mse"])
def test_all_batches_are_trained_on_alike(loss: str, chunk: int, monkeypatch: Any) -> None:
    model = trainable(mlp([6, 5, 3], seed=4), loss, learning_rate=0.5)
    model = chunked(model, chunk) if chunk else model
    rng = np.random.default_rng(8)
    batches = []
    for size in SIZES:
        labels = rng.integers(0, 3, size)
        x = rng.standard_normal((size, 6)).astype(np.float32)
        batches.append((x, labels if loss.startswith("sparse") else np.eye(3, dtype=np.float32)[labels]))
    taken = []
    short = BatchFit.again
    monkeypatch.setattr(BatchFit, "again", lambda *given: taken.append(short(*given)) or taken[-1])
    got = learned(model, batches)
    assert any(loss is not None for loss in taken) == (not loss.startswith("sparse") and chunk in (0, 5, 7))
    monkeypatch.setattr(BatchFit, "again", lambda *given: None)
    for one, other in zip(got, learned(model, batches), strict=True):
        np.testing.assert_array_equal(one, other)


def test_statistics_are_learned_from_every_batch(monkeypatch: Any) -> None:
    model = trainable(digits_cnn_bn(), batch_norm="update", learning_rate=0.1)
    rng = np.random.default_rng(8)
    y = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 4)]
    batches = [(rng.standard_normal((4, 1, 8, 8)).astype(np.float32), y) for _ in range(4)]
    got = learned(model, batches)
    monkeypatch.setattr(BatchFit, "again", lambda *given: None)
    for one, other in zip(got, learned(model, batches), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_class_that_is_none_is_refused_after_batches_of_the_same_size() -> None:
    learner = component(trainable(mlp([6, 3], seed=4), "sparse_softmax_cross_entropy"))
    x = np.ones((4, 6), np.float32)
    for _ in range(2):
        learner.train(CTX, x, np.array([0, 1, 2, 1]))
    with pytest.raises(ComponentError, match="class 3"):
        learner.train(CTX, x, np.array([0, 1, 3, 1]))
