"""`bb.FedAvg`: the weighted mean, once per (round, peer)."""

from __future__ import annotations

import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import f32
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.components import FedAvg
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError
from tests.aids.peers import numbered

Ctx = Any
CTX: Any = types.SimpleNamespace(cohort=0)
Peer = Callable[[int], tuple[PeerId, ...]]


def i64(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def test_the_weighted_mean_and_the_total(ctx: Ctx, peer: Peer) -> None:
    agg = FedAvg()
    agg.contribute(ctx, f32(1, 2), i64(1), peer(1), i64(0))
    agg.contribute(ctx, f32(5, 6), np.array(3.0, np.float32), peer(2), i64(0))
    result, total = agg.aggregate(ctx)
    np.testing.assert_array_equal(result, f32(4, 5))
    assert result.dtype == np.float32
    assert total.shape == () and total.dtype == np.float32 and total == 4


def test_over_nothing_an_empty_tensor_and_zero(ctx: Ctx) -> None:
    agg = FedAvg()
    for trigger in (None, TRIGGER):
        result, total = agg.aggregate(ctx, trigger)
        assert result.shape == (0,) and result.dtype == np.float32
        assert total == 0


def test_aggregate_starts_afresh_and_the_last_one_stays_current(ctx: Ctx) -> None:
    agg = FedAvg()
    assert agg.current_tensor(ctx).shape == (0,)
    agg.contribute(ctx, f32(2))
    agg.aggregate(ctx)
    agg.contribute(ctx, f32(4))
    np.testing.assert_array_equal(agg.current_tensor(ctx, TRIGGER), f32(2))
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(4))
    agg.aggregate(ctx)
    np.testing.assert_array_equal(agg.current_tensor(ctx), f32(4))


def test_a_result_does_not_change_with_later_rounds(ctx: Ctx) -> None:
    agg = FedAvg()
    agg.contribute(ctx, f32(1, 2))
    first = agg.aggregate(ctx)[0]
    agg.contribute(ctx, f32(7, 8))
    agg.aggregate(ctx)
    np.testing.assert_array_equal(first, f32(1, 2))


def test_once_per_round_and_peer_and_the_first_wins(ctx: Ctx, peer: Peer) -> None:
    agg = FedAvg()
    agg.contribute(ctx, f32(1), None, peer(1), i64(5))
    agg.contribute(ctx, f32(99), None, peer(1), i64(5))
    agg.contribute(ctx, f32(3), None, peer(2), i64(5))
    assert agg.duplicates == 1
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(2))
    agg.contribute(ctx, f32(99), None, peer(1), i64(5))  # also after the round has been aggregated
    assert agg.duplicates == 2
    agg.contribute(ctx, f32(8), None, peer(1), i64(6))
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(8))


def test_without_a_round_once_per_peer_until_aggregated(ctx: Ctx, peer: Peer) -> None:
    agg = FedAvg()
    for _ in range(2):
        agg.contribute(ctx, f32(1), None, peer(1))
        agg.contribute(ctx, f32(5), None, peer(1))
        np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(1))


def test_without_a_peer_all_count(ctx: Ctx) -> None:
    agg = FedAvg()
    for value in (1, 2, 6):
        agg.contribute(ctx, f32(value), None, None, i64(1))
    result, total = agg.aggregate(ctx)
    assert (result[0], total) == (3, 3)


@pytest.mark.parametrize("n", [7, 8, 9])
def test_remembered_rounds_of_a_peer_are_bounded(ctx: Ctx, peer: Peer, n: int) -> None:
    """Below the bound a late first contribution counts; what is older cannot be told from a duplicate."""
    agg = FedAvg(remembered_rounds=8)
    for number in range(2, n + 1):
        agg.contribute(ctx, f32(1), None, peer(1), i64(number))
    if n <= 8:
        agg.contribute(ctx, f32(1), None, peer(1), i64(1))
        agg.contribute(ctx, f32(1), None, peer(1), i64(1))
        assert (agg.aggregate(ctx)[1], agg.duplicates, agg.stale) == (n, 1, 0)
    else:
        with pytest.raises(ComponentError, match="older than the 8"):
            agg.contribute(ctx, f32(1), None, peer(1), i64(1))
        agg.contribute(ctx, f32(1), None, peer(2), i64(1))  # far rounds of one peer cost another one nothing
        assert (agg.aggregate(ctx)[1], agg.duplicates, agg.stale) == (n, 0, 1)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_peers_of_a_round_are_bounded(ctx: Ctx, peer: Peer, n: int) -> None:
    agg = FedAvg(max_peers=3)
    for number in range(min(n, 3)):
        agg.contribute(ctx, f32(1), None, peer(number), i64(0))
    if n == 4:
        with pytest.raises(ComponentError, match="max_peers"):
            agg.contribute(ctx, f32(1), None, peer(3), i64(0))
    assert agg.aggregate(ctx)[1] == min(n, 3)


def test_rows_of_a_stack_count_first(ctx: Ctx) -> None:
    agg = FedAvg()
    agg.contribute(ctx, f32(1, 1), i64(2))
    result, total = agg.aggregate(ctx, np.array([[4, 4], [6, 8]], np.float32))
    np.testing.assert_allclose(result, f32(3, 3.5))
    assert total == 4
    assert agg.aggregate(ctx, np.empty((0, 2), np.float32))[1] == 0


@pytest.mark.parametrize(
    ("contribution", "weight", "message"),
    [
        (f32(1, 2, 3), None, r"shape \[3\]"),
        (np.array([1, 2]), None, "not floating point"),
        (f32(1, np.nan), None, "inf or nan"),
        (f32(1, np.inf), None, "inf or nan"),
        (f32(1, 2), np.array(-1.0), "above 0"),
        (f32(1, 2), np.array(0), "above 0"),
        (f32(1, 2), i64(2**62), "above max_weight, 2.14748e"),
        (np.array([1e300, 1.0]), None, r"numbers of 1e\+300"),
        (f32(1, 2), np.array(np.nan), "finite"),
        (f32(1, 2), f32(1, 2), "one number"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_no_trace(
    ctx: Ctx, peer: Peer, contribution: np.ndarray, weight: np.ndarray | None, message: str
) -> None:
    agg = FedAvg(where="slot 'agg'")
    agg.contribute(ctx, f32(1, 2), None, peer(1), i64(0))
    with pytest.raises(ComponentError, match=message):
        agg.contribute(ctx, contribution, weight, peer(2), i64(0))
    agg.contribute(ctx, f32(3, 4), None, peer(2), i64(0))  # the same peer may come again
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(2, 3))


def test_a_stack_is_refused_as_a_whole(ctx: Ctx) -> None:
    agg = FedAvg()
    with pytest.raises(ComponentError, match="inf or nan"):
        agg.aggregate(ctx, np.array([[1, 2], [3, np.nan]], np.float32))
    with pytest.raises(ComponentError, match="stack with rows"):
        agg.aggregate(ctx, np.array(1, np.float32))
    assert agg.aggregate(ctx)[1] == 0


@pytest.mark.parametrize(
    ("peers", "number"), [((), i64(0)), ((1, 2), i64(0)), ((1,), np.array([1, 2])), ((1,), np.array(0.5))]
)
def test_a_malformed_peer_or_round_is_refused(ctx: Ctx, peers: tuple[int, ...], number: np.ndarray) -> None:
    with pytest.raises(ComponentError):
        FedAvg().contribute(ctx, f32(1), None, tuple(map(numbered, peers)), number)


def test_nonfinite_values_where_they_are_allowed(ctx: Ctx) -> None:
    env = ComponentEnv("agg", config={"allow_nonfinite": True})
    agg = FedAvg.construct(env)
    agg.contribute(ctx, f32(np.inf))
    assert np.isinf(agg.aggregate(ctx)[0]).all()


@given(
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 10_000)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_of_arrival_does_not_matter(raw: list[tuple[int, int]], random: Any) -> None:
    """To the last f32 bit but one, and close to exact arithmetic."""
    parts = [(np.random.default_rng(seed).standard_normal(40_000).astype(np.float32), w) for seed, w in raw]
    results = []
    for _ in range(2):
        agg = FedAvg()
        for tensor, weight in parts:
            agg.contribute(CTX, tensor, i64(weight))
        results.append(agg.aggregate(CTX)[0])
        random.shuffle(parts)
    np.testing.assert_array_max_ulp(results[0], results[1], 1)
    exact = sum(w * t.astype(np.longdouble) for t, w in parts) / sum(w for _, w in parts)
    np.testing.assert_array_max_ulp(results[0], np.asarray(exact).astype(np.float32), 1)


def test_any_shape_and_float_type(ctx: Ctx) -> None:
    agg = FedAvg()
    agg.contribute(ctx, np.full((2, 3), 1, np.float16), i64(1))
    agg.contribute(ctx, np.full((2, 3), 4, np.float64)[:, ::-1], i64(2))
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], np.full((2, 3), 3, np.float32))
    agg.contribute(ctx, f32(1))  # the next round may have another shape
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(1))


def test_a_snapshot_goes_on_where_it_stopped(ctx: Ctx, peer: Peer) -> None:
    agg, restored = FedAvg(), FedAvg()
    agg.contribute(ctx, f32(9), None, peer(9), i64(0))
    agg.aggregate(ctx)
    agg.contribute(ctx, f32(1, 2), i64(3), peer(1), i64(1))
    agg.contribute(ctx, f32(1, 2), i64(3), peer(1), i64(1))
    restored.restore(agg.serialize())
    for a in (agg, restored):
        np.testing.assert_array_equal(a.current_tensor(ctx), f32(9))
        a.contribute(ctx, f32(50, 60), i64(3), peer(1), i64(1))
        a.contribute(ctx, f32(5, 6), i64(1), peer(2), i64(1))
        result, total = a.aggregate(ctx)
        np.testing.assert_array_equal(result, f32(2, 3))
        assert (total, a.duplicates) == (4, 2)


def test_a_damaged_state_is_refused_and_changes_nothing(ctx: Ctx, peer: Peer) -> None:
    agg = FedAvg()
    agg.contribute(ctx, f32(1, 2), None, peer(1), i64(1))
    state = agg.serialize()
    for cut in range(len(state)):
        with pytest.raises(ComponentStateError):
            agg.restore(state[:cut])
    np.testing.assert_array_equal(agg.aggregate(ctx)[0], f32(1, 2))


def test_memory_that_is_reserved_is_all_that_rounds_take(ctx: Ctx, peer: Peer) -> None:
    """The sum in double precision, and one mean after the other."""
    size = 100_000
    values = np.ones(size, np.float32)
    agg = FedAvg()
    tracemalloc.start()
    try:
        agg.reserve(size)
        reserved, _ = tracemalloc.get_traced_memory()
        for number in range(4):
            agg.contribute(ctx, values, None, peer(1), i64(number))
            agg.aggregate(ctx)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 12 * size < reserved < 12 * size + 200_000
    assert peak - reserved < 100_000


def test_a_mean_that_somebody_keeps_does_not_change(ctx: Ctx) -> None:
    agg = FedAvg()
    size = 50_000
    agg.reserve(size)
    kept = []
    for number in range(5):
        agg.contribute(ctx, np.full(size, number, np.float32))
        kept.append(agg.aggregate(ctx)[0][7:])
    assert [set(mean.tolist()) for mean in kept] == [{0.0}, {1.0}, {2.0}, {3.0}, {4.0}]


def test_reserved_memory_is_kept_over_a_restore_without_open_sums(ctx: Ctx) -> None:
    agg, size = FedAvg(), 100_000
    values = np.ones(size, np.float32)
    agg.reserve(size)
    tracemalloc.start()
    try:
        agg.restore(FedAvg().serialize())
        agg.contribute(ctx, values)
        agg.aggregate(ctx)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000
