"""`r.missing_reasons`, from the author's line to a node: one reason per missing peer, in their order."""

from __future__ import annotations

import numpy as np
import pytest
from asking import Moody
from kinds_of_steps import of

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.transport.in_process import Simulation
from bb_host import CodecSlot, Compiler, MissingReason, Module, PeerSelectorSlot, S
from bb_host.build import build_edge


class Asks(Module):
    name, home = "Asks", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")
    codec = CodecSlot("codec", at="Client")

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def body(self, g):
        x = g.input("x", "F32", (1,))
        r = g.request("ask", self.clients.current_view(g, after=x), x, deadline_ns=2 * S)
        r.reply(self.codec.compress(g, r.value))
        g.app_emit("got", r.responses if self.batch else r.answer)
        g.app_emit("why", g.bundle([r.missing, r.missing_reasons]))


@pytest.mark.parametrize("batch", [False, True])
def test_each_missing_peer_has_its_reason(batch):
    compiler = Compiler().bind_peer_selector("clients", "bb.PresenceSelector").bind_codec("codec", Moody)
    data = {a.target: a.data for a in build_edge(Asks(batch), compiler).artifacts}
    registry = Registry()
    registry.register(Moody)
    sim = Simulation(seed=3)

    def add(name, target, seed):
        node = install(PeerId.from_name(name), (), data[target], [target], seed=seed, registry=registry)
        sim.add(node)
        return node

    server = add("hub", "Server", 1)
    clients = [add(f"c{n}", "Client", 10 + n) for n in range(4)]
    sim.run(for_ns=S // 10)
    clients[1].component("codec").mood = "fails"
    clients[2].component("codec").mood = "grows"
    clients[3].deliver_inbound = lambda *_arguments, **_more: None
    server.invoke("Server", {"x": np.ones(1, np.float32)})
    sim.run(until=lambda: bool(sim.events("why")))
    missing, reasons = sim.events("why")[0].value.values
    told = {peer: MissingReason(number) for peer, number in zip(missing, reasons.tolist(), strict=True)}
    assert told == {
        clients[1].peer_id: MissingReason.FAILED,
        clients[2].peer_id: MissingReason.TOO_LARGE,
        clients[3].peer_id: MissingReason.DEADLINE,
    }
    (closed,) = of(steps.RequestClosed, (s.step for s in sim.seen))
    assert closed.missing == tuple((peer, told[peer].text) for peer in missing)
