"""The benchmarks' own arithmetic, and their page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.measuring import ROOT, UNPACKED_GOAL, WHEEL_GOAL, Row, in_turns, table
from benchmarks.page import markdown, update
from benchmarks.run import NAMES


def test_sides_take_turns_and_the_first_one_changes() -> None:
    order: list[str] = []

    def side(name: str, value: float):
        def sample() -> float:
            order.append(name)
            return value

        return sample

    assert in_turns({"a": side("a", 1.0), "b": side("b", 2.0)}, rounds=4, seconds=60) == {"a": 1.0, "b": 2.0}
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_two_rounds_run_even_without_time() -> None:
    calls: list[int] = []
    in_turns({"a": lambda: calls.append(1) or 0.0}, rounds=50, seconds=0.0)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("x", {"a": 3.0}, "ms", 1.2, 1.3), True),
        (Row("x", {"a": 3.0}, "ms", 1.4, 1.3), False),
        (Row("x", {"a": 3.0}, "ms", None, 2.0), False),
        (Row("x", {"a": 3.0}, "/s", 0.9, 0.8, at_least=True), True),
        (Row("x", {"a": 3.0}, "/s", 0.7, 0.8, at_least=True), False),
        (Row("x", {"a": 3.0}, "ms"), None),
    ],
)
def test_goals_are_ceilings_or_floors(row: Row, met: bool | None) -> None:
    assert row.met is met
    assert row.as_json()["met"] is met
    assert ("MISSED" in table([row])) is (met is False)
    assert ("missed" in markdown([row])) is (met is False)


def test_the_page_has_a_place_for_every_benchmark(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert set(re.findall(r"<!-- (\w+) -->", text)) == {*NAMES, "machine", "end"}
    page = tmp_path / "benchmarks.md"
    page.write_text(text)
    update(page, {"wire": [Row("round trip", {"a": 1.0}, "ms")]}, {"cores": "2"})
    changed = page.read_text()
    assert "| round trip | a 1 ms |" in changed
    assert "cores 2" in changed
    assert changed.count("<!-- end -->") == text.count("<!-- end -->")


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="0 places"):
        update(page, {}, {"cores": "2"})


def test_the_page_has_the_bounds_of_the_wheel_that_its_test_has():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for what, goal in (("wheel", WHEEL_GOAL), ("wheel, unpacked", UNPACKED_GOAL)):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {what} |")]
        assert f"| ≤ {goal:g} | met |" in row
