"""What counts in an aggregator's sums: which sum a contribution belongs to, norms, and what is not finite."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.components import FedAvg
from bb_edge.components.combiner import Combiner
from bb_edge.components.combining import CombiningAggregator
from bb_edge.ir.ids import PeerId
from bb_edge.roles import (
    AggregateNotFinite,
    ComponentEnv,
    ComponentError,
    ComponentStateError,
    ContractError,
    Setting,
)
from bb_edge.roles.settings import misfit

Peer = Callable[[int], tuple[PeerId, ...]]
MAX = float(np.finfo(np.float32).max)


def in_execution(number: int) -> Any:
    """A `ctx` of an op whose sum is that of an execution."""
    return types.SimpleNamespace(cohort=number)


BY_ROUND: Any = types.SimpleNamespace(cohort=-1)
ONLY: Any = types.SimpleNamespace(cohort=0)


def i64(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def mean(agg: CombiningAggregator, ctx: Any, number: int | None = None) -> list[float]:
    found: list[float] = agg.aggregate(ctx, None, None if number is None else i64(number))[0].tolist()
    return found


# --- sums do not mix ----------------------------------------------------------------------------------------


def test_each_execution_has_its_own_sum(peer: Peer) -> None:
    agg, one, two = FedAvg(), in_execution(1), in_execution(2)
    agg.contribute(one, f32(1), None, peer(1))
    agg.contribute(
        two, f32(10, 20), None, peer(1)
    )  # of another shape, by a peer that counts in the first one
    agg.contribute(one, f32(3), None, peer(2))
    assert mean(agg, two) == [10, 20]
    assert mean(agg, one) == [2]


def test_what_comes_after_the_aggregate_of_its_execution_is_refused(peer: Peer) -> None:
    agg, ctx = FedAvg(), in_execution(5)
    agg.contribute(ctx, f32(1), None, peer(1))
    assert mean(agg, ctx) == [1]
    with pytest.raises(ComponentError, match="its round is over"):
        agg.contribute(ctx, f32(100), None, peer(2))
    assert agg.stale == 1
    agg.execution_ended(5)
    agg.contribute(in_execution(6), f32(7), None, peer(2))
    assert mean(agg, in_execution(6)) == [7]


def test_the_sum_of_an_execution_goes_with_it(peer: Peer) -> None:
    agg = FedAvg()
    agg.contribute(in_execution(3), f32(1, 2), None, peer(1))
    agg.execution_ended(3)
    (lost,) = agg.take_given_up()
    assert (lost.contributions, lost.peers) == (1, peer(1)) and "ended without aggregating" in lost.why
    agg.execution_ended(4)  # one that has none
    assert not agg.take_given_up()
    assert mean(agg, in_execution(3)) == []


def test_rounds_that_overlap_have_right_means(peer: Peer) -> None:
    agg = FedAvg()
    for number in (1, 2):
        for who in (1, 2):
            agg.contribute(BY_ROUND, f32(10 * number + who), None, peer(who), i64(number))
    agg.contribute(BY_ROUND, f32(99), None, peer(1), i64(2))
    assert (mean(agg, BY_ROUND, 2), mean(agg, BY_ROUND, 1), agg.duplicates) == ([21.5], [11.5], 1)
    with pytest.raises(ComponentError, match="round 1 is over"):
        agg.contribute(BY_ROUND, f32(1), None, peer(3), i64(1))


def test_far_rounds_are_refused_and_the_honest_one_stays(peer: Peer) -> None:
    agg = FedAvg(remembered_rounds=8)
    agg.contribute(BY_ROUND, f32(4), None, peer(1), i64(1))
    for number in (10**9, 10**9 + 1):
        agg.contribute(BY_ROUND, f32(0), None, peer(66), i64(number))
    with pytest.raises(ComponentError, match="opened 2 rounds"):
        agg.contribute(BY_ROUND, f32(0), None, peer(66), i64(10**9 + 2))
    for number in range(5):
        agg.contribute(BY_ROUND, f32(0), None, peer(70 + number), i64(10**6 + number))
    with pytest.raises(ComponentError, match="8 rounds are open already"):
        agg.contribute(BY_ROUND, f32(0), None, peer(80), i64(10**7))
    agg.contribute(BY_ROUND, f32(6), None, peer(2), i64(1))
    assert mean(agg, BY_ROUND, 1) == [5]


def test_a_round_that_nobody_aggregates_is_given_up(peer: Peer) -> None:
    agg = FedAvg(remembered_rounds=2)
    agg.contribute(BY_ROUND, f32(0), None, peer(66), i64(-5))
    for number in range(1, 20):
        agg.contribute(BY_ROUND, f32(number), None, peer(1), i64(number))
        assert mean(agg, BY_ROUND, number) == [number]
    assert mean(agg, BY_ROUND, -5) == []
    (lost,) = agg.take_given_up()
    assert (lost.contributions, lost.peers) == (1, peer(66)) and "round -5 was never aggregated" in lost.why
    assert not agg.take_given_up(), "it is told once"


def test_rounds_that_were_closed_long_ago_stay_closed(peer: Peer) -> None:
    agg = FedAvg()
    for number in range(1, 200):
        agg.contribute(BY_ROUND, f32(number), None, peer(1), i64(number))
        assert mean(agg, BY_ROUND, number) == [number]
    for number in (1, 100, 199):
        with pytest.raises(ComponentError, match=f"round {number} is over"):
            agg.contribute(BY_ROUND, f32(0), None, peer(2), i64(number))


def test_a_sum_that_the_round_tells_needs_one(peer: Peer) -> None:
    with pytest.raises(ComponentError, match="give round"):
        FedAvg().contribute(BY_ROUND, f32(1), None, peer(1))


def test_only_the_latest_peers_are_remembered_from_round_to_round(peer: Peer) -> None:
    agg = FedAvg(max_peers=4)
    for number in range(30):
        agg.contribute(ONLY, f32(number), None, peer(number), i64(number))
        assert mean(agg, ONLY) == [number], "new peers find room for ever"
    agg.contribute(ONLY, f32(0), None, peer(29), i64(29))
    assert agg.duplicates == 1


@pytest.mark.parametrize("ctx", [ONLY, BY_ROUND, in_execution(3)])
def test_open_sums_come_back(ctx: Any, peer: Peer) -> None:
    agg, again = FedAvg(clip_norm=1e6), FedAvg(clip_norm=1e6)
    agg.contribute(ctx, f32(1, 2), i64(3), peer(1), i64(7))
    agg.contribute(in_execution(9), f32(5), None, peer(1))
    agg.aggregate(in_execution(8))
    agg.aggregate(BY_ROUND, None, i64(6))
    again.restore(agg.serialize())
    for each in (agg, again):
        each.contribute(ctx, f32(50, 60), i64(3), peer(1), i64(7))
        each.contribute(ctx, f32(5, 6), i64(1), peer(2), i64(7))
        result, total = each.aggregate(ctx, None, i64(7) if ctx.cohort < 0 else None)
        assert (result.tolist(), float(total), each.duplicates) == ([2, 3], 4, 1)
        for late, number in ((in_execution(8), None), (BY_ROUND, i64(6))):
            with pytest.raises(ComponentError, match="over"):
                each.contribute(late, f32(1), None, peer(3), number)
        assert mean(each, in_execution(9)) == [5]


def test_damaged_sums_are_refused_and_change_nothing(peer: Peer) -> None:
    agg = FedAvg()
    agg.contribute(in_execution(2), f32(1, 2), None, peer(1), i64(1))
    state = agg.serialize()
    for cut in range(len(state)):
        with pytest.raises(ComponentStateError):
            agg.restore(state[:cut])
    assert mean(agg, in_execution(2)) == [1, 2]


# --- norms --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.floats(0.1, 1e4), st.booleans())
def test_an_update_is_clipped_to_the_norm_and_keeps_its_direction(seed: int, by: float, known: bool) -> None:
    rng = np.random.default_rng(seed)
    sent = rng.standard_normal(40_000).astype(np.float32) if known else None
    update = rng.standard_normal(40_000).astype(np.float32) * np.float32(by)
    base = np.zeros(40_000) if sent is None else sent.astype(np.float64)
    values = (base + update).astype(np.float32)
    agg = FedAvg(clip_norm=10.0)
    agg.contribute(ONLY, values, None, None, None, sent)
    found = agg.aggregate(ONLY)[0].astype(np.float64) - base
    exact = values.astype(np.float64) - base
    norm = float(np.linalg.norm(exact))
    np.testing.assert_allclose(found, exact * min(1.0, 10.0 / norm), atol=2e-6)


def test_what_is_within_the_norm_is_not_touched() -> None:
    agg, x = FedAvg(clip_norm=5.0), f32(3, 4)
    agg.contribute(ONLY, x)
    np.testing.assert_array_equal(agg.aggregate(ONLY)[0], x)


def test_the_largest_numbers_are_clipped_and_do_not_overflow() -> None:
    """The norm of 3e38 is beyond float32, that of 1e300 beyond float64."""
    sent = np.ones(100_000, np.float32)
    agg = FedAvg(clip_norm=1.0)
    agg.contribute(ONLY, np.full(100_000, 3e38, np.float32), i64(2**31), None, None, sent)
    result = agg.aggregate(ONLY)[0]
    assert abs(float(np.linalg.norm(result.astype(np.float64) - 1)) - 1) < 1e-2


def test_sums_of_the_largest_numbers_do_not_overflow(peer: Peer) -> None:
    agg = FedAvg(clip_norm=1e39)
    for number in range(50):
        agg.contribute(ONLY, f32(MAX, -MAX), i64(2**31), peer(number))
    assert agg.aggregate(ONLY)[0].tolist() == [MAX, -MAX]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_element_that_is_not_finite_passes(bad: float, clip: float, dtype: type) -> None:
    values = np.ones(40_000, dtype)
    for at in (0, 20_000, -1):
        poisoned = values.copy()
        poisoned[at] = bad
        with pytest.raises(ComponentError, match="inf or nan"):
            FedAvg(clip_norm=clip).contribute(ONLY, poisoned)
    FedAvg(clip_norm=clip).contribute(ONLY, values * dtype(60_000))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_no_model_computes_with_are_refused(dtype: type, peer: Peer) -> None:
    agg = FedAvg()
    sent = np.ones(40_000, np.float32)
    large = np.full(40_000, 9e17, dtype)
    agg.contribute(ONLY, large, None, peer(1), None, sent)
    large[20_000] = -3e38
    with pytest.raises(ComponentError, match=r"numbers of 3e\+38, beyond 1e\+18.*learning rate of the peer"):
        agg.contribute(ONLY, large, None, peer(2), None, sent)
    assert mean(agg, ONLY)[0] == np.float32(9e17)


def test_a_refusal_says_where_what_was_sent_is_spoilt_already(peer: Peer) -> None:
    with pytest.raises(
        ComponentError, match=r"inf or nan .*it was sent holds numbers of 2e\+17.*not the peer"
    ):
        FedAvg().contribute(ONLY, f32(np.nan, 1), None, peer(1), None, f32(1, -2e17))


# --- other rules --------------------------------------------------------------------------------------------


class Doubled(Combiner):
    """Overflows as soon as something large comes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.values = np.zeros(size, np.float32)

    def add(self, values: np.ndarray, weight: float) -> None:
        self.values = self.values + values * np.float32(2)

    def result(self, total: float) -> np.ndarray:
        return self.values * np.float32(2)

    def clear(self) -> None:
        self.values = np.zeros(self.size, np.float32)

    def save(self) -> list[np.ndarray]:
        return [self.values]

    def restore(self, arrays: list[np.ndarray]) -> None:
        (self.values,) = arrays


class Doubles(CombiningAggregator):
    TYPE_NAME: ClassVar[str] = "test.Doubles"

    def combiner(self, size: int) -> Combiner:
        return Doubled(size)


def test_an_aggregate_that_is_not_finite_is_dropped_and_names_who_was_in_it(peer: Peer) -> None:
    agg = Doubles(clip_norm=1e39)
    agg.contribute(ONLY, f32(1), None, peer(3))
    assert mean(agg, ONLY) == [4]
    agg.contribute(ONLY, f32(1e38), None, peer(1))
    agg.contribute(ONLY, f32(1), None, peer(2))
    with pytest.raises(AggregateNotFinite) as caught:
        agg.aggregate(ONLY)
    assert caught.value.peers == (*peer(1), *peer(2))
    assert str(peer(1)[0]) in str(caught.value)
    assert agg.current_tensor(ONLY).tolist() == [4], "the last one stays"
    agg.contribute(ONLY, f32(2), None, peer(1))
    assert mean(agg, ONLY) == [8], "and the next sum begins with nothing"


@pytest.mark.parametrize(
    ("wrong", "came", "remedy"),
    [
        (np.zeros(2), r"float64\[2\]", "np.asarray"),
        (None, "NoneType", "np.asarray"),
        ([1.0, 2.0], "list", "np.asarray"),
        (np.zeros(1, np.float32), r"float32\[1\]", "one number for each"),
        (np.zeros((2, 1), np.float32), r"float32\[2, 1\]", "one number for each"),
    ],
)
def test_a_combiner_that_gives_anything_else_is_named(peer: Peer, wrong: Any, came: str, remedy: str) -> None:
    agg = Doubles(where="slot 'agg'")
    agg.contribute(ONLY, f32(1, 2), None, peer(1))
    assert mean(agg, ONLY) == [4, 8]
    agg.contribute(ONLY, f32(1, 2), None, peer(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Doubled, "result", lambda self, total: wrong)
        said = rf"slot 'agg': Doubled.result of test.Doubles gave {came}, float32\[2\] is expected"
        with pytest.raises(ComponentError, match=said) as caught:
            agg.aggregate(ONLY)
        assert remedy in caught.value.hint
    assert agg.current_tensor(ONLY).tolist() == [4, 8], "the last one stays"
    agg.contribute(ONLY, f32(3, 1), None, peer(1))
    assert mean(agg, ONLY) == [12, 4], "and the next sum begins with nothing"


def test_a_combiner_that_breaks_its_promise_is_to_blame_and_no_peer(peer: Peer) -> None:
    agg = Doubles(where="slot 'agg'")
    agg.contribute(ONLY, f32(1, 2), None, peer(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Doubled, "always_finite", True)
        patch.setattr(Doubled, "result", lambda self, total: f32(np.nan, 1))
        with pytest.raises(
            ComponentError, match=r"Doubled\.result of test\.Doubles gave inf or nan"
        ) as caught:
            agg.aggregate(ONLY)
    assert not isinstance(caught.value, AggregateNotFinite)


def test_settings_of_the_base_are_those_of_each_rule() -> None:
    agg = Doubles.construct(ComponentEnv("agg", config={"max_weight": 10, "clip_norm": 2}))
    with pytest.raises(ComponentError, match="above max_weight, 10"):
        agg.contribute(ONLY, f32(1), i64(11))
    agg.contribute(ONLY, f32(8))
    assert mean(agg, ONLY) == [8]


def test_a_largest_weight_of_nothing_is_refused_where_it_is_bound() -> None:
    """It would refuse whatever peers send."""
    for key, value, wrong in (("max_weight", 0, "above 0.0"), ("max_weight", -1.0, "above 0.0")):
        found = misfit(FedAvg, {key: value}, complete=True)
        assert found is not None and found.key == key and wrong in found.what
    assert misfit(FedAvg, {"max_weight": 0.001, "clip_norm": 0}, complete=True) is None


def test_an_open_bound_is_told_as_one() -> None:
    rate = Setting.number(0.5, above=0.0, maximum=1.0)
    assert rate.wrong(0) == "must lie in (0.0, 1.0], not 0" and not rate.wrong(1)
    for wrong in ({"minimum": 0.0, "above": 0.0}, {"above": 1.0, "maximum": 1.0}):
        with pytest.raises(ContractError, match="give minimum or above"):
            Setting.number(0.5, **wrong)
