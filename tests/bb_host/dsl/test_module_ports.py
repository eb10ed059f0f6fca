"""Network ports of one module, read by its caller and by other modules; and what comes of it on devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.ir import types
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Graph, Module, PeerSelectorSlot, S
from bb_host.build import compile_edge
from bb_host.ir.proto import to_proto

X = np.array([1.0, 2.0], np.float32)


class Reporter(Module):
    """Clients send what they have to the server."""

    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            x = g.input("x", "F32", (2,))
        g.net_out("report", self.servers.sample(g, n=1, after=x), x)


class Pair(Module):
    """The same with two values in one envelope, called `both`."""

    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            x = g.input("x", "F32", (2,))
        g.net_out("report", self.servers.sample(g, n=1, after=x), [x, x + 1.0])


class Wrapped(Module):
    """A module around the one that sends."""

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            x = g.input("x", "F32", (2,))
        g.call(Reporter(), x=x)


class Reader(Module):
    """Reads a port that another module sends to, and answers to who has sent."""

    def body(self, g: Graph) -> None:
        got = g.lookup_output("report")
        g.app_emit("read", got * 10.0)
        back = g.net_out("thanks", got.sender, got)
        g.app_emit("thanked", back)


class WrappedReader(Module):
    def body(self, g: Graph) -> None:
        g.call(Reader())


class PairReader(Module):
    def body(self, g: Graph) -> None:
        a, b = g.lookup_output("report")
        g.app_emit("read", (a + b) * 10.0)


def program(first: Module, *more: Module) -> Module:
    class Main(Module):
        name, home = "Main", "Server"

        def body(self, g: Graph) -> None:
            with g.at("Client"):
                x = g.input("x", "F32", (2,))
            g.call(first, x=x)
            for module in more:
                g.call(module)

    return Main()


def in_the_body(module: Module) -> Module:
    class Main(Module):
        name, home = "Main", "Server"

        def body(self, g: Graph) -> None:
            with g.at("Client"):
                x = g.input("x", "F32", (2,))
            got: Any = g.call(module, x=x)["report"]
            got = got[0] if isinstance(got, tuple) else got
            g.app_emit("read", got * 10.0)
            g.app_emit("who", g.call(module, x=x + 1.0)["report"].sender)

    return Main()


def events(recorded: Any, topic: str, stripped: bool) -> list[Any]:
    """What two devices emit when the client is given X."""
    if stripped:
        data = {a.target: a.data for a in compile_edge(to_proto(recorded), Compiler()).artifacts}
    else:
        data = dict.fromkeys(("Server", "Client"), Compiler().compile(recorded).SerializeToString())
    simulation = Simulation(1)
    nodes = {}
    for target, artifact in data.items():
        nodes[target] = install(PeerId.from_name(target), (), load(artifact), [target], seed=1)
        simulation.add(nodes[target])
    simulation.at(S, lambda: nodes["Client"].invoke("Client", {"x": X}))
    simulation.run(for_ns=5 * S)
    return [event.value for event in simulation.events(topic)]


@pytest.mark.parametrize("stripped", [False, True])
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (program(Reporter(), Reader()), [10, 20]),
        (program(Wrapped(), Reader()), [10, 20]),
        (program(Reporter(), WrappedReader()), [10, 20]),
        (program(Wrapped(), WrappedReader()), [10, 20]),
        (program(Pair(), PairReader()), [30, 50]),
        (in_the_body(Reporter()), [10, 20]),
        (in_the_body(Wrapped()), [10, 20]),
    ],
    ids=[
        "sibling",
        "sender nested",
        "reader nested",
        "both nested",
        "two values",
        "caller",
        "caller, nested",
    ],
)
def test_a_port_is_read_by_another_module(module: Module, expected: list[float], stripped: bool) -> None:
    (read,) = events(module.record(), "read", stripped)
    assert read.tolist() == expected


def test_its_sender_is_read_too() -> None:
    recorded = program(Wrapped(), WrappedReader()).record()
    assert [v.tolist() for v in events(recorded, "thanked", False)] == [[1, 2]]
    assert events(in_the_body(Reporter()).record(), "who", False) == [(PeerId.from_name("Client"),)]


def test_the_value_has_the_type_that_was_sent() -> None:
    seen = []

    class Main(Module):
        home = "Server"

        def body(self, g: Graph) -> None:
            with g.at("Client"):
                x = g.input("x", "F32", (2,))
            call = g.call(Wrapped(), x=x)
            seen.append(call.output("report"))
            seen.append(g.lookup_output("report"))

    Main().record()
    assert [str(value.type) for value in seen] == ["Tensor<F32>[2]"] * 2
    assert seen[0] is seen[1]
    assert seen[0].sender.node is types.PEER_ID_VEC


def test_a_module_that_nobody_reads_is_recorded_as_before() -> None:
    alone, read = program(Reporter()).record(), program(Reporter(), Reader()).record()
    (reporter,) = [f for f in alone.functions if f.name == "Reporter"]
    assert reporter.outputs == ()
    (reporter,) = [f for f in read.functions if f.name == "Reporter"]
    assert len(reporter.outputs) == 2
    (reader,) = [f for f in read.functions if f.name == "Reader"]
    assert reader.inputs == ("report_received", "report_sender")
