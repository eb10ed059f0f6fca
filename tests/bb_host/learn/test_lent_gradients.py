"""Gradients that stay in the memory of the program which made them, until a step reads them there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import learners
import numpy as np
import pytest
from learners import chunked, component

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components import gradient_sum
from bb_edge.components.graph_model import GraphModel
from bb_edge.components.optimizers import CHUNK, OPTIMIZER_CONFIG, Optimizer
from bb_edge.roles import BackendRunError
from bb_edge.roles.programs import BackendProgram
from bb_host.learn import mlp, trainable

CTX: Any = SimpleNamespace(exec_id=1)
BATCH = (
    np.random.default_rng(9).standard_normal((7, 6)).astype(np.float32),
    np.eye(3, dtype=np.float32)[[0, 2, 1, 1, 2, 0, 2]],
)
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "clipped": {"clip_norm": 0.01},
    "adam": {"optimizer": "adam"},
    "adam, decay": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: Any) -> None:
    """These gradients count as large."""
    monkeypatch.setattr(gradient_sum, "COPIED_BYTES", 20)


class Lending(BackendProgram):
    """A program that lends what has more than five numbers.

    What it has lent is nan once it runs again. `lent` counts.
    """

    def __init__(self, program: BackendProgram) -> None:
        self.program = program
        self.input_names, self.output_names = program.input_names, program.output_names
        self.memory: dict[int, Any] = {}
        self.lent = 0
        self.failing = False

    def free(self) -> None:
        for memory in self.memory.values():
            memory.fill(np.nan)
        if self.failing:
            raise BackendRunError("it fails")

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        self.free()
        return self.program.run(inputs)

    def run_lending(
        self, inputs: Sequence[Any], outputs: Sequence[Any], lendable: Collection[int]
    ) -> Mapping[int, Any]:
        results = self.run(inputs)
        self.memory = {n: results[n].copy() for n in lendable if results[n].size > 5}
        lent = {}
        for number, (result, output) in enumerate(zip(results, outputs, strict=True)):
            if number in self.memory:
                lent[number] = self.memory[number].view()
                lent[number].setflags(write=False)
            else:
                np.copyto(output, result)
        self.lent += len(lent)
        return lent


class LendingBackend(NumPyBackend):
    """Its programs lend; the last one is `program`."""

    def prepare(self, function: Any, *given: Any) -> Any:
        prepared = super().prepare(function, *given)
        if not function.name.endswith(".fit"):
            return prepared
        self.program = Lending(prepared)
        return self.program


def pair(chunk: int = 0, **config: Any) -> tuple[GraphModel, GraphModel, Lending]:
    """The same model twice, on programs that lend and on those that do not."""
    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5)
    net = chunked(net, chunk) if chunk else net
    backend = LendingBackend()
    lending = component(net, config=config, backend=backend)
    return lending, component(net, config=config), backend.program


@pytest.mark.parametrize("chunk", [0, 3, 7])
@pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS)
def test_steps_come_to_the_same_bits(config: dict[str, Any], chunk: int) -> None:
    lending, other, program = pair(chunk, **config)
    for number in range(4):
        losses = [learner.train(CTX, *BATCH) for learner in (lending, other)]
        assert losses[0] == losses[1]
        if number == 2:  # two passes before a step
            for learner in (lending, other):
                learner.train(CTX, *BATCH)
        for learner in (lending, other):
            learner.step(CTX)
        np.testing.assert_array_equal(lending.params(CTX), other.params(CTX))
        assert np.isfinite(lending.params(CTX)).all()
    assert program.lent


BETWEEN: dict[str, Callable[[GraphModel], object]] = {
    "a snapshot": lambda learner: learner.restore(learner.serialize()),
    "memory is given back": GraphModel.release,
    "parameters come": lambda learner: learner.load_parameters(CTX, learner.params(CTX) * 2),
    "the gradient is dropped": GraphModel.drop_executions,
    "the gradient is asked for": lambda learner: learner.gradient(CTX),
    "a gradient is given": lambda learner: learner.step(CTX, np.ones(53, np.float32)),
    "another step": lambda learner: learner.step(CTX),
}


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9}])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_whatever_happens_before_the_step(
    between: Callable[[GraphModel], object], config: dict[str, Any]
) -> None:
    lending, other, _ = pair(**config)
    for learner in (lending, other):
        for _ in range(2):
            learner.train(CTX, *BATCH)
            between(learner)
            learner.step(CTX)
        learner.train(CTX, *BATCH)
    np.testing.assert_array_equal(lending.gradient(CTX), other.gradient(CTX))
    np.testing.assert_array_equal(lending.params(CTX), other.params(CTX))


def test_a_snapshot_holds_the_gradient_that_is_lent() -> None:
    lending, other, _ = pair()
    lending.train(CTX, *BATCH)
    state = lending.serialize()
    lending.step(CTX)
    other.restore(state)
    other.step(CTX)
    np.testing.assert_array_equal(lending.params(CTX), other.params(CTX))


def test_a_pass_that_fails_leaves_the_gradient_of_those_before_it() -> None:
    lending, other, program = pair()
    for learner in (lending, other):
        learner.train(CTX, *BATCH)
    program.failing = True
    with pytest.raises(BackendRunError, match="it fails"):
        lending.train(CTX, *BATCH)
    for learner in (lending, other):
        learner.step(CTX)
    np.testing.assert_array_equal(lending.params(CTX), other.params(CTX))


def test_a_gradient_that_a_subclass_changes_is_its_own(monkeypatch: Any) -> None:
    class Doubling(GraphModel):
        TYPE_NAME = "test.Doubling"

        def adjust_gradient(self, gradient: Any) -> None:
            gradient *= 2

    with monkeypatch.context() as patch:
        patch.setattr(learners, "GraphModel", Doubling)
        lending, other, program = pair()
    for learner in (lending, other):
        assert type(learner) is Doubling
        learner.train(CTX, *BATCH)
        learner.step(CTX)
    assert program.lent
    np.testing.assert_array_equal(lending.params(CTX), other.params(CTX))
    plain = component(trainable(mlp([6, 5, 3], seed=4), learning_rate=1.0))
    plain.train(CTX, *BATCH)
    plain.step(CTX)
    np.testing.assert_allclose(lending.params(CTX), plain.params(CTX), rtol=1e-5, atol=1e-6)


def test_a_sum_of_passes_leaves_what_is_not_trained_at_zero(monkeypatch: Any) -> None:
    """Whatever is in the memory that further passes are written to."""
    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5, frozen=("b2",), sent=("b2",))
    learner = component(net)
    monkeypatch.setattr(np, "empty_like", lambda array: np.full(array.shape, np.nan, array.dtype))
    for _ in range(2):
        learner.train(CTX, *BATCH)
    gradient = learner.gradient(CTX)
    assert gradient.size == learner.params(CTX).size
    assert not gradient[-3:].any()
    assert np.isfinite(gradient).all()


def test_an_optimizer_that_fails_holds_nothing_back(monkeypatch: Any) -> None:
    lending, _, _ = pair()
    before = lending.params(CTX)
    lending.train(CTX, *BATCH)

    def fails(*_given: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step_by_parts", fails)
        with pytest.raises(MemoryError):
            lending.step(CTX)
    np.testing.assert_array_equal(lending.params(CTX), before)
    lending.train(CTX, *BATCH)  # the program runs again
    lending.step(CTX)
    assert (lending.params(CTX) != before).any()


@pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS)
def test_parts_of_a_long_gradient_are_applied_as_the_whole(config: dict[str, Any]) -> None:
    """And are not changed."""
    settings = {**{key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}, **config}
    size = 9 * CHUNK + 7
    whole, by_parts = Optimizer(settings, size), Optimizer(settings, size)
    if not whole.reads_only:
        assert {"nesterov", "weight_decay", "clip_norm"} & config.keys()
        return
    rng = np.random.default_rng(1)
    parameters = [rng.standard_normal(size).astype(np.float32)] * 2
    parameters = [array.copy() for array in parameters]
    for _ in range(2):
        gradient = rng.standard_normal(size).astype(np.float32)
        gradient.setflags(write=False)
        cuts = (0, 3, 3 + 5 * CHUNK, size)
        parts = [(a, gradient[a:b], parameters[1][a:b]) for a, b in pairwise(cuts)]
        by_parts.step_by_parts(parts)
        whole.step(parameters[0], gradient.copy())
    np.testing.assert_array_equal(*parameters)
    for name, vector in whole.vectors.items():
        np.testing.assert_array_equal(vector, by_parts.vectors[name])
    assert whole.counts() == by_parts.counts()


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9}])
def test_no_step_is_left_half_done_by_a_warning(config: dict[str, Any]) -> None:
    """An overflow in one chunk, where warnings are errors, as in these tests."""
    settings = {**{key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}, **config}
    size = 2 * CHUNK
    gradient = np.ones(size, np.float32)
    gradient[0] = np.float32(3e38)
    for step in ("step", "step_by_parts"):
        optimizer = Optimizer({**settings, "learning_rate": 100.0}, size)
        parameters = np.zeros(size, np.float32)
        given = gradient.copy()
        if step == "step":
            optimizer.step(parameters, given)
        else:
            optimizer.step_by_parts([(0, given, parameters)])
        assert parameters[0] == -np.inf
        assert (parameters[1:] == -100).all()
