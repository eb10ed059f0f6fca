"""A small federation to simulate: a sum that tells who is in it, and the scenario around it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, FedAvg, PresenceSelector
from bb_edge.loading import load
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, Graph, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.simulate import Dealt, Group, Rule, Scenario


class Sums(Module):
    """Rounds in which clients answer with the mean of a batch times the round's number."""

    name, home = "Sums", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    agg = AggregatorSlot("agg", at="Server")
    shard = DataSourceSlot("shard", at="Client")

    def __init__(self, rounds: int | None, asked: int, least: int = 1, fraction: float | None = None) -> None:
        super().__init__()
        self.rounds, self.asked, self.least, self.fraction = rounds, asked, least, fraction

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=20 * MS) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.least, fraction=self.fraction, after=start)
            number = g.onnx.cast(start.round, to=1)
            r = g.request("ask", peers, number, deadline_ns=2 * S)
            x, _ = self.shard.next_batch(g, after=r.value)
            r.reply(g.onnx.reduce_mean(x, axes=[0]) * r.value)
            self.agg.contribute(g, r.answer, peer=r.answer.sender)
            mean, total = self.agg.aggregate(g, after=r.closed)
            g.app_emit(
                "round", g.bundle([start.round, g.onnx.reduce_mean(mean, keepdims=0), total, r.missing])
            )


@pytest.fixture(scope="session")
def rows(tmp_path_factory) -> Path:
    """Rows to deal: x float32 [400, 3], y int64 [400]."""
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    rng = np.random.default_rng(5)
    np.savez(path, x=rng.normal(size=(400, 3)).astype(np.float32), y=np.arange(400, dtype=np.int64) % 4)
    return path


@pytest.fixture(scope="session")
def scenario(rows):
    """`scenario(clients, rounds=…, asked=…, least=…, fraction=…, **fields)`: a server and so many clients."""
    built: dict[tuple[object, ...], tuple[Group, ...]] = {}

    def make(
        clients: int,
        rounds: int | None = 3,
        asked: int = 5,
        least: int = 1,
        fraction: float | None = None,
        **fields: object,
    ) -> Scenario:
        program = (rounds, asked, least, fraction)
        if program not in built:
            compiler = (
                Compiler()
                .bind_peer_selector("clients", PresenceSelector)
                .bind_aggregator("agg", FedAvg)
                .bind_data_source("shard", ArrayDataSource, {"batch_size": 4})
            )
            groups = []
            for artifact in build_edge(Sums(*program), compiler).artifacts:
                peer_class = load(artifact.data).targets[artifact.target].peer_class
                large = peer_class == "Server"
                groups.append(Group(peer_class, artifact.target, artifact.data, 1, large))
            built[program] = tuple(groups)
        groups = tuple(dataclasses.replace(g, count=1 if g.large else clients) for g in built[program])
        settings: dict[str, object] = {
            "seed": 7,
            "dealt": (Dealt("shard", rows, Rule.parse("draw:16")),),
            **fields,
        }
        return Scenario(groups, **settings)  # type: ignore[arg-type]

    return make
