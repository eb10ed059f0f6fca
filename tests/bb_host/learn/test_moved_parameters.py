"""Parameters that are changed in the memory of the program that trains them, until somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learners import chunked, component

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components import gradient_sum
from bb_edge.components.graph_model import GraphModel
from bb_edge.components.model_layout import ModelLayout
from bb_edge.components.parameter_home import ParameterHome
from bb_edge.roles.programs import BackendProgram
from bb_host.learn import mlp, trainable

CTX: Any = SimpleNamespace(exec_id=1)
BATCH = (
    np.random.default_rng(9).standard_normal((7, 6)).astype(np.float32),
    np.eye(3, dtype=np.float32)[[0, 2, 1, 1, 2, 0, 2]],
)
LARGE = 5
"""Gradients with more numbers are lent."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: Any) -> None:
    """These gradients count as large."""
    monkeypatch.setattr(gradient_sum, "COPIED_BYTES", 4 * LARGE)


class Keeping(BackendProgram):
    """Reads residents in memory of its own, as an interpreter does, and lends large gradients.

    Numbers that nobody should read are nan: where it was given residents that have moved. `copied` counts the
    tensors that runs have copied in.
    """

    def __init__(self, backend: NumPyBackend, function: Any, functions: Any, resident: Any) -> None:
        self.given = list(resident.values())
        self.own = [array.copy() for array in self.given]
        self.program = backend.prepare(function, functions, dict(zip(resident, self.own, strict=True)))
        self.input_names, self.output_names = self.program.input_names, self.program.output_names
        self.moved: set[int] = set()
        self.copied = 0

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        for number, array in enumerate(self.given):
            if number not in self.moved:
                self.own[number][...] = array
                self.copied += 1
        return self.program.run(inputs)

    def run_lending(
        self, inputs: Sequence[Any], outputs: Sequence[Any], lendable: Collection[int]
    ) -> Mapping[int, Any]:
        results = self.run(inputs)
        lent = {n: result for n, result in enumerate(results) if n in lendable and result.size > LARGE}
        for number, (result, output) in enumerate(zip(results, outputs, strict=True)):
            if number not in lent:
                np.copyto(output, result)
        return lent

    def move_residents(self, numbers: Collection[int]) -> Mapping[int, Any]:
        for number in numbers:
            np.testing.assert_array_equal(self.own[number], self.given[number])
            self.given[number].fill(np.nan)
        self.moved = set(numbers)
        return {number: self.own[number] for number in numbers}

    def return_residents(self) -> None:
        self.moved = set()


class KeepingBackend(NumPyBackend):
    """Its programs that train keep residents; the last one is `program`."""

    def prepare(self, function: Any, functions: Any = None, resident: Any = None) -> Any:
        if not function.name.endswith(".fit"):
            return super().prepare(function, functions, resident)
        self.program = Keeping(NumPyBackend(), function, functions, resident)
        return self.program


def pair(net: Any = None, **config: Any) -> tuple[GraphModel, GraphModel, Keeping]:
    """The same model twice, on a program that keeps parameters and on one that does not."""
    net = net or trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5)
    backend = KeepingBackend()
    keeping = component(net, config=config, backend=backend)
    return keeping, component(net, config=config), backend.program


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize("chunk", [0, 3])
def test_steps_come_to_the_same_bits(config: dict[str, Any], chunk: int) -> None:
    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5)
    keeping, other, program = pair(chunked(net, chunk) if chunk else net, **config)
    for _ in range(5):
        for learner in (keeping, other):
            learner.train(CTX, *BATCH)
            learner.step(CTX)
        np.testing.assert_array_equal(keeping.params(CTX), other.params(CTX))
    if not chunk or not config:  # the sum over several chunks lies in one vector: a step has it by tensor
        assert program.moved == {0, 1, 2, 3}
        assert program.copied == (4 if not chunk else 12)
    else:
        assert not program.moved


NETS = {
    "all": {},
    "personal": {"personal": ("w1", "b1")},
    "not trained": {"frozen": ("w2",), "sent": ("w2",)},
}


@pytest.mark.parametrize("which", NETS.values(), ids=NETS)
def test_what_is_sent_comes_from_where_it_is(which: dict[str, Any]) -> None:
    net = trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5, **which)
    keeping, other, program = pair(net)
    for learner in (keeping, other):
        for _ in range(2):
            learner.train(CTX, *BATCH)
            learner.step(CTX)
    assert program.moved
    sent = keeping.params(CTX)
    np.testing.assert_array_equal(sent, other.params(CTX))
    assert program.moved, "asking for the parameters brings nothing back"
    for name, array in other.named_parameters().items():
        np.testing.assert_array_equal(keeping.named_parameters()[name], array)
    assert not program.moved


def adopted(learner: GraphModel) -> None:
    taken = component(trainable(mlp([6, 5, 3], seed=8), learning_rate=0.5))
    learner.adopt(taken.serialize())


BETWEEN: dict[str, Callable[[GraphModel], object]] = {
    "nothing": lambda learner: None,
    "a snapshot": lambda learner: learner.restore(learner.serialize()),
    "parameters come": lambda learner: learner.load_parameters(CTX, learner.params(CTX) * 2),
    "a difference comes": lambda learner: learner.apply_delta(CTX, np.ones(53, np.float32)),
    "parameters are adopted": adopted,
    "memory is given back": GraphModel.release,
    "a loss is asked for": lambda learner: learner.evaluate(CTX, *BATCH),
    "an output is asked for": lambda learner: learner.forward(CTX, BATCH[0]),
    "a gradient is given": lambda learner: learner.step(CTX, np.ones(53, np.float32)),
    "a step without a gradient": lambda learner: learner.step(CTX),
    "two passes": lambda learner: learner.train(CTX, *BATCH),
    "they are looked at": lambda learner: learner.parameters.sum(),
}


@pytest.mark.parametrize("at", ["before the step", "after the step"])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_whatever_happens_meanwhile(between: Callable[[GraphModel], object], at: str) -> None:
    keeping, other, _ = pair()
    for _ in range(3):
        answers = []
        for learner in (keeping, other):
            learner.train(CTX, *BATCH)
            if at == "before the step":
                answers.append(between(learner))
            learner.step(CTX)
            if at == "after the step":
                answers.append(between(learner))
        np.testing.assert_array_equal(*answers)
        np.testing.assert_array_equal(keeping.params(CTX), other.params(CTX))
    np.testing.assert_array_equal(keeping.parameters, other.parameters)
    assert np.isfinite(keeping.parameters).all()


def test_who_holds_the_parameters_sees_every_step() -> None:
    keeping, _, program = pair()
    keeping.train(CTX, *BATCH)
    keeping.step(CTX)
    assert program.moved
    seen = keeping.parameters
    for _ in range(2):
        keeping.train(CTX, *BATCH)
        keeping.step(CTX)
        np.testing.assert_array_equal(seen, keeping.params(CTX))
    assert not program.moved


def test_a_home_without_a_program_is_its_vector() -> None:
    vector = np.zeros(3, np.float32)
    home = ParameterHome(vector, ModelLayout({"w": vector}))
    home.read = True
    ((at, gradient, parameters),) = home.beside([(0, np.ones(3, np.float32))])
    assert (at, gradient.size, home.away) == (0, 3, False)
    parameters += 1
    assert home.whole() is vector
    np.testing.assert_array_equal(vector, 1)
