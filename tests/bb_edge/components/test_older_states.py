"""States that earlier versions of components wrote: what can be known of them is taken, the rest is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32

from bb_edge.components import FedAvg, ScalarQuantizer
from bb_edge.components.state import pack_array, pack_state
from bb_edge.roles import ComponentStateError


def sum_of_version_1(count: int) -> bytes:
    fields: dict[str, Any] = {
        "sum": pack_array(np.array([3.0, 4.0])) if count else None,
        "shape": [2],
        "count": count,
        "total": float(count),
        "current": pack_array(f32(1, 2)),
        "seen": [],
        "duplicates": 5,
        "stale": 6,
    }
    return pack_state(FedAvg(), 1, fields)


@pytest.mark.parametrize("count", [0, 3])
def test_an_aggregate_goes_on_and_a_sum_that_nobody_can_place_is_given_up_by_name(count: int) -> None:
    agg = FedAvg()
    agg.restore(sum_of_version_1(count))
    np.testing.assert_array_equal(agg.current_tensor(None), f32(1, 2))
    lost = agg.take_given_up()
    assert [one.contributions for one in lost] == ([count] if count else [])
    assert all("which did not tell its execution or round" in one.why for one in lost)
    again = FedAvg()
    again.restore(agg.serialize())
    np.testing.assert_array_equal(again.current_tensor(None), f32(1, 2))


def test_an_aggregate_of_version_1_is_adopted_without_its_sum() -> None:
    agg = FedAvg()
    adoption = agg.adopt(sum_of_version_1(3))
    assert adoption.taken == ("the last aggregate, 2 numbers",)
    assert adoption.left == ("open sums, 1 of them: of executions or rounds of the old program",)


def test_a_range_that_is_not_the_configured_one_was_trained() -> None:
    for low, trained in ((-1.0, False), (-4.0, True)):
        codec = ScalarQuantizer()
        codec.restore(pack_state(codec, 1, {"low": low, "high": 1.0}))
        taken = ScalarQuantizer().adopt(codec.serialize()).taken
        assert bool(taken) is trained
        assert ScalarQuantizer(-9.0).adopt(pack_state(codec, 1, {"low": low, "high": 1.0})).taken


@pytest.mark.parametrize("version", [0, 3])
def test_other_versions_are_refused_by_number(version: int) -> None:
    codec = ScalarQuantizer()
    with pytest.raises(ComponentStateError, match=rf"it has version {version}, this component reads 1 to 2"):
        codec.restore(pack_state(codec, version, {"low": -1.0, "high": 1.0}))
