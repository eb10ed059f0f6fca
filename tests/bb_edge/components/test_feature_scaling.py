"""Scaling on the device: fixed, or by statistics that one pass finds, and that a restart keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.components import ArrayDataSource
from bb_edge.components.feature_scaling import Scaling
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError

Ctx = Any

X = np.array([[1, 10, 5], [3, 30, 5], [5, 80, 5]], np.float32)


def construct(x: np.ndarray = X, **config: object) -> ArrayDataSource:
    return ArrayDataSource.construct(ComponentEnv("shard", "Client", config, tensors={"x": x}))


def test_standard_gives_mean_0_and_deviation_1(ctx: Ctx) -> None:
    x, _ = construct(scale="standard").next_batch(ctx)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x[:, :2].std(0), 1, rtol=1e-6)
    assert x[:, 2].tolist() == [0, 0, 0]  # it does not vary: shifted, not divided


def test_minmax_lies_in_0_to_1(ctx: Ctx) -> None:
    x, _ = construct(scale="minmax").next_batch(ctx)
    np.testing.assert_allclose(x[:, 0], [0, 0.5, 1])
    assert (x.min(), x.max()) == (0, 1)


def test_fixed_numbers_one_for_all_or_one_per_feature(ctx: Ctx) -> None:
    x, _ = construct(scale="fixed", scale_offset=[1, 10, 5], scale_divisor=2).next_batch(ctx)
    assert x.tolist() == [[0, 0, 0], [1, 10, 0], [2, 35, 0]]
    bytes_ = np.array([[0, 255]], np.uint8)
    x, _ = construct(bytes_, scale="fixed", scale_divisor=255).next_batch(ctx)
    assert (x.dtype, x.tolist()) == (np.float32, [[0, 1]])


def test_batches_are_what_the_source_says_they_are_like(ctx: Ctx) -> None:
    source = construct(scale="standard", batch_size=2)
    assert source.batch_like()[0].shape == source.next_batch(ctx)[0].shape == (2, 3)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.floats(-1e6, 1e6),
    st.integers(0, 2**32 - 1),
)
def test_chunks_of_any_size_have_the_statistics_of_the_whole(
    sizes: list[int], middle: float, seed: int
) -> None:
    rows = np.random.default_rng(seed).normal(middle, 3, (sum(sizes), 2))
    scaling = Scaling("standard", 2)
    for chunk in np.split(rows, np.cumsum(sizes)[:-1]):
        scaling.fit(chunk)
    if len(rows) > 1:
        expected = (rows - rows.mean(0)) / rows.std(0)
        np.testing.assert_allclose(scaling.apply(rows), expected, rtol=1e-4, atol=1e-4)


def test_statistics_stay_after_the_configured_number_of_rows() -> None:
    scaling = Scaling("minmax", 1, rows=3)
    scaling.fit(np.array([[0.0], [4.0]]))
    assert scaling.learns
    scaling.fit(np.array([[8.0], [100.0]]))
    assert not scaling.learns
    scaling.fit(np.array([[1000.0]]))
    assert scaling.apply(np.array([[4.0]])).tolist() == [[0.5]]


def test_a_restart_with_other_data_scales_as_before(ctx: Ctx) -> None:
    state = construct(scale="standard").serialize()
    other = construct(X * 10, scale="standard")
    before = other.next_batch(ctx)[0]
    other.restore(state)
    assert not np.allclose(other.next_batch(ctx)[0], before)
    np.testing.assert_allclose(other.next_batch(ctx)[0], Scaled(X).of(X * 10), rtol=1e-6)


class Scaled:
    def __init__(self, x: np.ndarray) -> None:
        self._scaling = Scaling("standard", x.shape[-1])
        self._scaling.fit(x)

    def of(self, x: np.ndarray) -> np.ndarray:
        return self._scaling.apply(x)


def test_statistics_of_something_else_are_refused() -> None:
    state = construct(scale="standard").serialize()
    with pytest.raises(ComponentStateError, match="not of 2 features scaled by 'standard'"):
        construct(X[:, :2], scale="standard").restore(state)


@pytest.mark.parametrize("before", ["standard", "none"])
def test_a_scaling_that_is_configured_anew_has_statistics_of_its_own(ctx: Ctx, before: str) -> None:
    source = construct(scale="minmax")
    source.restore(construct(X * 10, scale=before).serialize())
    np.testing.assert_allclose(source.next_batch(ctx)[0][:, 0], [0, 0.5, 1])
    plain = construct()
    plain.restore(construct(scale="standard").serialize())
    assert plain.next_batch(ctx)[0].tolist() == X.tolist()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"scale": "fixed"}, "no numbers are given"),
        ({"scale_offset": 1}, "scale_offset are given, and scale is 'none'"),
        ({"scale": "standard", "scale_divisor": 1}, "scale is 'standard'"),
        ({"scale": "fixed", "scale_divisor": [1, 0, 2]}, "a divisor is 0"),
        ({"scale": "fixed", "scale_divisor": [1, 2]}, "2 numbers for 3 features"),
        ({"scale": "fixed", "scale_offset": ["1", 2, 3]}, "must be a number"),
        ({"scale": "fixed", "scale_offset": "mean"}, "must be a number"),
        ({"scale": "fixed", "scale_offset": [float("nan"), 2, 3]}, "must be finite"),
        ({"scale": "best"}, "must be one of none, fixed, standard, minmax"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(config: dict[str, object], says: str) -> None:
    with pytest.raises(ComponentError, match=says) as caught:
        construct(**config)
    assert "slot 'shard'" in str(caught.value)


def test_texts_cannot_be_scaled() -> None:
    with pytest.raises(ComponentError, match="cannot be scaled"):
        construct(np.array(["a"]), scale="standard")
