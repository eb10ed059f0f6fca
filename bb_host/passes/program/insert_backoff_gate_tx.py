"""Pass 15: nothing is sent to peers that are backed off.

1. Before every Send and request with a list of peers, behind the gates that are there, stands a
   `BackoffGateTx`.
2. Replies, durable sends and sends to a fixed peer have none. A send that has its gate is left
   alone. Needs partitions.
"""

from __future__ import annotations

from bb_host.ir.program import Program
from bb_host.passes.analysis.tx_chain import BACKOFF, insert_tx_gate
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    return insert_tx_gate(program, BACKOFF, stats)
