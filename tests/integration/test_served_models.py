"""A model that answers others: what does not fit its input is refused where it comes from, unsent."""

from __future__ import annotations

import numpy as np
import pytest
from simulations import advance, failures

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge.components import GraphModel, PresenceSelector
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable


class Serve(Module):
    """As docs/how-to/models.md has it, with rows that the host gives in place of a file's."""

    name, home = "Serve", "Asker"
    servers = PeerSelectorSlot("servers", PresenceSelector, peer_class="Server")
    model = ModelSlot("model", GraphModel, trainable(mlp([4, 2]), learning=False, frozen=["*"]), at="Server")

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (None, None))
        r = g.request("ask", self.servers.sample(g, n=1, after=x), x, deadline_ns=10 * S)
        r.reply(self.model.forward(g, r.value))
        g.app_emit("answer", r.answer)


def test_rows_that_the_model_does_not_take_are_the_askers_failure() -> None:
    sim = Simulation(seed=1)
    nodes = {}
    for made in build_edge(Serve(), Compiler()).artifacts:
        node = install(PeerId.from_name(made.target), (), made.data, [made.target], NodeConfig.edge(), seed=1)
        sim.add(node)
        nodes[made.target] = node
    advance(sim, S)
    for shape in ((3, 4), (3, 5), (2, 4)):
        nodes["Asker"].invoke("Asker", {"x": np.ones(shape, np.float32)})
        advance(sim, S)
    assert [event.value.shape for event in sim.events("answer")] == [(3, 2), (2, 2)]
    (failed,) = failures(sim)
    assert isinstance(failed, steps.OpFailed)
    assert "payload 0 of 'ask' is [3,5], its receiver takes [?,4]; not sent" in failed.text
    assert not [seen for seen in sim.seen if isinstance(seen.step, steps.PeerFailing)]
