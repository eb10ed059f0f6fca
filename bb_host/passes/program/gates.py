"""The five passes that insert gates: each adds one gate behind inbound entries or before sends.

1. Behind every inbound entry (Recv, RecvReq, RecvResp), after the gates that are there, stands a gate over
   all of its outputs. `DedupGateRx` drops what was delivered before, `PeerHealthGateRx` what a peer below the
   health threshold sends, `BackoffGateRx` what a peer sends that was told to back off, and does not.
2. Readers, outputs and names that readers see stay; the entry yields under new names.
3. Before every Send and request with a list of peers, behind the gates that are there, stands a gate on that
   list. `PeerHealthGateTx` takes out peers below the health threshold, `BackoffGateTx` those that are backed
   off. A request keeps the list as authored beside it, because it closes over all of them.
4. Replies, durable sends and sends to a fixed peer have no gates before them.
5. An entry or a send that has its gate is left alone. Needs partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bb_host.ir.program import Program
from bb_host.passes.analysis.rx_chain import insert_rx_gate
from bb_host.passes.analysis.tx_chain import insert_tx_gate
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

Run: TypeAlias = "Callable[[Program, Options, Stats], Program]"


def behind_entries(gate: str) -> Run:
    """The pass that puts a gate of that type behind inbound entries."""
    return lambda program, options, stats: insert_rx_gate(program, gate, stats)


def before_sends(gate: str) -> Run:
    """The pass that puts a gate of that type before sends."""
    return lambda program, options, stats: insert_tx_gate(program, gate, stats)
