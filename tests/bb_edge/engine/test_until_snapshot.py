"""What waits for a snapshot: it goes on with the first one that was taken after it, in order."""

from __future__ import annotations

from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.net.until_snapshot import SnapshotWish, UntilSnapshot
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId


def a_runtime() -> Runtime:
    return Runtime(NodeConfig(), PeerId.from_name("node"), Drawing(1), Drawing(2))


def ready(until: UntilSnapshot[Any]) -> list[Any]:
    """Takes all that is ready."""
    keys = list(until.ready)
    until.ready.clear()
    return keys


def test_what_waits_goes_on_in_its_order_once_a_later_snapshot_is_written() -> None:
    wish = SnapshotWish(a_runtime())
    until = wish.until("keys")
    for key in ("b", "a", "b", "c"):
        until.add(key)
    assert not until.ready and until.waiting == ("b", "a", "c") and "a" in until
    wish.taken()
    until.add("d")
    until.drop("a")
    until.drop("nobody")
    wish.written()
    assert until.ready
    assert ready(until) == ["b", "c"] and until.waiting == ("d",) and "a" not in until


def test_a_written_snapshot_that_nobody_has_taken_holds_nothing() -> None:
    wish = SnapshotWish(a_runtime())
    until = wish.until("keys")
    until.add(1)
    wish.written()
    assert not until.ready and until.waiting == (1,)


def test_a_snapshot_counts_once() -> None:
    wish = SnapshotWish(a_runtime())
    until = wish.until("keys")
    until.add(1)
    wish.taken()
    wish.written()
    until.add(1)
    wish.written()
    assert ready(until) == [1] and until.waiting == (1,), "none was taken since"
    wish.taken()
    wish.written()
    assert ready(until) == [1] and not until.waiting


def test_the_last_one_that_was_taken_is_the_one_that_is_written() -> None:
    wish = SnapshotWish(a_runtime())
    until = wish.until("keys")
    until.add(1)
    wish.taken()
    until.add(2)
    wish.taken()
    wish.written()
    assert ready(until) == [1, 2]


def test_what_no_snapshot_need_hold_has_its_turn_among_the_others() -> None:
    wish = SnapshotWish(a_runtime())
    until = wish.until("keys")
    until.add(1)
    until.pass_by(2)
    wish.taken()
    wish.written()
    assert ready(until) == [2, 1]


def test_a_snapshot_is_asked_for_once_until_it_is_written_and_again_for_what_came_after_it() -> None:
    runtime = a_runtime()
    wish = SnapshotWish(runtime)
    first, second = wish.until("first"), wish.until("second")
    second.add(1)
    first.add(2)
    wish.want("anything")
    assert runtime.take_steps() == [steps.SnapshotWanted("second")]
    wish.taken()
    wish.written()
    assert not runtime.take_steps(), "it holds all of them"
    first.add(3)
    wish.taken()
    first.add(4)
    second.add(5)
    wish.written()
    assert runtime.take_steps() == [steps.SnapshotWanted("first")] * 2
    wish.want("anything")
    assert not runtime.take_steps(), "that one is on its way"


def test_a_snapshot_is_asked_for_ahead_of_a_key_and_for_another_reason() -> None:
    runtime = a_runtime()
    wish = SnapshotWish(runtime)
    until = wish.until("keys")
    until.want()
    wish.taken()
    wish.written()
    until.want("journal")
    assert runtime.take_steps() == [steps.SnapshotWanted("keys"), steps.SnapshotWanted("journal")]
    assert not until.waiting


def test_where_nothing_is_kept_nothing_waits_and_nobody_is_asked() -> None:
    runtime = a_runtime()
    wish = SnapshotWish(runtime, kept=False)
    until = wish.until("keys")
    until.add(1)
    wish.want("anything")
    wish.taken()
    wish.written()
    assert not until.waiting and not until.ready and 1 not in until and not runtime.take_steps()
    until.pass_by(2)
    assert ready(until) == [2], "what a snapshot of a node with a disk brings goes on all the same"
