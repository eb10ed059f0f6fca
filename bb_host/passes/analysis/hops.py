"""Counts the hops of a request until its reply is back: the longest way through what is asked meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND_REQ, OP_SEND_RESP
from bb_host.ir.program import Op
from bb_host.ir.queries import reads
from bb_host.passes.analysis import flow


def request_hops(ops: Sequence[Op]) -> dict[str, int]:
    """By wire id the hops of each request of a recorded function: there, what comes between, and back.

    Requests without a reply in the function are left out: they are open ports.
    """
    replies = {
        op.facts.request: index
        for index, op in enumerate(ops)
        if flow.is_wire(op) and op.op_type == OP_SEND_RESP
    }
    found = {}
    for index, op in enumerate(ops):
        number = flow.wire_id(op)
        if flow.is_wire(op) and op.op_type == OP_SEND_REQ and index < replies.get(number, -1):
            found[number] = 2 + _between(ops, index, replies[number], replies)
    return found


def _between(ops: Sequence[Op], ask: int, reply: int, replies: Mapping[str, int]) -> int:
    """The most hops on a way from the values that were asked to the reply's payloads."""
    far = dict.fromkeys(ops[ask].outputs[1:], 0)
    for op in ops[ask + 1 : reply]:
        known = [far[name] for name in reads(op) if name in far]
        if flow.is_wire(op) and op.op_type == OP_RECV_RESP_BATCHED:
            inner = replies.get(op.facts.request, reply)
            known += [far[name] + 1 for name in ops[inner].inputs if name in far and inner < reply]
        if not known:
            continue
        here = max(known)
        if not flow.is_send_flavored(op) or not flow.is_recorded_form(op):
            far.update((name, here) for name in op.outputs)
            continue
        far.update((name, here + 1) for name in flow.received_outputs(op))
        if op.op_type == OP_SEND_REQ:
            far[op.outputs[0]] = here
    return max((far[name] for name in ops[reply].inputs if name in far), default=0)
