"""docs/scale.md shows what `benchmarks.scale` reckons, and the reckoning follows its unit costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import FLEETS, Costs, Fleet, Tier, on_page, rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"


def test_the_page_has_the_table_of_today() -> None:
    text = PAGE.read_text()
    assert on_page(text) == text, "python -m benchmarks.scale --page docs/scale.md writes it anew"


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the table"):
        on_page("# Scale\n")


def test_each_fleet_asks_one_device_in_a_hundred_at_most() -> None:
    assert [fleet.devices for fleet in FLEETS] == [10**3, 10**5, 10**7]
    assert [fleet.asked * 100 for fleet in FLEETS] == [10**3, 10**5, 10**7]


def test_tiers_ask_all_that_stand_between() -> None:
    fleet = Fleet("two by three", (Tier(1, 2, 2), Tier(2, 3, 3)))
    assert (fleet.devices, fleet.asked, fleet.requests) == (6, 6, 8)
    assert fleet.publishes == 2 * 6 + 6 * 4


def test_another_unit_cost_changes_its_rows_alone() -> None:
    fleet = FLEETS[0]
    now = {what: figure(fleet) for what, figure in rows(Costs()).items()}
    twice = replace(Costs(), peer_bytes=2 * Costs().peer_bytes)
    then = {what: figure(fleet) for what, figure in rows(twice).items()}
    assert {what for what in now if now[what] != then[what]} == {"a parent's table of peers, RAM"}
    assert then["a parent's table of peers, RAM"] == "8.2 MB"
