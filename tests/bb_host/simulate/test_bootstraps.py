"""Bootstraps of simulated nodes run as those of devices do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, FlatIndex, PresenceSelector
from bb_host import Compiler, DataSourceSlot, IndexSlot, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.dsl import Graph
from bb_host.errors import RoundsInVain, ScenarioError
from bb_host.simulate import Group, Outcome, Scenario, simulate


class Search(Module):
    """A front asks shards for what is near; each has filled its index in its bootstrap."""

    home = "Front"
    shards = PeerSelectorSlot("shards", PresenceSelector, peer_class="Shard")
    vectors = DataSourceSlot("vectors", ArrayDataSource, {"shuffle": False}, at="Shard")
    index = IndexSlot("index", FlatIndex, {"dim": 4}, at="Shard")

    def bootstrap(self, g: Graph) -> None:
        with g.at("Shard"):
            x, _ = self.vectors.next_batch(g)
            g.app_emit("filled", g.onnx.size(x), after=self.index.add(g, x))

    def body(self, g: Graph) -> None:
        with g.rounds(2) as start:
            query = g.constant(np.zeros((1, 4), np.float32))
            peers = self.shards.sample(g, n=9, min=1, after=start)
            r = g.request("near", peers, query, deadline_ns=2 * S)
            _, distances = self.index.search(g, r.value, k=2)
            r.reply(distances)
            g.app_emit("near", r.answer)


class Filled(Module):
    """A node that fills an index before its rounds."""

    home = "Alone"
    vectors = DataSourceSlot("vectors", ArrayDataSource, {"shuffle": False})
    index = IndexSlot("index", FlatIndex, {"dim": 4})

    def bootstrap(self, g: Graph) -> None:
        x, _ = self.vectors.next_batch(g)
        self.index.add(g, x)

    def body(self, g: Graph) -> None:
        with g.rounds(2) as start:
            _, distances = self.index.search(g, g.constant([[0.0, 0, 0, 0]]), k=1, after=start)
            g.app_emit("near", distances)


class Asked(Filled):
    """Its bootstrap takes an input."""

    def bootstrap(self, g: Graph) -> None:
        x, _ = self.vectors.next_batch(g)
        self.index.add(g, x * g.input("scale", "F32", ()))


def run(module: Module, tmp_path: Path, workers: int = 1, columns: int = 4, **counts: int) -> Outcome:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.arange(1, 1 + 5 * columns, dtype=np.float32).reshape(5, columns))
    data = {a.target: a.data for a in build_edge(module, Compiler()).artifacts}
    groups = tuple(Group(name, name, data[name], counts.get(name, 1)) for name in data)
    settings = {"vectors": {"path": str(path), "batch_size": 5}}
    return simulate(Scenario(groups, settings=settings), workers, "here" if workers == 1 else "processes")


def test_what_a_bootstrap_has_filled_is_there_when_peers_ask(tmp_path: Path) -> None:
    one = run(Search(), tmp_path, Shard=3)
    filled = [(event.at_ns, event.value) for event in one.events if event.topic == "filled"]
    near = [event.value for event in one.events if event.topic == "near"]
    assert filled == [(0, 20)] * 3 and len(near) == 6 and one.awake == 4
    np.testing.assert_allclose(near, [[[np.sqrt(30), np.sqrt(174)]]] * 6, rtol=1e-5)
    assert run(Search(), tmp_path, 2, Shard=3).trace == one.trace


def test_rounds_wait_for_the_bootstrap_of_what_they_use(tmp_path: Path) -> None:
    assert [event.topic for event in run(Filled(), tmp_path).events] == ["near", "near"]


def test_a_bootstrap_that_fails_time_after_time_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RoundsInVain, match="bootstraps of alone failed 10 times") as refused:
        run(Filled(), tmp_path, columns=3)
    assert "BootstrapFailed" in refused.value.hint


def test_a_bootstrap_with_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a simulation gives bootstraps no inputs"):
        run(Asked(), tmp_path)
