"""Optimizers and learning rates against PyTorch (optimizer_steps.json), their state, and what they cost."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bb_edge.components import GraphModel
from bb_edge.components.learning_rates import Schedule
from bb_edge.components.optimizers import (
    OPTIMIZER_CONFIG,
    PLAIN_CHUNK,
    Optimizer,
    doubtful_settings,
    kept_vectors,
    unread_settings,
)
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError, Setting

Ctx = Any
STEPS = json.loads(Path(__file__).with_name("optimizer_steps.json").read_text())
CASES: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "sgd with weight decay": {"learning_rate": 0.1, "weight_decay": 0.05},
    "momentum": {"learning_rate": 0.1, "momentum": 0.9},
    "nesterov": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "learning_rate": 0.05},
    "adam, other settings": {
        "optimizer": "adam", "learning_rate": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3,
        "weight_decay": 0.1,
    },
    "adamw": {"optimizer": "adamw", "learning_rate": 0.05, "weight_decay": 0.1},
    "clipped": {"learning_rate": 0.1, "clip_norm": 0.5},
    "adam, clipped": {"optimizer": "adam", "learning_rate": 0.05, "clip_norm": 0.5},
    "step decay": {"learning_rate": 0.1, "schedule": "step_decay", "schedule_length": 2, "decay": 0.5},
    "cosine": {"learning_rate": 0.1, "schedule": "cosine", "schedule_length": 4, "lowest_rate": 0.01},
    "warm-up, then cosine": {
        "optimizer": "adamw", "learning_rate": 0.05, "weight_decay": 0.1, "warm_up": 3, "schedule": "cosine",
        "schedule_length": 3,
    },
}  # fmt: skip


def model(start: Any = (0.0,), **config: object) -> GraphModel:
    return GraphModel({"w": np.array(start, np.float32)}, **config)  # type: ignore[arg-type]


def gradients() -> np.ndarray:
    return np.array(STEPS["gradients"], np.float32)


def settings(**given: object) -> dict[str, Any]:
    return {**{key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}, **given}


def test_every_case_is_compared() -> None:
    assert CASES.keys() == STEPS["cases"].keys()


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_pytorch(ctx: Ctx, case: str) -> None:
    learner = model(STEPS["start"], **CASES[case])
    for expected, gradient in zip(STEPS["cases"][case], gradients(), strict=False):
        learner.step(ctx, gradient)
        np.testing.assert_allclose(learner.params(ctx), expected, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("case", ["sgd", "nesterov", "adam, other settings", "adamw"])
def test_a_vector_in_many_chunks_is_as_one(ctx: Ctx, case: str) -> None:
    size = PLAIN_CHUNK + 1000
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(size).astype(np.float32) for _ in range(3)]
    whole = model(np.ones(size), **CASES[case])
    part = model(np.ones(100), **CASES[case])
    for gradient in given:
        whole.step(ctx, gradient)
        part.step(ctx, gradient[-100:])
    np.testing.assert_array_equal(whole.params(ctx)[-100:], part.params(ctx))


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
def test_steps_take_no_memory_that_grows_with_the_model(config: dict[str, Any]) -> None:
    size = 500_000
    optimizer = Optimizer(settings(**config, clip_norm=0.1), size)
    parameters, gradient = np.ones(size, np.float32), np.ones(size, np.float32)
    tracemalloc.start()
    try:
        optimizer.step(parameters, gradient)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 4  # a vector would be four times its size
    assert set(optimizer.vectors) == set(kept_vectors(config))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_clipping_hides_no_gradient_that_is_not_finite(ctx: Ctx, bad: float) -> None:
    learner = model((0.0, 0.0), clip_norm=1.0)
    learner.step(ctx, np.array([bad, 1], np.float32))
    assert not np.isfinite(learner.params(ctx)).all()


# --- rounds ---------------------------------------------------------------------------------------


def moves(learner: GraphModel, ctx: Ctx) -> float:
    """How far a step with a gradient of 1 goes."""
    before = float(learner.params(ctx)[0])
    learner.step(ctx, np.ones(1, np.float32))
    return round(before - float(learner.params(ctx)[0]), 6)


def by_round(**config: object) -> GraphModel:
    return model(
        learning_rate=1.0, schedule="step_decay", schedule_by="round", schedule_length=1, decay=0.5, **config
    )


def test_each_load_begins_a_round(ctx: Ctx) -> None:
    learner = by_round()
    found = []
    for _ in range(3):
        learner.load_parameters(ctx, np.zeros(1, np.float32))
        found.append([moves(learner, ctx), moves(learner, ctx)])
    assert found == [[1, 1], [0.5, 0.5], [0.25, 0.25]]


def test_a_round_that_the_program_tells_counts_alone(ctx: Ctx) -> None:
    learner = by_round()
    found = []
    for number in (1, 4, 3):  # it was not asked in round 2, and round 3 ran again
        learner.load_parameters(ctx, np.zeros(1, np.float32))
        learner.set_round(ctx, np.array(number))
        found.append(moves(learner, ctx))
    assert found == [1, 0.125, 0.25]


@pytest.mark.parametrize("wrong", [np.array(0), np.array([1, 2]), np.array(1.0)])
def test_a_round_is_a_whole_number_from_1(ctx: Ctx, wrong: np.ndarray) -> None:
    with pytest.raises(ComponentError, match="whole number from 1"):
        model().set_round(ctx, wrong)


@pytest.mark.parametrize("config", [{"momentum": 0.5}, {"optimizer": "adam"}])
def test_the_state_is_kept_over_rounds_or_begins_anew(ctx: Ctx, config: dict[str, Any]) -> None:
    first = np.ones(1, np.float32)
    ends = {}
    for reset in (False, True):
        learner = model(learning_rate=0.1, reset_state=reset, **config)
        for gradient in (first, -4 * first):
            learner.load_parameters(ctx, np.zeros(1, np.float32))
            learner.step(ctx, gradient)
        ends[reset] = float(learner.params(ctx)[0])
    alone = model(learning_rate=0.1, **config)
    alone.step(ctx, -4 * first)
    assert ends[True] == float(alone.params(ctx)[0]) != ends[False]


def test_warm_up_reaches_the_rate_and_a_cosine_stays_at_its_end() -> None:
    schedule = Schedule(1.0, "cosine", length=4, lowest=0.2, warm_up=2)
    found = [round(schedule.at(time), 6) for time in (0, 1, 2, 4, 6, 60)]
    assert found == [0.5, 1.0, 1.0, 0.6, 0.2, 0.2]


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_snapshot_goes_on_where_it_stopped(ctx: Ctx, case: str) -> None:
    straight, first = model(STEPS["start"], **CASES[case]), model(STEPS["start"], **CASES[case])
    for gradient in gradients():
        straight.step(ctx, gradient)
    for gradient in gradients()[:3]:
        first.step(ctx, gradient)
    second = model(np.zeros(5), **CASES[case])
    second.restore(first.serialize())
    for gradient in gradients()[3:]:
        second.step(ctx, gradient)
    np.testing.assert_array_equal(second.params(ctx), straight.params(ctx))


def test_a_snapshot_of_another_optimizer_gives_parameters_alone(ctx: Ctx) -> None:
    heavy = model(STEPS["start"], momentum=0.9)
    heavy.step(ctx, gradients()[0])
    adam, fresh = model(np.zeros(5), optimizer="adam"), model(heavy.params(ctx), optimizer="adam")
    adam.step(ctx, gradients()[1])
    adam.restore(heavy.serialize())
    for learner in (fresh, adam):
        learner.step(ctx, gradients()[2])
    np.testing.assert_array_equal(adam.params(ctx), fresh.params(ctx))


def test_adam_is_adopted_tensor_by_tensor_with_its_count(ctx: Ctx) -> None:
    old = model(STEPS["start"], optimizer="adam")
    for gradient in gradients()[:2]:
        old.step(ctx, gradient)
    new = GraphModel({"w": np.zeros(5, np.float32), "v": np.zeros(2, np.float32)}, optimizer="adam")
    adopted = new.adopt(old.serialize())
    assert "Adam's mean of gradients of 1 tensor with 5 numbers" in adopted.taken
    for learner, gradient in ((old, gradients()[2]), (new, np.append(gradients()[2], [0, 0]))):
        learner.step(ctx, gradient.astype(np.float32))
    np.testing.assert_array_equal(new.params(ctx)[:5], old.params(ctx))
    plain = model(np.zeros(5))
    assert "Adam's mean of gradients: this program has none" in plain.adopt(old.serialize()).left


def test_a_damaged_count_is_refused(ctx: Ctx) -> None:
    learner = model()
    state = learner.serialize().replace(b"optimizer\x84", b"optimizer\x83")
    with pytest.raises(ComponentStateError):
        learner.restore(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer", "rmsprop"),
        ("schedule", "linear"),
        ("schedule_by", "epoch"),
        ("beta1", 1.5),
        ("clip_norm", -1.0),
    ],
)
def test_settings_that_are_none_are_refused(key: str, value: object) -> None:
    with pytest.raises(ComponentError, match=key):
        ComponentEnv("model", config={key: value}).settings(GraphModel)


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        ({}, ()),
        ({"momentum": 0.9, "nesterov": True}, ()),
        ({"nesterov": True}, ("nesterov",)),
        ({"optimizer": "adam", "momentum": 0.9}, ("momentum",)),
        ({"optimizer": "adam", "momentum": 0.0, "beta1": 0.5}, ()),
        ({"beta1": 0.5, "epsilon": 1e-5}, ("beta1", "epsilon")),
        ({"schedule_length": 5, "decay": 0.5}, ("schedule_length", "decay")),
        ({"schedule": "cosine", "decay": 0.5, "lowest_rate": 0.1}, ("decay",)),
        ({"schedule_by": "round"}, ("schedule_by",)),
        ({"schedule_by": "round", "warm_up": 3}, ()),
        ({"reset_state": True}, ("reset_state",)),
        ({"reset_state": True, "optimizer": "adamw"}, ()),
    ],
)
def test_settings_that_others_turn_off_are_told(given, unread):
    told = unread_settings(given)
    assert tuple(told) == unread
    assert all(told.values())


def test_a_subclass_reads_the_keys_that_it_declares_again_itself() -> None:
    class Decaying(GraphModel):
        CONFIG: ClassVar[Mapping[str, Setting]] = {"decay": Setting.number(0.01, 0.0)}

    given = {"decay": 0.5, "nesterov": True}
    assert set(GraphModel.unread_settings(given)) == {"decay", "nesterov"}
    assert set(Decaying.unread_settings(given)) == {"nesterov"}


COSINE = {"schedule": "cosine", "schedule_length": 9}


@pytest.mark.parametrize(
    ("given", "doubtful"),
    [
        ({}, ()),
        ({"learning_rate": 0.0}, ("learning_rate",)),
        ({**COSINE}, ()),  # it reaches 0 where it may be meant to end
        ({**COSINE, "lowest_rate": 0.5}, ("lowest_rate",)),
        ({**COSINE, "lowest_rate": 0.1}, ()),
        ({**COSINE, "lowest_rate": 0.5, "learning_rate": 0.0}, ("lowest_rate",)),
        ({"lowest_rate": 0.5}, ()),  # nothing reads it
        ({"schedule": "step_decay", "schedule_length": 9, "decay": 0.0}, ("decay",)),
        ({"schedule": "step_decay", "schedule_length": 9, "decay": 0.5}, ()),
        ({"schedule": "constant"}, ()),
        ({"schedule": "cosine", "schedule_length": 100}, ()),  # the default, and the author's
        ({"schedule": "cosine"}, ("schedule_length",)),
        ({"schedule": "step_decay"}, ("schedule_length",)),
        ({"schedule": "cosine", "learning_rate": 0.0}, ("learning_rate",)),
    ],
)
def test_rates_with_which_little_is_learned_are_told(given, doubtful) -> None:
    assert tuple(doubtful_settings(given)) == doubtful


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"schedule": "cosine", "lowest_rate": 0.01}, "the rate ends at 0.01 after 100 steps, the default"),
        ({"schedule": "step_decay", "schedule_by": "round"}, "the rate falls every 100 rounds, the default"),
    ],
)
def test_a_schedule_without_a_length_says_which_it_takes(given, told) -> None:
    assert doubtful_settings(given)["schedule_length"] == f"it is not set, so {told}"


def test_a_device_tells_its_own_rate() -> None:
    env = ComponentEnv("model", config={"learning_rate": 0.0})
    assert env.unread_notes(GraphModel) == [
        "slot 'model', key 'learning_rate': it is 0, so no step changes the parameters"
    ]


@pytest.mark.parametrize("by", ["step", "round"])
def test_a_rate_that_has_fallen_to_0_is_told_once(by: str) -> None:
    settings = {key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}
    optimizer = Optimizer({**settings, "schedule": "cosine", "schedule_length": 3, "schedule_by": by}, 2)
    parameters, told = np.zeros(2, np.float32), []
    for _ in range(6):
        optimizer.loaded()
        before = parameters.copy()
        optimizer.step(parameters, np.ones(2, np.float32))
        told.append(len(optimizer.notes))
        assert np.array_equal(parameters, before) == (told[-1] > 0)
    assert told == [0, 0, 0, 1, 1, 1]
    assert f"has fallen to 0 at {by} 4 (schedule cosine)" in optimizer.notes[0]
