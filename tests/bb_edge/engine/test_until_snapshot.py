"""What waits for a snapshot: it goes on with the first one that was taken after it, in order."""

from __future__ import annotations

from bb_edge.engine.net.until_snapshot import UntilSnapshot


def test_what_waits_goes_on_in_its_order_once_a_later_snapshot_is_written() -> None:
    until: UntilSnapshot[str] = UntilSnapshot()
    for key in ("b", "a", "b", "c"):
        until.add(key)
    assert not until.ready and list(until.waiting) == ["b", "a", "c"]
    until.taken()
    until.add("d")
    until.drop("a")
    until.drop("nobody")
    until.written()
    assert list(until.ready) == ["b", "c"] and list(until.waiting) == ["d"]


def test_a_written_snapshot_that_nobody_has_taken_holds_nothing() -> None:
    until: UntilSnapshot[int] = UntilSnapshot()
    until.add(1)
    until.written()
    assert not until.ready and list(until.waiting) == [1]


def test_a_snapshot_counts_once() -> None:
    until: UntilSnapshot[int] = UntilSnapshot()
    until.add(1)
    until.taken()
    until.written()
    until.add(1)
    until.written()
    assert list(until.ready) == [1] and list(until.waiting) == [1], "none was taken since"
    until.taken()
    until.written()
    assert list(until.ready) == [1, 1] and not until.waiting


def test_the_last_one_that_was_taken_is_the_one_that_is_written() -> None:
    until: UntilSnapshot[int] = UntilSnapshot()
    until.add(1)
    until.taken()
    until.add(2)
    until.taken()
    until.written()
    assert list(until.ready) == [1, 2]
