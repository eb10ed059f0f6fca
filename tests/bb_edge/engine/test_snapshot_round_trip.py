"""Whatever a node holds stands in the node that its snapshot gives, and that one goes on as the first would.

The nodes are those of tests/aids/busy_nodes.py; what they hold is generated. What a restart changes on
purpose stands in test_restart_*.py, and damage in test_snapshot_refused.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from busy_components import CALLS, Caller
from busy_nodes import NODES
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import HERE, SELF
from plays import Moment, played
from snapshots import body_of, look
from texts import compiled
from times import S

from bb_edge import install
from bb_edge.node import Node
from bb_edge.registry import Registry

TIMES = {
    "until_ns",
    *("deadline_ns", "expires_ns", "when_ns", "next_try_ns", "asks_patience_until_ns"),
}
"""Facts that are moments; they move with the clock of the node that restores."""

ALWAYS = {
    "links",  # best-effort envelopes end with a life, and durable ones are due at once
    "phases",  # there may be something to ask again
    "sources",  # what was held counts as taken, and nothing is owed twice
}
CHANGED: dict[str, set[str]] = {
    # Records that are on disk come from there (`Node.adopt_outbox`); asking for the others is counted again.
    "durable_sends": {"outbox", "core", "outbound"},
    "replayed_journal": {"outbox", "core", "outbound"},
    "requests": {"outgoing", "outbound"},  # who has not answered is asked again
    "rounds": {"outgoing", "outbound"},
    # An answer that was to come is lost: the op runs again, or fails. A result without a written form is too.
    "later_answers": {"executions", "runnable", "parked", "components", "ingress"},
    "bootstraps": {"executions", "runnable", "parked", "components", "bootstraps", "core"},
}
"""Tables of an inspection, and sections of a snapshot, that a restart changes; other tests say how."""

LOSES = {"durable_sends", "replayed_journal", "later_answers", "bootstraps"}
"""Nodes that do not say the same after a restart: answers that were to come later are lost with it."""


def moved(value: Any, by_ns: int, exact: bool, name: str = "") -> Any:
    """An inspection on another clock; unless `exact`, without descriptions, which may hold times."""
    if isinstance(value, dict):
        return {key: moved(item, by_ns, exact, key) for key, item in value.items() if exact or key != "with"}
    if isinstance(value, list):
        return [moved(item, by_ns, exact) for item in value]
    return value + by_ns if name == "now_ns" or (name in TIMES and value) else value


def held(node: Node, kind: str) -> dict[str, Any]:
    """What the node holds, but what a restart changes."""
    tables = asdict(node.inspect())
    journal = tables["journal"]  # what is held counts as accepted: the record on disk is older than that
    accepted = [*journal["accepted"], *({**row, "token": 0} for row in journal.pop("held"))]
    journal["accepted"] = [{**row, "token": 0} for row in accepted]
    return {name: table for name, table in tables.items() if name not in ALWAYS | CHANGED.get(kind, set())}


def assert_same(new: dict[str, Any], old: dict[str, Any]) -> None:
    """Names the table that differs."""
    for name, table in old.items():
        assert new[name] == table, name


@pytest.mark.parametrize("nodes", NODES, ids=lambda nodes: nodes.__name__)
@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32), every=st.integers(1, 9), shift_ns=st.sampled_from([0, 0, 50 * S]))
def test_all_that_a_node_holds_comes_back(nodes: Any, seed: int, every: int, shift_ns: int) -> None:
    kind, moments = nodes.__name__, 0

    def visit(moment: Moment) -> None:
        nonlocal moments
        moments += 1
        if moments % every:
            return
        node, now_ns, install = moment
        written = node.snapshot(now_ns)
        restored = install(written, now_ns + shift_ns)
        exact = not shift_ns
        assert_same(moved(held(restored, kind), 0, exact), moved(held(node, kind), shift_ns, exact))
        if not shift_ns:
            old, new = body_of(written), body_of(restored.snapshot(now_ns))
            assert list(old) == list(new)
            new["core"]["counters"].pop("requests.repeated", None)  # those who are asked again are counted
            for section in old.keys() - ALWAYS - CHANGED.get(kind, set()):
                assert new[section] == old[section], section
        for _ in range(3):
            restored.poll(now_ns + shift_ns + 1)

    played(nodes, seed, visit)


@pytest.mark.parametrize(
    "nodes", [nodes for nodes in NODES if nodes.__name__ not in LOSES], ids=lambda nodes: nodes.__name__
)
@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32), every=st.integers(1, 4))
def test_a_node_that_comes_back_goes_on_as_if_nothing_had_happened(nodes: Any, seed: int, every: int) -> None:
    moments = births = 0

    def visit(moment: Moment) -> Node | None:
        nonlocal moments, births
        moments += 1
        if moments % every:
            return None
        births += 1
        return moment.install(moment.node.snapshot(moment.now_ns), moment.now_ns)

    first, again = played(nodes, seed, lambda moment: None), played(nodes, seed, visit)
    assert first.said and births
    # The order in which answers arrive is that of asking, and who is asked again is asked last.
    order = sorted if nodes.__name__ in ("requests", "rounds") else list
    assert order(again.said) == order(first.said)
    assert again.sent == first.sent
    ends = [held(play.node, nodes.__name__) for play in (again, first)]
    for end in ends:
        del end["node"]["now_ns"]  # there may have been more polls
        if nodes.__name__ == "requests":  # who was asked again a moment ago is not blamed
            end["peers"] = {peer: {**row, "unanswered": 0} for peer, row in end["peers"].items()}
    assert_same(*ends)


def test_the_nodes_hold_something_of_everything() -> None:
    """So that what the tests above compare is there to be compared."""
    found: set[str] = set()

    def visit(moment: Moment) -> None:
        seen = look(moment.node)
        for one in seen["executions"]:
            found.update(name for name, value in one.items() if value not in (None, 0, False, "", [], (), {}))
            found.update(f"{why} {count}" for why, count in one["holds"].items())
            for row in one["frames"]:
                found.update(f"frame {name}" for name, value in row.items() if value)
        for one in seen["cohorts"]:
            found.update(f"cohort {name}" for name, value in one.items() if value)
            found.update("no collector yet" for _ in (1,) if one["collector"] is None)

    for nodes in NODES:
        for seed in range(3):
            played(nodes, seed, visit)
    expected = {
        *("ready", "source", "cause", "deadline_ns", "bytes_held", "child 1", "parent", "request"),
        *("acknowledged", "asked_somebody", "requests_made", "permit 2", "request 2", "requests_over"),
        *("frame parent", "frame children", "frame caller", "frame call", "frame passes_on"),
        "no collector yet",
        *(f"cohort {name}" for name in ("answers", "waiting", "running", "collector", "ask")),
        *(f"cohort {name}" for name in ("settled", "accepted", "numbers", "timer", "reason")),
    }
    assert expected <= found, expected - found


def test_what_differs_at_every_start_is_in_no_snapshot() -> None:
    def node(incarnation: int, snapshot: bytes | None = None) -> Node:
        settings: dict[str, Any] = {"registry": registry, "seed": 1, "snapshot": snapshot}
        return install(SELF, (HERE,), compiled(CALLS), ["Main"], incarnation=incarnation, **settings)

    registry = Registry()
    registry.register(Caller)
    written = node(1).snapshot(1)
    assert body_of(written)["core"]["ids"] is None
    assert len({node(number, written).epoch for number in (1, 1, 2, 3)}) == 3
