"""Connections of nodes that are joined in process."""

from __future__ import annotations

from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation

S = 1_000_000_000


def first_connection(sim: Simulation, peer: PeerId) -> None:
    """Has a node begin as over a broker, without a connection at first: the next one is a reconnection."""
    sim.connect(peer, False)
    sim.connect(peer, True)
    sim.run(for_ns=S)
