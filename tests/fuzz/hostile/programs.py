"""Sound programs and envelopes for mutations to start from: what the real compiler and real nodes make."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.components import FedAvg, PresenceSelector
from bb_edge.engine import steps
from bb_edge.transport.in_process import Simulation
from bb_host import AggregatorSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph
from bb_host.edge import build_edge

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


@functools.cache
def net() -> bytes:
    (artifact,) = build_edge(Net(), Compiler()).artifacts
    return artifact.data


@functools.cache
def artifacts(durable: bool = False) -> dict[str, bytes]:
    """Edge artifacts by target, and the portable model under ''."""
    compiler = (
        Compiler()
        .bind_peer_selector("clients", PresenceSelector)
        .bind_peer_selector("servers", PresenceSelector)
        .bind_aggregator("agg", FedAvg)
    )
    build = build_edge(Small(durable), compiler)
    portable = compiler.compile(Small(durable).build())
    data = portable if isinstance(portable, bytes) else portable.SerializeToString()
    return {"": data, **{a.target: a.data for a in build.artifacts}}


def peer(name: str) -> PeerId:
    return PeerId.from_name(name)


def make_node(target: str, name: str, durable: bool = False, **more: Any) -> Any:
    """A node of one target with small budgets."""
    config = NodeConfig(max_executions=4, max_peers=64, ingress_entries=64, ingress_bytes=1 << 20)
    return install(
        peer(name), (), load(artifacts(durable)[target]), [target], config, seed=7, durable=durable, **more
    )


@functools.cache
def traffic() -> tuple[tuple[str, str, bytes], ...]:
    """(sender, receiver, envelope) of what a server and three clients say in their first rounds."""
    found: list[tuple[str, str, bytes]] = []
    simulation = Simulation(seed=3)
    names = {"server": "Server", "client-0": "Client", "client-1": "Client"}
    by_peer = {peer(name): name for name in names}
    for name, target in names.items():
        node = make_node(target, name)
        poll = node.poll

        def listening(now_ns: int, name: str = name, poll: Any = poll) -> list[steps.EngineStep]:
            said: list[steps.EngineStep] = poll(now_ns)
            found.extend(
                (name, by_peer[s.peer], bytes(s.payload)) for s in said if isinstance(s, steps.SendEnvelope)
            )
            return said

        node.poll = listening
        simulation.add(node)
    simulation.run(for_ns=400 * MS)
    return tuple(found)
