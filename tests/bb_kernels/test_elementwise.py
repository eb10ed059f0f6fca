"""Arithmetic, comparisons, activations and casts against Python's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_kernels import KernelAttributeError, TensorSpec, UnsupportedDtypeError, prepare

Compute = Callable[..., list[Any]]

int32s = st.integers(-(2**31) + 1, 2**31 - 1)


@settings(max_examples=200, deadline=None)
@given(a=int32s, b=int32s.filter(bool))
def test_integer_division_truncates_and_mod_follows(a: int, b: int) -> None:
    x, y, out = np.array([a], np.int32), np.array([b], np.int32), np.empty(1, np.int32)
    spec = TensorSpec(x.dtype, x.shape)
    div = prepare("Div", 17, {}, [spec, spec])
    div.run(x, y, out, *(np.empty(s.shape, s.dtype) for s in div.scratch))
    assert out[0] == math.trunc(a / b) if abs(a) < 2**50 else True
    for fmod, want in ((0, a % b), (1, int(math.fmod(a, b)))):
        prepare("Mod", 17, {"fmod": fmod}, [spec, spec]).run(x, y, out)
        assert out[0] == want


def test_unsigned_division(compute: Compute) -> None:
    (got,) = compute("Div", [np.array([250, 7], np.uint8), np.array([7, 8], np.uint8)])
    assert got.tolist() == [35, 0]


def test_float_mod_needs_fmod_before_opset_28(compute: Compute) -> None:
    x = [np.array([5.5], np.float32), np.array([-2.0], np.float32)]
    with pytest.raises(UnsupportedDtypeError, match="fmod=1"):
        compute("Mod", x, version=27)
    assert compute("Mod", x, version=28)[0].tolist() == [-0.5]
    assert compute("Mod", x, version=27, fmod=1)[0].tolist() == [1.5]


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 1.0, 2.5, -3.0, 0.0])
@pytest.mark.parametrize("known", [True, False])
def test_pow_of_small_exponents(exponent: float, known: bool, compute: Compute) -> None:
    x = np.array([0.25, 1.0, 2.0, 9.0], np.float32)
    (got,) = compute("Pow", [x, np.float32(exponent)], known=known)
    np.testing.assert_allclose(got, x.astype(np.float64) ** exponent, rtol=1e-6)


@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 1.0])
def test_pow_in_place(exponent: float) -> None:
    x = np.array([1.0, 2.0, 4.0], np.float32)
    spec, scalar = TensorSpec(x.dtype, x.shape), TensorSpec(x.dtype, ())
    e = np.array(exponent, np.float32)
    prepared = prepare("Pow", 17, {}, [spec, scalar], [None, e])
    assert prepared.inplace == (0,)
    want = x**exponent
    prepared.run(x, e, x, *(np.empty(s.shape, s.dtype) for s in prepared.scratch))
    np.testing.assert_allclose(x, want, rtol=1e-6)


def test_a_cube_is_never_in_place() -> None:
    """It reads its input after writing the output; in place it would need memory for a square."""
    spec, scalar = TensorSpec(np.dtype(np.float32), (3,)), TensorSpec(np.dtype(np.float32), ())
    assert prepare("Pow", 17, {}, [spec, scalar], [None, np.float32(3.0)]).inplace == ()


def test_pow_of_integers(compute: Compute) -> None:
    assert compute("Pow", [np.array([2, 3], np.int32), np.array([3, 2], np.int32)])[0].tolist() == [8, 9]
    x, e = np.array([1, 2, -1], np.int64), np.array([-1, -1, -3], np.int64)
    for known in (True, False):
        assert compute("Pow", [x, e], known=known)[0].tolist() == [1, 0, -1]
    (mixed,) = compute("Pow", [np.array([2, 4], np.int32), np.array([0.5, 2.5], np.float32)])
    assert mixed.dtype == np.int32
    assert mixed.tolist() == [1, 32]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_erf_accuracy(dtype: Any, compute: Compute) -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, -0.0, 1e-6, -30.0, 30.0, np.inf, -np.inf]]).astype(
        dtype
    )
    (got,) = compute("Erf", [x])
    want = np.array([math.erf(v) for v in x.astype(np.float64)])
    limit = {2: 1e-3, 4: 6e-7, 8: 2e-15}[np.dtype(dtype).itemsize]
    assert np.abs(got.astype(np.float64) - want).max() <= limit
    assert np.isnan(compute("Erf", [np.array([np.nan], dtype)])[0]).all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str, compute: Compute) -> None:
    x = np.linspace(-5, 5, 101).astype(np.float32)
    (got,) = compute("Gelu", [x], approximate=approximate)
    want = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.astype(float)]
    np.testing.assert_allclose(got, want, atol=1e-6 if approximate == "none" else 1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sigmoid_and_softplus_survive_extremes(dtype: Any, compute: Compute) -> None:
    x = np.array([-1e4, -50, 0, 50, 1e4], dtype)
    np.testing.assert_allclose(compute("Sigmoid", [x])[0], [0, 0, 0.5, 1, 1], atol=1e-6)
    (soft,) = compute("Softplus", [x])
    np.testing.assert_allclose(soft, [0, 0, math.log(2), 50, 1e4], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.01, 1.0, 3.0])
def test_leaky_relu_of_any_slope(alpha: float, compute: Compute) -> None:
    x = np.array([-2.0, -0.0, 0.0, 3.0], np.float32)
    np.testing.assert_allclose(compute("LeakyRelu", [x], alpha=alpha)[0], [-2 * alpha, 0, 0, 3], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.float32])
def test_relu(dtype: Any, compute: Compute) -> None:
    top = 127 if dtype is np.int8 else 1e6
    assert compute("Relu", [np.array([-5, 0, 7, top], dtype)])[0].tolist() == [0, 0, 7, top]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_thresholded_relu_leaves_nothing_of_what_is_not_above(dtype: Any, compute: Compute) -> None:
    x = np.array([-np.inf, -1.0, 1.0, 2.0, np.inf, np.nan], dtype)
    assert compute("ThresholdedRelu", [x])[0].tolist() == [0, 0, 0, 2, np.inf, 0]
    assert compute("ThresholdedRelu", [x], alpha=-1.5)[0].tolist() == [0, -1, 1, 2, np.inf, 0]


def test_relu_keeps_nan(compute: Compute) -> None:
    assert np.isnan(compute("Relu", [np.array([np.nan], np.float32)])[0]).all()


def test_clip_with_one_bound_and_with_crossed_bounds(compute: Compute) -> None:
    x = np.array([-9, 0, 9], np.int8)
    assert compute("Clip", [x, None, np.int8(5)])[0].tolist() == [-9, 0, 5]
    assert compute("Clip", [x, np.int8(-2)])[0].tolist() == [-2, 0, 9]
    assert compute("Clip", [x, np.int8(4), np.int8(2)])[0].tolist() == [2, 2, 2]


def test_where_broadcasts_and_may_overwrite_its_last_input() -> None:
    f32, bools = np.dtype(np.float32), np.dtype(np.bool_)
    specs = [TensorSpec(bools, (3, 1)), TensorSpec(f32, (4,)), TensorSpec(f32, (3, 4))]
    prepared = prepare("Where", 17, {}, specs)
    assert prepared.inplace == (2,)
    y = np.zeros((3, 4), f32)
    prepared.run(np.array([[True], [False], [True]]), np.arange(4, dtype=f32), y, y)
    assert y.tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i4", "i8", "?"])
@pytest.mark.parametrize("size", [7, 999])
def test_where_gives_the_very_bits(dtype: str, size: int, rng: np.random.Generator) -> None:
    """Of nan and infinities, too, and with a scalar on either side, whether or not that is known and zero."""
    x, y = (
        np.frombuffer(rng.bytes(size * 8), "u1").astype("u1")[: size * np.dtype(dtype).itemsize] for _ in "xy"
    )
    x, y = ((a & 1 if dtype == "?" else a).view(dtype) for a in (x, y))
    if dtype[0] == "f":
        x[:4], y[:4] = [np.nan, np.inf, -0.0, 1], [1, np.nan, np.inf, -np.inf]
    condition = rng.random(size) < 0.5
    zero = np.zeros((), dtype)
    for a, b in [(x, y), (x, zero), (zero, y), (x, y[:1]), (x[:1], y[::-1])]:
        specs = [TensorSpec(v.dtype, v.shape) for v in (condition, a, b)]
        want = np.where(condition, a, b)
        for known in ((), (None, None, b)):
            prepared = prepare("Where", 17, {}, specs, known)
            out = np.empty(size, dtype)
            prepared.run(condition, a, b, out)
            assert out.tobytes() == want.tobytes()
            for position in prepared.inplace:
                given = [condition, a, b]
                given[position] = out = given[position].copy()
                prepared.run(*given, out)
                assert out.tobytes() == want.tobytes()


def test_casts(compute: Compute) -> None:
    x = np.array([-1.9, 0.0, 0.4, 2.9], np.float32)
    assert compute("Cast", [x], to=7)[0].tolist() == [-1, 0, 0, 2]
    assert compute("Cast", [x], to=9)[0].tolist() == [True, False, True, True]
    assert compute("Cast", [np.array([300], np.int32)], to=2)[0].tolist() == [44]
    with pytest.raises(UnsupportedDtypeError, match="16"):
        compute("Cast", [x], to=16)


def test_training_dropout_draws_on_and_repeats_by_seed() -> None:
    x = np.ones((8, 64), np.float32)
    ratio, training = np.float32(0.25), np.array(True)
    specs = [TensorSpec(a.dtype, a.shape) for a in (x, ratio, training)]

    def fresh() -> Any:
        return prepare("Dropout", 17, {"seed": 3}, specs, [None, ratio, training], n_outputs=2)

    def draw(prepared: Any) -> tuple[Any, Any]:
        out, mask = np.empty_like(x), np.empty(x.shape, bool)
        prepared.run(x, ratio, training, out, mask)
        return out, mask

    one, other = fresh(), fresh()
    (out, mask), (_, second) = draw(one), draw(one)
    assert (mask != second).any()
    np.testing.assert_array_equal(mask, draw(other)[1])
    np.testing.assert_allclose(out, mask / 0.75, rtol=1e-6)
    assert 0.6 < mask.mean() < 0.9


def test_training_dropout_without_seed_is_refused(compute: Compute) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(KernelAttributeError, match="seed"):
        compute("Dropout", [x, np.float32(0.5), np.array(True)])
    assert compute("Dropout", [x, np.float32(0.5), np.array(False)])[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_variadic(op: str, count: int, compute: Compute, rng: np.random.Generator) -> None:
    shapes = [(3, 1), (1, 4), (4,), ()][:count]
    inputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    stacked = np.stack(np.broadcast_arrays(*inputs))
    want = {"Max": np.max, "Min": np.min, "Sum": np.sum, "Mean": np.mean}[op](stacked, 0)
    np.testing.assert_allclose(compute(op, inputs)[0], want, rtol=1e-5, atol=1e-6)
