"""Components of the control plane in programs as authors write them: recorded, compiled, installed, run."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("onnx", reason="recording needs the onnx package")

from bb_edge import PeerId, install
from bb_edge.components import Cyclon, GlobalRegistryClient, GlobalRegistryServer
from bb_edge.engine import steps
from bb_edge.ir.opsets import Effect, Opset, Table
from bb_edge.registry import Registry
from bb_edge.roles import ProtocolComponent
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Module, PeerSelectorSlot, ProtocolSlot, S


class Federation(Module):
    """Asks whom the registry knows."""

    name, home = "Federation", "Server"
    registry = PeerSelectorSlot("registry", peer_class="Client")

    def body(self, g: Any) -> None:
        with g.rounds(times=3, pause_ns=10 * S) as start:
            peers = self.registry.current_view(g, after=start)
            r = g.request("ping", peers, start.round, deadline_ns=5 * S)
            neighbours = self.registry.current_view(g, after=r.value)
            g.app_emit("neighbours", neighbours)
            r.reply(r.value)
            g.app_emit("missing", r.missing)


def test_a_registry_is_one_slot_bound_per_target():
    config = {"server_name": "hub", "ttl_ns": 6 * S}
    compiler = (
        Compiler()
        .bind_peer_selector("registry", GlobalRegistryServer, {}, target="Server")
        .bind_peer_selector("registry", GlobalRegistryClient, config, target="Client")
    )
    data = compiler.compile(Federation()).SerializeToString()
    sim = Simulation(presence=False)
    names = {"hub": "Server", **{f"c{n}": "Client" for n in range(20)}}
    for number, (name, target) in enumerate(names.items()):
        sim.add(install(PeerId.from_name(name), (), data, [target], seed=number))
    sim.run(for_ns=60 * S)
    rounds = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed) and s.step.asked]
    assert [(r.asked, r.answered) for r in rounds] == [(20, 20)] * 3
    assert [len(e.value) for e in sim.events("neighbours")][-20:] == [19] * 20
    assert not [s.step for s in sim.seen if isinstance(s.step, steps.OpFailed | steps.WireReceiveFailed)]


class Gossip(Module):
    """Looks at its view now and then."""

    name = "Gossip"
    peers = PeerSelectorSlot("peers")

    def body(self, g: Any) -> None:
        with g.rounds(times=4, pause_ns=5 * S) as start:
            g.app_emit("view", self.peers.current_view(g, after=start))


def test_gossip_is_a_binding_away():
    compiler = Compiler().bind_peer_selector("peers", Cyclon, {"introducer_names": ["n0"], "view_size": 4})
    data = compiler.compile(Gossip()).SerializeToString()
    sim = Simulation(presence=False)
    for n in range(12):
        sim.add(install(PeerId.from_name(f"n{n}"), (), data, ["Gossip"], seed=n))
    sim.run(for_ns=60 * S)
    views = [e.value for e in sim.events("view")]
    assert len(views) == 48
    assert all(len(view) >= 2 for view in views[-12:])
    assert len({peer for view in views[-12:] for peer in view}) > 8


class Tally(ProtocolComponent):
    """Counts, and tells its counterparts."""

    TYPE_NAME: ClassVar[str] = "test.Tally"

    def __init__(self) -> None:
        self.count = 0
        self.told: list[int] = []

    @classmethod
    def construct(cls, env: Any) -> Tally:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.tally")
        table.op("AddTo", "x:Tensor<I64>", "total:Tensor<I64>", "times:int=1", effect=Effect.WRITE)
        table.op("TellOthers", "total:Tensor<I64>, peers:PeerIdVec", "cmd:CommandId")
        table.op("Hear", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    def add_to(self, ctx: Any, x: Any, *, times: int) -> Any:
        self.count += int(x) * times
        return np.asarray(self.count, np.int64)

    def tell_others(self, ctx: Any, total: Any, peers: Any) -> None:
        for peer in peers:
            ctx.send(peer, "Hear", bytes([int(total)]))

    def hear(self, ctx: Any, sender: PeerId, payload: bytes) -> None:
        self.told.append(payload[0])

    def serialize(self) -> bytes:
        return bytes([self.count, *self.told])

    def restore(self, state: bytes) -> None:
        self.count, *self.told = state


class Counting(Module):
    """One op of a component's own opset after the other."""

    name = "Counting"
    tally = ProtocolSlot("tally", Tally)
    peers = PeerSelectorSlot("peers")

    def body(self, g: Any) -> None:
        with g.rounds(times=3, pause_ns=1 * S) as start:
            total = self.tally.add_to(g, start.round, times=2)
            self.tally.tell_others(g, total, self.peers.current_view(g, after=start))
            g.app_emit("total", total)


def test_a_components_own_ops_are_recorded_by_name():
    registry = Registry()
    registry.register(Tally)
    compiler = (
        Compiler()
        .bind_protocol("tally", Tally)
        .bind_peer_selector("peers", "bb.ConstantView", {"names": ["a", "b"]})
    )
    data = compiler.compile(Counting()).SerializeToString()
    sim = Simulation()
    nodes = [
        install(PeerId.from_name(n), (), data, ["Counting"], registry=registry, seed=i)
        for i, n in enumerate("ab")
    ]
    for node in nodes:
        sim.add(node)
    sim.run(for_ns=10 * S)
    assert sorted(int(e.value) for e in sim.events("total")) == [2, 2, 6, 6, 12, 12]
    first_may_be_early = [node.component("tally").told[-2:] for node in nodes]
    assert first_may_be_early == [[6, 12]] * 2
