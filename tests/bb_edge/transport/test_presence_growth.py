"""How many messages it costs that many clients and one server come up, counted at the broker."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pytest
from compiled_programs import compiled_once
from components import forgotten_components

from bb_edge.loading import load

pytestmark = pytest.mark.broker

ORDINARY = "a protocol slot of ordinary ops"


def _compiled() -> Mapping[str, bytes]:
    """A server asks, and a component of the author, which nobody else may call, answers at the clients."""
    from bb_edge.extend import OpTable, ProtocolComponent, register
    from bb_host import Graph, Module, PeerSelectorSlot, ProtocolSlot, S
    from bb_host.build import build_edge

    class Scale(ProtocolComponent):
        TYPE_NAME = "test.Scale"

        @classmethod
        def atomic_opset(cls):
            table = OpTable("test.scale")
            table.op("Scale", "x:Tensor", "y:Tensor")
            return table.opset()

        @classmethod
        def construct(cls, env):
            return cls()

        def scale(self, ctx, x):
            return x

    class Scaled(Module):
        name, home = "Scaled", "Server"
        clients = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client")
        scale = ProtocolSlot("scale", Scale, at="Client")

        def body(self, g: Graph) -> None:
            peers = self.clients.sample(g, n=2, after=g.interval(S))
            request = g.request("ask", peers, g.constant(np.float32(1.0)), deadline_ns=S)
            request.reply(self.scale.scale(g, request.value))
            g.app_emit("x", request.answer)

    with forgotten_components():
        register(Scale)
        return {artifact.target: artifact.data for artifact in build_edge(Scaled(), None).artifacts}


@functools.cache
def heard(program: str) -> dict[str, tuple[str, ...] | None]:
    """By class, the classes that its nodes hear."""
    if program != ORDINARY:
        return {"Client": ("Server",), "Server": ("Client",)}
    made = compiled_once("presence-growth", _compiled)
    return {name: load(data).targets[name].hears for name, data in made.items()}


@pytest.mark.parametrize("program", ["no component", ORDINARY])
@pytest.mark.parametrize("clients", [10, 20, 40])
def test_messages_at_the_start_grow_with_the_clients(
    start_broker, loop, doors, url, clients, program
) -> None:
    """A client hears servers, the server hears clients, and each hears itself: no client hears another."""
    broker = start_broker("mosquitto", config=["log_dest file {folder}/log", "log_type all"])
    nodes = [doors(f"client-{number}") for number in range(clients)]
    server = doors("server")
    server.classes, server.hears = ("Server",), heard(program)["Server"]
    for node in nodes:
        node.hears = heard(program)["Client"]
    transports = [loop.join(node, url(broker)) for node in (*nodes, server)]

    def told() -> bool:
        counts = [transport.counters["presences"] for transport in transports]
        return counts == [2] * clients + [clients + 1]

    loop.until(told, 60)
    log = (broker.folder / "log").read_text()
    assert log.count("Received PUBLISH") == clients + 1
    assert log.count("Sending PUBLISH") == 3 * clients + 1
