"""Whose presence each target of a program needs, as its passport says."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.extend import register
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Opset, Table
from bb_edge.roles import ProtocolComponent
from bb_host import Compiler, Graph, Module, PeerSelectorSlot, ProtocolSlot, S
from bb_host.build import compile_edge
from bb_host.diagnostics import ProgramWarning
from bb_host.ir.proto import to_proto


class Reports(Module):
    """Leaves report one way to a hub; a watcher is asked by nobody."""

    name, home = "Reports", "Leaf"
    hubs = PeerSelectorSlot("hubs", "bb.PresenceSelector", peer_class="Hub")

    def body(self, g: Graph) -> None:
        tick = g.interval(S)
        g.net_out("report", self.hubs.sample(g, n=1, after=tick), g.constant(np.float32(1.0)))


class Read(Reports):
    """The same, and the hub does something with the report."""

    name = "Read"

    def body(self, g: Graph) -> None:
        tick = g.interval(S)
        got = g.net_out("report", self.hubs.sample(g, n=1, after=tick), g.constant(np.float32(1.0)))
        g.app_emit("report", got)


class Gossip(Module):
    """One class, which it does not name."""

    name = "Gossip"
    peers = PeerSelectorSlot("peers", "bb.PresenceSelector")

    def body(self, g: Graph) -> None:
        tick = g.interval(S)
        g.app_emit("x", g.net_out("x", self.peers.sample(g, n=2, after=tick), g.constant(np.float32(1.0))))


class Found(Module):
    """The peers come from a component that calls its like on other nodes."""

    name, home = "Found", "Client"
    known = PeerSelectorSlot("known", "bb.Cyclon", {}, peer_class="Client")

    def body(self, g: Graph) -> None:
        tick = g.interval(S)
        g.app_emit("x", g.net_out("x", self.known.sample(g, n=1, after=tick), g.constant(np.float32(1.0))))


class Open(Module):
    """Peers that the host names: an input's name is not a class of this program."""

    name, home = "Open", "Sensor"

    def body(self, g: Graph) -> None:
        to = g.input("to", "PeerIdVec")
        g.wire.send("out", to, g.constant(np.float32(1.0)))


class Taking(Module):
    """A port for another program, whose class nobody names."""

    name, home = "Taking", "Hub"

    def body(self, g: Graph) -> None:
        value, _sender = g.wire.recv("in", "F32")
        g.app_emit("x", value)


class Alone(Module):
    name = "Alone"

    def body(self, g: Graph) -> None:
        g.app_emit("x", g.input("x", "F32"))


@register
class Calls(ProtocolComponent):
    """A component of the author that others may call."""

    TYPE_NAME: ClassVar[str] = "test.Calls"

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op("Count", "x:Tensor", "y:Tensor")
        table.op("Told", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    @classmethod
    def construct(cls, env: object) -> Calls:
        return cls()

    def count(self, ctx: object, x: object) -> object: ...

    def told(self, ctx: object, sender: object, payload: object) -> None: ...


@register
class Counts(Calls):
    """One with an op that nobody else calls."""

    TYPE_NAME: ClassVar[str] = "test.Counts"

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op("Count", "x:Tensor", "y:Tensor")
        return table.opset()


class Counted(Module):
    """A server asks, and the component of the author answers."""

    name, home = "Counted", "Server"
    clients = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client")

    def __init__(self, kind: type[ProtocolComponent], peer_class: str | None = None) -> None:
        self.counts = ProtocolSlot("counts", kind, peer_class=peer_class, at="Client")

    def body(self, g: Graph) -> None:
        tick = g.interval(S)
        clients = self.clients.sample(g, n=1, after=tick)
        request = g.request("ask", clients, g.constant(np.float32(1.0)), deadline_ns=S)
        request.reply(self.counts.count(g, request.value))
        g.app_emit("x", request.answer)


def hears(module: Module) -> dict[str, tuple[str, ...] | None]:
    """By target, from the portable artifact and from the stripped ones, which agree."""
    program = to_proto(module.record())
    whole = load(Compiler().compile(program).SerializeToString())
    found = {name: target.hears for name, target in whole.targets.items()}
    stripped = [load(a.data) for a in compile_edge(program, Compiler()).artifacts]
    assert found == {name: t.hears for one in stripped for name, t in one.targets.items()}
    return found


def test_both_sides_of_a_wire_hear_each_other() -> None:
    assert hears(Read()) == {"Leaf": ("Hub",), "Hub": ("Leaf",)}


def test_a_selector_names_a_class_that_the_program_does_not_hold() -> None:
    assert hears(Reports()) == {"Leaf": ("Hub",)}


def test_a_program_of_one_class_is_known_by_its_module() -> None:
    assert hears(Gossip()) == {"Gossip": ("Gossip",)}
    program = load(Compiler().compile(to_proto(Gossip().record())).SerializeToString())
    assert program.targets["Gossip"].peer_class == "Gossip"
    node = install(PeerId.from_name("a"), (), program, ["Gossip"], seed=1)
    assert (node.classes, node.hears) == (("Gossip",), ("Gossip",))


def test_a_component_that_calls_others_hears_the_classes_of_its_program() -> None:
    assert hears(Found()) == {"Client": ("Client",)}


def test_what_a_component_might_call_is_heard_and_not_asked_for() -> None:
    program = to_proto(Counted(Calls).record())
    model = Compiler().compile(program)
    whole = load(model.SerializeToString())
    client = whole.targets["Client"]
    assert (client.hears, client.asks) == (("Client", "Server"), ("Server",))
    assert whole.dealt_with(["Client"]).asks == ("Server",) and whole.dealt_with(
        ["Client", "Server"]
    ).asks == (
        "Client",
        "Server",
    )
    for artifact in compile_edge(program, Compiler()).artifacts:
        for name, target in load(artifact.data).targets.items():
            assert (target.hears, target.asks) == (whole.targets[name].hears, whole.targets[name].asks)
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(keys.ASKS_PREFIX)]
    assert len(kept) == len(model.metadata_props) - 1, "it is said only where it is not all that is heard"
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    assert load(model.SerializeToString()).targets["Client"].asks == ("Client", "Server")


def test_a_component_with_ordinary_ops_alone_hears_nobody_for_itself() -> None:
    """Else the messages at a start grow with the square of the clients."""
    assert hears(Counted(Counts)) == {"Server": ("Client",), "Client": ("Server",)}


def test_one_that_the_host_does_not_know_may_call_anybody() -> None:
    module = Counted(Counts)
    module.counts = ProtocolSlot("counts", opset=Counts.atomic_opset(), at="Client")
    model = Compiler().bind_protocol("counts", "test.Unknown").compile(to_proto(module.record()))
    assert load(model.SerializeToString()).targets["Client"].hears == ("Client", "Server")


def test_who_may_be_called_on_another_target_may_be_called_from_here() -> None:
    class Both(Counted):
        name = "Both"

        def body(self, g: Graph) -> None:
            super().body(g)
            with g.at("Server"), g.on_invoke():
                g.app_emit("y", self.counts.count(g, g.constant(np.float32(1.0))))

    module = Both(Counts)
    module.counts = ProtocolSlot("counts", opset=Counts.atomic_opset())
    compiler = Compiler().bind_protocol("counts", Counts, target="Client")
    model = compiler.bind_protocol("counts", Calls, target="Server").compile(to_proto(module.record()))
    assert load(model.SerializeToString()).targets["Client"].hears == ("Client", "Server")


def test_it_hears_the_class_that_its_slot_names() -> None:
    assert hears(Counted(Counts, "Client")) == {"Server": ("Client",), "Client": ("Client", "Server")}
    model = Compiler().compile(to_proto(Counted(Counts, "Client").record()))
    assert load(model.SerializeToString()).targets["Client"].asks == ("Client", "Server")


def test_a_class_that_the_slot_of_a_component_misspells_is_said() -> None:
    with pytest.warns(ProgramWarning, match=r"'Cliend'.*did you mean 'Client'"):
        Compiler().compile(to_proto(Counted(Counts, "Cliend").record()))


@pytest.mark.parametrize("module", [Open(), Taking()])
def test_an_open_port_of_an_unknown_class_hears_every_class(module: Module) -> None:
    assert set(hears(module).values()) == {None}
    program = load(Compiler().compile(to_proto(module.record())).SerializeToString())
    assert program.dealt_with(program.targets).asks is None


def test_who_has_no_peers_hears_nobody() -> None:
    assert hears(Alone()) == {"Alone": ()}


def test_an_artifact_without_the_field_hears_every_class() -> None:
    model = Compiler().compile(to_proto(Read().record()))
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(keys.HEARS_PREFIX)]
    assert len(kept) < len(model.metadata_props)
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    program = load(model.SerializeToString())
    assert {target.hears for target in program.targets.values()} == {None}
    assert install(PeerId.from_name("a"), (), program, ["Hub"], seed=1).hears is None


def test_a_node_of_several_targets_hears_for_all_of_them() -> None:
    program = load(Compiler().compile(to_proto(Read().record())).SerializeToString())
    node = install(PeerId.from_name("a"), (), program, ["Hub", "Leaf"], seed=1)
    assert (node.classes, node.hears) == (("Hub", "Leaf"), ("Hub", "Leaf"))
