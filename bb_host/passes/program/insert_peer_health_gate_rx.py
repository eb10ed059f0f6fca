"""Pass 12: what a peer below the health threshold sends is dropped.

1. Behind every inbound entry, after the gates that are there, stands a `PeerHealthGateRx` over all of its
   outputs.
2. Readers, outputs and names that readers see stay. An entry that has its gate is left alone. Needs
   partitions.
"""

from __future__ import annotations

from bb_host.ir.program import Program
from bb_host.passes.analysis.rx_chain import PEER_HEALTH, insert_rx_gate
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    return insert_rx_gate(program, PEER_HEALTH, stats)
