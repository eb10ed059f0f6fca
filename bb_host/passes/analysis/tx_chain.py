"""Tx gates: filters on the list of peers that a send goes to.

Replies pass none, nor do durable sends, which wait on disk for peers that are away.
"""

from __future__ import annotations

import dataclasses
import re

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import OP_SEND, OP_SEND_REQ
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.rx_chain import guarded_ids
from bb_host.passes.analysis.sound_names import all_names
from bb_host.passes.one_pass import Stats

PEER_HEALTH = "PeerHealthGateTx"
BACKOFF = "BackoffGateTx"
TX_GATES = {PEER_HEALTH: "up", BACKOFF: "ready"}
"""In the order in which they stand before a send, each with the suffix of the peers that it passes."""

CHECK = "DeadlineCheck"
"""The syscall that drops a send whose deadline has passed; it stands before the gates."""

_GATED_INPUT = {OP_SEND: -1, OP_SEND_REQ: -2}


def gated_input(op: Op) -> str:
    """The list of peers of a send that gates filter; empty where there is none (replies, a fixed peer, and
    durable sends).
    """
    index = _GATED_INPUT.get(op.op_type) if op.domain == keys.WIRE_DOMAIN else None
    if op.op_type == OP_SEND and op.facts.durable:
        return ""
    return "" if index is None or len(op.inputs) < -index else op.inputs[index]


def insert_tx_gate(program: Program, gate: str, stats: Stats) -> Program:
    """Puts a gate of that type before every peer-routed send that has none yet, behind the gates there."""
    stats.count("gates_inserted", 0)
    functions = tuple(
        _insert(f, gate, stats) if flow.is_main(f) and flow.has_wire(f) else f for f in program.functions
    )
    return program.with_functions(functions)


def _insert(function: Function, gate: str, stats: Stats) -> Function:
    ops = function.ops
    guarded = guarded_ids(function, gate)
    sends = [i for i in flow.summary(ops).wire if gated_input(ops[i]) and flow.wire_id(ops[i]) not in guarded]
    if not sends:
        return function
    taken = all_names(function)
    new_types: dict[str, ValueType] = {}
    pieces: dict[int, tuple[Op, Op]] = {}
    for index in sends:
        op = ops[index]
        peers = gated_input(op)
        name = f"{_authored(op, peers)}__{TX_GATES[gate]}_{flow.wire_id(op)}"
        while name in taken:
            name += "_"
        taken.add(name)
        new_types[name] = ValueType(types.PEER_ID_VEC)
        facts = OpFacts(wire_id=flow.wire_id(op)) | op.beside()
        inputs = list(op.inputs)
        inputs[_GATED_INPUT[op.op_type]] = name
        guard = Op(gate, keys.GATE_DOMAIN, (peers,), (name,), {}, facts)
        pieces[index] = guard, dataclasses.replace(op, inputs=tuple(inputs))
        stats.count("gates_inserted")
    imports = {**function.opsets, keys.GATE_DOMAIN: 1}
    return function.with_ops(flow.spliced(ops, pieces), {**function.types, **new_types}, opsets=imports)


def _authored(op: Op, peers: str) -> str:
    """The name that the author's list of peers has."""
    if op.op_type == OP_SEND_REQ:
        return op.inputs[-1]
    return re.split(rf"__(?:{'|'.join(TX_GATES.values())})_", peers, maxsplit=1)[0]
