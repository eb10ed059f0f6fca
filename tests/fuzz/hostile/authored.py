"""The sound programs that mutations start from, as an author writes them. Needs the onnx package."""

from __future__ import annotations

import numpy as np

from bb_edge.components import FedAvg, PresenceSelector
from bb_host import AggregatorSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.dsl import Graph

MS = 1_000_000


class Small(Module):
    """A bit of everything: rounds with a request, a reply, a report, a graph of the backend, an If."""

    name, home = "Small", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    servers = PeerSelectorSlot("servers", peer_class="Server")
    agg = AggregatorSlot("agg", at="Server")

    def __init__(self, durable: bool) -> None:
        super().__init__()
        self.durable = durable

    def body(self, g: Graph) -> None:
        with g.rounds(None, pause_ns=20 * MS) as start:
            peers = self.clients.sample(g, n=3, min=1, after=start)
            row = g.onnx.mul(g.constant(np.ones((1, 3), np.float32)), g.onnx.cast(start.round, to=1))
            r = g.request("ask", peers, row, deadline_ns=20 * S, durable=self.durable)
            weights = g.constant(np.eye(3, dtype=np.float32))
            high = g.onnx.reduce_mean(r.value, keepdims=0) > 0.0
            r.reply(g.onnx.if_(high, lambda h: h.onnx.relu(r.value) @ weights, lambda h: r.value - 1.0))
            self.agg.contribute(g, r.answer, peer=r.answer.sender, round=start.round)
            mean, total = self.agg.aggregate(g, after=r.closed)
            g.app_emit("round", g.bundle([start.round, mean, total, r.missing]))
        with g.at("Client"), g.rounds(None, pause_ns=30 * MS) as tick:
            servers = self.servers.sample(g, n=1, min=1, after=tick)
            seen = g.net_out("report", servers, tick.round, durable=self.durable)
        g.app_emit("report", seen)


class Net(Module):
    """Layers of known shapes: one graph of the backend, with a memory plan."""

    name = "Net"

    def body(self, g: Graph) -> None:
        x = g.input("x", np.float32, (2, 3))
        weights = g.constant(np.eye(3, dtype=np.float32))
        g.output("y", g.onnx.softmax(g.onnx.relu(x @ weights) @ weights, axis=1))


def net() -> dict[str, bytes]:
    (artifact,) = build_edge(Net(), Compiler()).artifacts
    return {"net": artifact.data}


def small(durable: bool) -> dict[str, bytes]:
    """Edge artifacts by target, and the portable model."""
    compiler = (
        Compiler()
        .bind_peer_selector("clients", PresenceSelector)
        .bind_peer_selector("servers", PresenceSelector)
        .bind_aggregator("agg", FedAvg)
    )
    build = build_edge(Small(durable), compiler)
    portable = compiler.compile(Small(durable).build())
    data = portable if isinstance(portable, bytes) else portable.SerializeToString()
    return {"portable": data, **{a.target: a.data for a in build.artifacts}}
