"""Pairs the halves of wire ops, once there are partitions."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED
from bb_host.ir.program import Op, Program
from bb_host.passes.analysis import flow


@dataclass(frozen=True, slots=True)
class WireEdge:
    """A pair of wire ops across two partitions, or within one: who sends, who receives."""

    sender_target: str
    receiver_target: str
    send: Op
    recv: Op


def wire_edges(program: Program) -> list[WireEdge]:
    """All pairs of halves in a partitioned program; a half alone is an open port and in no edge."""
    sends: dict[str, tuple[str, Op]] = {}
    recvs: list[tuple[str, Op]] = []
    for function in program.functions:
        if not flow.is_main(function):
            continue
        for op in flow.wire_ops(function):
            if flow.is_send_flavored(op):
                sends[flow.wire_id(op)] = (function.name, op)
            else:
                recvs.append((function.name, op))
    found = []
    for target, recv in recvs:
        partner = sends.get(flow.wire_id(recv))
        if partner is not None and (recv.op_type != OP_RECV_RESP_BATCHED or recv.facts.sites):
            found.append(WireEdge(partner[0], target, partner[1], recv))
    return found
