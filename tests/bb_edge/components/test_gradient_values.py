"""`bb.GraphModel` gives its gradients away: dL/dinput, the accumulated vector, and under keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.components import GraphModel
from bb_edge.components.kept_activations import UnknownKey
from bb_edge.ir.annotated import metadata_of
from bb_edge.roles import ComponentError
from bb_host.learn import mlp, trainable
from tests.aids.graph_models import (
    C,
    D,
    H,
    N,
    built,
    flat,
    forward_of,
    input_gradient,
    network,
    parameter_gradient,
    parameters,
)  # fmt: skip

Ctx = Any


def build(*, wide: bool = True, **config: object) -> GraphModel:
    return built(network(), "BackwardInput" if wide else "Backward", **config)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((N, D)).astype(np.float32)


@pytest.fixture
def dz() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((N, C)).astype(np.float32)


def test_the_gradient_of_the_input(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward(ctx, x)
    dx = model.backward_input(ctx, dz)
    expected = input_gradient(x, dz)
    assert dx.shape == x.shape and dx.dtype == np.float32
    np.testing.assert_allclose(dx, expected, rtol=1e-3, atol=1e-4)


def test_with_the_gradient_of_the_input_comes_that_of_the_parameters(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray
) -> None:
    expected = parameter_gradient(x, dz)
    for backward in ("backward", "backward_input"):
        model = build()
        model.forward(ctx, x)
        getattr(model, backward)(ctx, dz)
        np.testing.assert_allclose(model.gradient(ctx), expected, rtol=1e-3, atol=1e-4)


def test_each_gradient_of_an_input_is_an_array_of_its_own(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward(ctx, x)
    first = model.backward_input(ctx, dz)
    before = first.copy()
    model.backward_input(ctx, 2 * dz)
    np.testing.assert_array_equal(first, before)


def test_an_artifact_without_the_gradient_of_the_input(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build(wide=False)
    model.forward(ctx, x)
    with pytest.raises(ComponentError, match="does not give the gradient of the input") as found:
        model.backward_input(ctx, dz)
    assert "compile the program again" in found.value.hint


def test_the_gradient_is_taken_out(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    np.testing.assert_array_equal(model.gradient(ctx), np.zeros(flat(parameters()).size))
    model.forward(ctx, x)
    model.backward(ctx, dz)
    model.backward(ctx, dz)
    found = model.gradient(ctx)
    once = parameter_gradient(x, dz)
    np.testing.assert_allclose(found, 2 * once, rtol=1e-3, atol=2e-4)
    assert metadata_of(found)["hash"] == model.layout_hash
    before, kept = model.params(ctx).copy(), found.copy()
    model.step(ctx)  # there is none any more
    np.testing.assert_array_equal(model.params(ctx), before)
    model.backward(ctx, dz)
    np.testing.assert_array_equal(found, kept)  # it is nobody else's
    np.testing.assert_allclose(model.gradient(ctx), once, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_with_the_gradient_that_was_taken_is_a_plain_one(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray, momentum: float
) -> None:
    plain, taken = build(momentum=momentum), build(momentum=momentum)
    for model in (plain, taken):
        for _ in range(3):
            model.forward(ctx, x)
            model.backward(ctx, dz)
            model.step(ctx, None if model is plain else model.gradient(ctx))
    np.testing.assert_array_equal(plain.params(ctx), taken.params(ctx))


def test_a_gradient_that_was_clipped(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build(learning_rate=1.0)
    before = model.params(ctx).copy()
    model.forward(ctx, x)
    model.backward(ctx, dz)
    gradient = model.gradient(ctx)
    model.step(ctx, gradient / np.linalg.norm(gradient))
    assert np.linalg.norm(model.params(ctx) - before) == pytest.approx(1.0, rel=1e-5)


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_outlives_its_execution(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    ctx.exec_id = 1
    output = model.forward_keyed(ctx, x, np.array(5))
    model.execution_ended(1)
    np.testing.assert_allclose(output, forward_of(parameters(), x), rtol=1e-5)
    ctx.exec_id = 2
    model.backward_keyed(ctx, dz, 5)
    np.testing.assert_allclose(model.gradient(ctx), parameter_gradient(x, dz), rtol=1e-3, atol=1e-4)
    with pytest.raises(UnknownKey, match=r"under this key \(5\)"):
        model.backward_keyed(ctx, dz, 5)


def test_keys_in_flight_do_not_mix(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    inputs = {key: x * scale for key, scale in ((1, 0.5), (2, -1.0), (3, 2.0))}
    for key, array in inputs.items():
        model.forward_keyed(ctx, array, key)
    for key in (2, 3, 1):
        dx = model.backward_input(ctx, dz, key)
        expected = input_gradient(inputs[key], dz)
        np.testing.assert_allclose(dx, expected, rtol=1e-3, atol=1e-3)


def test_keys_leave_the_execution_alone(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward_keyed(ctx, x, 1)
    with pytest.raises(ComponentError, match="without a Forward"):
        model.backward(ctx, dz)


def test_a_gradient_that_does_not_fit_uses_nothing_up(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward_keyed(ctx, x, 1)
    with pytest.raises(ComponentError, match="the gradient is"):
        model.backward_keyed(ctx, dz[1:], 1)
    model.backward_keyed(ctx, dz, 1)


def test_bounds_of_keys_are_configuration(ctx: Ctx, x: np.ndarray) -> None:
    few = build(kept_keys=2)
    for key in range(5):
        few.forward_keyed(ctx, x, key)
    assert few.activations_dropped == 3
    size = x.nbytes + N * H * 4  # the input, and the one activation [N, H]
    small = build(kept_key_bytes=size)
    small.forward_keyed(ctx, x, 1)
    small.forward_keyed(ctx, x, 2)
    assert small.activations_dropped == 1
    with pytest.raises(ComponentError, match="kept_key_bytes is"):
        build(kept_key_bytes=size - 1).forward_keyed(ctx, x, 1)


def test_keys_survive_a_restart(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model, restarted = build(), build()
    model.forward_keyed(ctx, x, b"round 1")
    restarted.restore(model.serialize())
    np.testing.assert_array_equal(
        restarted.backward_input(ctx, dz, b"round 1"), model.backward_input(ctx, dz, b"round 1")
    )
    assert restarted.serialize() == model.serialize()


def test_a_model_that_does_not_learn_keeps_nothing(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = built(trainable(mlp([D, H, C]), learning=False))
    model.forward_keyed(ctx, x, 1)
    for call in (lambda: model.backward_keyed(ctx, dz, 1), lambda: model.gradient(ctx)):
        with pytest.raises(ComponentError, match="it cannot be trained"):
            call()
    assert model.serialize() == built(trainable(mlp([D, H, C]), learning=False)).serialize()
