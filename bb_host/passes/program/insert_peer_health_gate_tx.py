"""Pass 14: nothing is sent to peers below the health threshold.

1. Before every Send and request with a list of peers stands a `PeerHealthGateTx` on that list; a request
   keeps the list as authored beside it, because it closes over all of them.
2. Replies, durable sends and sends to a fixed peer have none. A send that has its gate is left
   alone. Needs partitions.
"""

from __future__ import annotations

from bb_host.ir.program import Program
from bb_host.passes.analysis.tx_chain import PEER_HEALTH, insert_tx_gate
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    return insert_tx_gate(program, PEER_HEALTH, stats)
