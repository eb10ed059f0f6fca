"""Discovery in a graph alone: nodes say who and where they are, and are reached by what they said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Graph, Module, PeerSelectorSlot, S
from bb_host.build import compile_edge
from bb_host.errors import AmbiguousPlacement
from bb_host.ir.proto import to_proto
from tests.aids.refusals import refused


class Discovery(Module):
    """Clients tell the server who they are; it enters them into its address book and writes to them."""

    name, home = "Discovery", "Server"
    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")

    def __init__(self, bundled: bool) -> None:
        self.bundled = bundled

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            go = g.input("go", "Trigger")
            me, where = g.own_peer(after=go), g.own_addresses(after=go)
            name = g.address_of(me)
        to = self.servers.sample(g, n=1, after=go)
        if self.bundled:
            peer, addresses, address = g.unbundle(g.net_out("here", to, g.bundle([me, where, name])))
        else:
            peer, addresses, address = g.net_out("here", to, [me, where, name])  # type: ignore[misc]
        entered = g.address_book_insert_many(peer, addresses)
        both = g.address_book_insert(peer, address, after=entered)
        g.app_emit("known", g.address_book_lookup(peer, after=both))
        if not self.bundled:
            g.app_emit("welcome", g.net_out("back", g.peer_list(peer), g.constant(np.float32(7.0))))


@pytest.mark.parametrize("stripped", [False, True])
@pytest.mark.parametrize("bundled", [False, True])
def test_a_node_is_reached_by_what_it_said_of_itself(bundled: bool, stripped: bool) -> None:
    program = Discovery(bundled).record()
    if stripped:
        data = {a.target: a.data for a in compile_edge(to_proto(program), Compiler()).artifacts}
    else:
        data = dict.fromkeys(("Server", "Client"), Compiler().compile(program).SerializeToString())
    simulation, nodes = Simulation(3), {}
    for target, artifact in data.items():
        nodes[target] = install(PeerId.from_name(target), (), load(artifact), [target], seed=1)
        simulation.add(nodes[target])
    simulation.at(S, lambda: nodes["Client"].invoke("Client", {"go": TRIGGER}))
    simulation.run(for_ns=5 * S)
    client = Address.empty().with_peer(PeerId.from_name("Client"))
    assert [e.value[0] for e in simulation.events("known")] == [client]
    if not bundled:
        assert [float(e.value) for e in simulation.events("welcome")] == [7.0]


class Unknown(Module):
    """A bundle hides of which class the peer in it is."""

    home = "Server"
    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            go = g.input("go", "Trigger")
            packed = g.bundle([g.own_peer(after=go)])
        (peer,) = g.unbundle(g.net_out("here", self.servers.sample(g, n=1, after=go), packed))
        g.app_emit("x", g.net_out("back", g.peer_list(peer), 1.0))  # <-


def test_a_peer_whose_class_nothing_says_is_not_sent_to() -> None:
    with refused(AmbiguousPlacement, "which class its peers", ".sender"):
        Compiler().compile(Unknown())


def peers_of(inputs: dict[str, Any], body: Any) -> list[Any]:
    module = type("Main", (Module,), {"name": "Main", "body": lambda self, g: body(g)})()
    data = Compiler().compile(module).SerializeToString()
    node = install(PeerId.from_name("n"), (), load(data), ["Main"], seed=1)
    node.invoke("Main", inputs)
    return [step.value for step in node.poll(0) if getattr(step, "topic", "") == "y"]


def test_how_many_are_missing_is_a_number_like_any_other() -> None:
    def body(g: Graph) -> None:
        missing = g.peer_count(g.input("peers", "PeerIdVec"))
        g.app_emit("y", g.onnx.where(missing > 1, missing * 10, missing))

    names = [PeerId.from_name(name) for name in "abc"]
    assert [int(v) for v in peers_of({"peers": tuple(names)}, body)] == [30]
    assert [int(v) for v in peers_of({"peers": ()}, body)] == [0]
