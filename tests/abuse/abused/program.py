"""The program that is abused: what it counts can be worked out from who took part."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bb_edge.components import ArrayDataSource, FedAvg, PresenceSelector
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, Module, PeerSelectorSlot, S
from bb_host.build import compile_edge
from bb_host.dsl import Graph


class Ledger(Module):
    """Rounds: each client answers with its own power of two times the round's number, the server averages.

    Meanwhile each client reports `reports` numbers, one way, and tells to whom. Round r of n clients that
    all count ends in [r, mean, n, nobody] with mean * n = r * (2^n - 1); a sum tells who is in it.
    """

    name, home = "Ledger", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    servers = PeerSelectorSlot("servers", peer_class="Server")
    agg = AggregatorSlot("agg", at="Server")
    shard = DataSourceSlot("shard", at="Client")

    def __init__(self, clients: int, rounds: int, reports: int, pause_ms: int, durable: bool) -> None:
        super().__init__()
        self.asked, self.rounds, self.reports = clients, rounds, reports
        self.pause_ms, self.durable = pause_ms, durable

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=self.pause_ms * MS) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.asked if self.durable else 1, after=start)
            number = g.onnx.cast(start.round, to=1)
            deadline = 300 * S if self.durable else 3 * S
            r = g.request("ask", peers, number, deadline_ns=deadline, durable=self.durable)
            own, _ = self.shard.next_batch(g, after=r.value)
            r.reply(g.onnx.reshape(own * r.value, g.constant([1, 1])))
            self.agg.contribute(g, r.answer, peer=r.answer.sender, round=start.round)
            mean, total = self.agg.aggregate(g, after=r.closed)
            g.app_emit(
                "round", g.bundle([start.round, g.onnx.reduce_mean(mean, keepdims=0), total, r.missing])
            )
        with g.at("Client"), g.rounds(self.reports, pause_ns=self.pause_ms * MS) as tick:
            servers = self.servers.sample(g, n=1, min=1, after=tick)
            g.app_emit("tick", g.bundle([tick.round, servers]))
            seen = g.net_out("report", servers, tick.round, durable=self.durable)
        g.incr_metric("reports", seen)
        g.app_emit("report", g.bundle([seen, seen.sender]))


def build(folder: Path, **options: int | bool) -> tuple[Path, Path, list[Path]]:
    """(server's artifact, client's artifact, the clients' data)."""
    compiler = (
        Compiler()
        .bind_peer_selector("clients", PresenceSelector)
        .bind_peer_selector("servers", PresenceSelector)
        .bind_aggregator("agg", FedAvg)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": 0})
    )
    module = Ledger(**options)  # type: ignore[arg-type]
    compile_edge(module, compiler, folder)
    shards = []
    for client in range(module.asked):
        path = folder / f"shard-{client}.npz"
        np.savez(path, x=np.full((1, 1), 2.0**client, np.float32), y=np.zeros(1, np.int64))
        shards.append(path)
    return folder / "Ledger.Server.edge.onnx", folder / "Ledger.Client.edge.onnx", shards
