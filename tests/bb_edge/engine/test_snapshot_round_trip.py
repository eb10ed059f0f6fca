"""Whatever a node holds stands in the node that its snapshot gives, and rows of another shape are damage.

The nodes are those of tests/aids/busy_nodes.py; what they hold is generated.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from busy_nodes import CALLS, HERE, NODES, SELF, Caller, S
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import body_of, resealed
from texts import compiled

import bb_edge
from bb_edge.engine.snapshot import SnapshotDamagedError
from bb_edge.node import Node
from bb_edge.registry import Registry

TIMES = {
    *("deadline_ns", "expires_ns", "when_ns", "next_try_ns", "asks_patience_until_ns"),
}
"""Facts that are moments; they move with the clock of the node that restores."""

ALWAYS = {
    "links",  # best-effort envelopes end with a life, and durable ones are due at once
    "phases",  # there may be something to ask again
}
CHANGED: dict[str, set[str]] = {
    # Records that are on disk come from there (`Node.adopt_outbox`); asking for the others is counted again.
    "durable_sends": {"outbox", "core"},
    "requests": {"outgoing", "outbound"},  # who has not answered is asked again
    # An answer that was to come is lost: the op runs again, or fails. A result without a written form is too.
    "later_answers": {"executions", "runnable", "parked", "components", "ingress"},
    "bootstraps": {"executions", "runnable", "parked", "components", "bootstraps", "core"},
}
"""Tables of an inspection, and sections of a snapshot, that a restart changes; other tests say how."""


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
    chance, kind = random.Random(seed), nodes.__name__
    for count, moment in enumerate(nodes(lambda *values: chance.choice(values))):
        if count % every:
            continue
        node, now_ns, install = moment
        written = node.snapshot(now_ns)
        restored = install(written, now_ns + shift_ns)
        exact = not shift_ns
        assert_same(moved(held(restored, kind), 0, exact), moved(held(node, kind), shift_ns, exact))
        if not shift_ns:
            old, new = body_of(written), body_of(restored.snapshot(now_ns))
            assert list(old) == list(new)
            for section in old.keys() - ALWAYS - CHANGED.get(kind, set()):
                assert new[section] == old[section], section
        for _ in range(3):
            restored.poll(now_ns + shift_ns + 1)


def test_what_differs_at_every_start_is_in_no_snapshot() -> None:
    def node(incarnation: int, snapshot: bytes | None = None) -> Node:
        settings: dict[str, Any] = {"registry": registry, "seed": 1, "snapshot": snapshot}
        return bb_edge.install(SELF, (HERE,), compiled(CALLS), ["Main"], incarnation=incarnation, **settings)

    registry = Registry()
    registry.register(Caller)
    written = node(1).snapshot(1)
    assert body_of(written)["core"]["ids"] is None
    assert len({node(number, written).epoch for number in (1, 1, 2, 3)}) == 3


# --- damage -------------------------------------------------------------------------------------------

Path = tuple[Any, ...]

ROWS = """
bootstraps.* bootstraps.*.*:length claims claims.* components components.* control.*
core.generators core.generators.* core.ids core.rings.* core.rng
cycle.rounds cycle.rounds.* cycle.ticks.*
executions executions.*.*.bootstrap_of executions.*.*.flags executions.*.*.frames.* executions.*.*.numbers
executions.*.*.frames.*.*.* executions.*.*.parked.* executions.*.*.parked.*.*
executions.*.*.ready.* executions.*.*.ready.*.*
executions.*.*.cause:length executions.*.*.source:length
ingress.accepted.* ingress.entries.* ingress.notices.* ingress.raw.* ingress.completions.*:length
links.links.*.*.* neighbours.addresses.* neighbours.backoff.* neighbours.health.failures.*
neighbours.imposed.* neighbours.peers.* ops.* ops.*.*
outbound.writing.* parked parked.*.* parked.*.*.*
requests requests.*.*.ask requests.*.*.asked.* requests.*.*.by_req_id.*
requests.*.*.collector requests.*.*.frame requests.*.*.gated.* requests.*.*.op requests.*.*.region
requests.*.*.waiting.*:length timers timers.*.*
"""
"""Lists of a known length: one that is shorter, longer, or no list is damage.

`*` stands for any place of a list. `:length` marks rows that may be something else: None, or text.
"""

TABLES = """
control core.rings cycle.ticks executions.*.*.frames executions.*.*.parked executions.*.*.permits
executions.*.*.ready ingress.accepted ingress.completions ingress.entries ingress.notices ingress.raw
links.links links.links.*.* neighbours.addresses neighbours.addresses.* neighbours.backoff
neighbours.health.failures neighbours.imposed neighbours.peers neighbours.rtt neighbours.rtt.* ops
outbound.writing parked.* requests.* requests.*.*.accepted requests.*.*.asked requests.*.*.by_req_id
requests.*.*.gated requests.*.*.settled requests.*.*.waiting timers.*
"""
"""Lists of any length: a row that is none, or no list, is damage."""


def words(text: str) -> list[str]:
    return text.split()


def at(body: Any, path: Path) -> Any:
    for key in path:
        body = body[key]
    return body


def spelled(path: Path) -> str:
    return ".".join("*" if isinstance(key, int) else key for key in path)


def lists_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where lists stand that are not empty."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lists_in(item, (*path, key))
    elif isinstance(value, list):
        if value:
            yield path
        for index, item in enumerate(value):
            yield from lists_in(item, (*path, index))


@functools.cache
def examples() -> dict[str, tuple[bytes, int, Any, Path]]:
    """By spelled path: the first snapshot that has such a list, its time, how to install it, and where."""
    first: dict[str, tuple[bytes, int, Any, Path]] = {}
    for nodes in NODES:
        for seed in range(3):
            chance = random.Random(seed)
            for node, now_ns, install in nodes(lambda *values, chance=chance: chance.choice(values)):
                written = node.snapshot(now_ns)
                for path in lists_in(body_of(written)):
                    first.setdefault(spelled(path), (written, now_ns, install, path))
    return first


def refused(written: bytes, now_ns: int, install: Any, path: Path, value: Any) -> None:
    """The snapshot with this value in this place is damaged, and the error names the section."""
    body = copy.deepcopy(body_of(written))
    at(body, path[:-1])[path[-1]] = value
    with pytest.raises(SnapshotDamagedError) as caught:
        install(resealed(body), now_ns)
    assert caught.value.what.startswith(f"its part {path[0]!r} does not fit: "), caught.value.what


@pytest.mark.parametrize("name", words(ROWS))
def test_a_row_of_another_shape_is_damage(name: str) -> None:
    name, _, only = name.partition(":")
    written, now_ns, install, path = examples()[name]
    row = at(body_of(written), path)
    for changed in (row[:-1], [*row, None], *(() if only else ("odd",))):
        refused(written, now_ns, install, path, changed)


@pytest.mark.parametrize("name", words(TABLES))
def test_a_table_with_a_row_that_is_none_is_damage(name: str) -> None:
    written, now_ns, install, path = examples()[name]
    table = at(body_of(written), path)
    for changed in ([*table, None], "odd"):
        refused(written, now_ns, install, path, changed)


@pytest.mark.parametrize("name", ["executions.*.*", "requests.*.*", "cycle", "neighbours", "ingress"])
def test_a_row_without_one_of_its_names_is_damage(name: str) -> None:
    within = next(known for known in examples() if known.startswith(f"{name}."))
    written, now_ns, install, path = examples()[within]
    path = path[: name.count(".") + 1]
    row = at(body_of(written), path)
    for gone in row:
        others = {key: value for key, value in row.items() if key != gone}
        refused(written, now_ns, install, path, others)


def test_whatever_a_whole_snapshot_says_it_is_taken_or_refused_with_a_typed_error() -> None:
    chance = random.Random(7)
    for written, now_ns, install, path in examples().values():
        if path[0] in ("identity", "slots"):
            continue
        row = at(body_of(written), path)
        body = copy.deepcopy(body_of(written))
        at(body, path[:-1])[path[-1]] = chance.choice([row[::-1], row[:-1], row * 2, {}, 0, -1, None, [None]])
        try:
            install(resealed(body), now_ns)
        except SnapshotDamagedError:
            continue
