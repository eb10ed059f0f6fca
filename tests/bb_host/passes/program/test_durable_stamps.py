"""What a durable send says of its values, for the program that comes after this one."""

from __future__ import annotations

import pytest

from bb_edge.components import PresenceSelector
from bb_edge.engine.net.former_sites import sites_of
from bb_edge.loading import load
from bb_host import Compiler, Graph, Module, PeerSelectorSlot
from bb_host.build import build_edge


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_send_has_the_shapes_of_its_values(durable: bool) -> None:
    """Another program may adopt what waits: a value of another shape is another value."""

    class Reports(Module):
        home = "Device"
        hubs = PeerSelectorSlot("hubs", PresenceSelector, peer_class="Hub", at="Device")

        def body(self, g: Graph) -> None:
            count, row = g.input("count", "I64", ()), g.input("row", "F32", (None, 3))
            told = g.net_out("report", self.hubs.current_view(g), [count, row], durable=durable)
            g.app_emit("report", g.bundle(list(told)))

    artifacts = {a.target: a.data for a in build_edge(Reports(), Compiler()).artifacts}
    program = load(artifacts["Device"])
    shapes = [site.shape for site in sites_of(program, program.targets.values()).values()]
    assert shapes == ([(), (-1, 3)] if durable else [None, None])
