"""Whose rows are dealt to whom, where several classes have slots with data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, PresenceSelector
from bb_host import Compiler, DataSourceSlot, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.dsl import Graph
from bb_host.errors import ScenarioError
from bb_host.simulate import Dealt, Group, Rule, Scenario, simulate


class Counted(Module):
    """Boards of two kinds count their rows, those of a slot of their own and those of a shared one."""

    home = "Server"
    smalls = PeerSelectorSlot("smalls", PresenceSelector, peer_class="Small")
    bigs = PeerSelectorSlot("bigs", PresenceSelector, peer_class="Big")
    own = DataSourceSlot("own", ArrayDataSource, at="Big")
    every = DataSourceSlot("every", ArrayDataSource)
    test = DataSourceSlot("test", ArrayDataSource, at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(1) as start:
            small = g.request(
                "small", self.smalls.sample(g, n=9, min=1, after=start), start.round, deadline_ns=S
            )
            small.reply(self.every.num_samples(g, after=small.value))
            g.app_emit("small", small.answer)
            big = g.request("big", self.bigs.sample(g, n=9, min=1, after=start), start.round, deadline_ns=S)
            big.reply([self.every.num_samples(g, after=big.value), self.own.num_samples(g)])
            g.app_emit("big", g.bundle(list(big.answer)))
            g.app_emit("test", self.test.num_samples(g, after=(small.closed, big.closed)))


def counts(path: Path, rules: dict[str, str], smalls: int = 5, bigs: int = 2) -> dict[str, list[object]]:
    data = {a.target: a.data for a in build_edge(Counted(), Compiler()).artifacts}
    groups = [
        Group(name, name, data[name], n) for name, n in (("Server", 1), ("Small", smalls), ("Big", bigs))
    ]
    dealt = tuple(Dealt(slot, path, Rule.parse(rule)) for slot, rule in rules.items())
    found: dict[str, list[object]] = {"small": [], "big": [], "test": []}
    for event in simulate(Scenario(tuple(groups), dealt=dealt), 1, "here").events:
        found[event.topic].append(event.value)
    return found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.zeros((42, 1), np.float32), who=np.arange(42) % 2)
    return path


def test_a_slot_is_dealt_among_the_nodes_that_have_it(rows: Path) -> None:
    """Also where another class has more nodes, and where two classes share the slot."""
    found = counts(rows, {"own": "iid", "every": "iid", "test": "iid"})
    assert found == {"small": [6] * 5, "big": [[6, 21]] * 2, "test": [42]}
    found = counts(rows, {"own": "column:who", "every": "same", "test": "draw:9"})
    assert found == {"small": [42] * 5, "big": [[42, 21]] * 2, "test": [9]}


def test_too_few_values_for_the_nodes_that_have_the_slot(rows: Path) -> None:
    with pytest.raises(ScenarioError, match="'who' has 2 different values, for 3 clients"):
        counts(rows, {"own": "column:who", "every": "same", "test": "same"}, bigs=3)
