"""Trainable models as TrainingInfoProto: what a trainer that knows nothing of ours makes of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_host.errors import LearnError
from bb_host.learn import export_training, mlp, trainable


def train(model: onnx.ModelProto, x: np.ndarray, target: np.ndarray, steps: int) -> list[float]:
    """What the format says: run the algorithm on the main graph's initializers, store what is bound."""
    info = model.training_info[0]
    step = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    step.graph.CopyFrom(info.algorithm)
    state = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    names = [o.name for o in info.algorithm.output]
    losses = []
    for _ in range(steps):
        del step.graph.initializer[:]
        step.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in state.items())
        onnx.checker.check_model(step)
        got = dict(zip(names, ReferenceEvaluator(step).run(None, {"x": x, "target": target}), strict=True))
        losses.append(float(got["loss"]))
        state.update({entry.key: got[entry.value] for entry in info.update_binding})
    train.state = state
    return losses


@pytest.fixture
def batch():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((16, 6)).astype(np.float32)
    return x, np.eye(3, dtype=np.float32)[rng.integers(0, 3, 16)]


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mse"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_trainer_that_follows_the_bindings_learns(loss, momentum, batch):
    x, target = batch
    model = trainable(mlp([6, 8, 3], seed=1), loss=loss, learning_rate=0.1, momentum=momentum)
    exported = export_training(model)
    onnx.checker.check_model(exported)
    losses = train(exported, x, target, 12)
    assert losses[-1] < 0.8 * losses[0]
    assert losses[1] < losses[0]


def test_what_is_sent_and_not_trained_is_no_part_of_a_step(batch):
    model = trainable(mlp([6, 8, 3], seed=1), frozen=["w1"], sent=["w1"])
    exported = export_training(model)
    assert {entry.key for entry in exported.training_info[0].update_binding} == {"b1", "w2", "b2"}
    losses = train(exported, *batch, 2)
    assert losses[1] < losses[0]
    np.testing.assert_array_equal(train.state["w1"], model.model.parameters["w1"])


def test_a_step_is_the_learning_rate_times_the_gradient(batch):
    x, target = batch
    model = trainable(mlp([6, 3], seed=2), learning_rate=0.25)
    exported = export_training(model)
    before = {t.name: numpy_helper.to_array(t) for t in exported.graph.initializer}
    train(exported, x, target, 1)
    w, b = list(before)
    logits = x @ before[w] + before[b]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d = (p - target) / len(x)
    np.testing.assert_allclose(train.state[w], before[w] - 0.25 * (x.T @ d), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(train.state[b], before[b] - 0.25 * d.sum(0), rtol=1e-4, atol=1e-6)


def test_the_main_graph_is_the_model(batch):
    x, _ = batch
    source = mlp([6, 8, 3], seed=1)
    exported = export_training(trainable(source))
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    (got,) = ReferenceEvaluator(exported).run(None, {"x": x})
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_same_model_gives_the_same_bytes():
    first, again = (export_training(trainable(mlp([6, 8, 3], seed=1))) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)


def test_a_model_that_only_runs_cannot_be_exported():
    with pytest.raises(LearnError, match="no gradient"):
        export_training(trainable(mlp([6, 3], seed=1), learning=False))


def test_a_value_of_the_models_that_the_export_needs_is_refused():
    model = trainable(mlp([6, 3], seed=1))
    function = model.model.function
    named = dataclasses.replace(function, inputs=("target", *function.inputs[1:]))
    imported = dataclasses.replace(model.model, function=named)
    with pytest.raises(LearnError, match="called 'target'"):
        export_training(dataclasses.replace(model, model=imported))


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"config": {"weight_decay": 0.1}}])
def test_steps_that_the_format_is_not_written_for_are_refused(settings):
    with pytest.raises(LearnError, match=r"adam|weight_decay"):
        export_training(trainable(mlp([6, 3], seed=1), **settings))
