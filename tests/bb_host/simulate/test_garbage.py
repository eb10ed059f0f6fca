"""Garbage in circles goes between windows: what is new each time, what is older when much has come."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from bb_host.simulate import garbage
from bb_host.simulate.garbage import BetweenWindows


@pytest.fixture
def between() -> Iterator[BetweenWindows]:
    """This process's collector; afterwards Python's own timing holds again."""
    try:
        yield BetweenWindows()
    finally:
        gc.enable()


class Knot:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.myself: Knot | None = self


def test_what_a_window_leaves_is_freed_behind_it_and_not_before(between: BetweenWindows) -> None:
    left = weakref.ref(Knot())
    kept = [[number] for number in range(100_000)]  # at which Python would collect by itself
    assert left() is not None and kept
    between.collect()
    assert left() is None


def test_what_became_garbage_later_is_freed_when_objects_have_doubled(
    between: BetweenWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "AT_LEAST", 0)
    knot = Knot()
    left = weakref.ref(knot)
    between.collect()
    del knot
    between.collect()
    assert left() is not None
    kept = [[number] for number in range(2 * len(gc.get_objects()))]
    between.collect()
    assert left() is None and len(kept) > 0
