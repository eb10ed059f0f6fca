"""Rx gates: between the outputs of an inbound entry and their readers, each over all of these outputs.

The values that readers see keep their names: the op that yielded them so far, the entry or the gate before,
yields them under new ones, and the gate hands them on.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.sound_names import all_names
from bb_host.passes.one_pass import Stats

DEDUP = "DedupGateRx"
PEER_HEALTH = "PeerHealthGateRx"
BACKOFF = "BackoffGateRx"
RX_GATES = {DEDUP: "deduped", PEER_HEALTH: "healthy", BACKOFF: "calm"}
"""In the order in which they stand behind an entry, each with the suffix of what it hands on."""

_ENTRY_SUFFIX = "received"


def insert_rx_gate(program: Program, gate: str, stats: Stats) -> Program:
    """Puts a gate of that type behind every inbound entry that has none, after the gates there."""
    stats.count("gates_inserted", 0)
    moved: dict[tuple[str, str], dict[str, str]] = {}  # (wire id, correlation) → the entry's new names
    functions = tuple(_insert(f, gate, stats, moved) if _wants(f) else f for f in program.functions)
    if moved:
        functions = tuple(_follow(f, moved) if _wants(f) else f for f in functions)
    return program.with_functions(functions)


def _wants(function: Function) -> bool:
    return flow.is_main(function) and flow.has_wire(function)


def is_rx_gate(op: Op) -> bool:
    return op.domain == keys.GATE_DOMAIN and op.op_type in RX_GATES


def guarded_ids(function: Function, gate: str) -> set[str]:
    """The wire ids that have a gate of that type in the function."""
    if (keys.GATE_DOMAIN, gate) not in flow.summary(function.ops).kinds:
        return set()
    return {flow.wire_id(op) for op in function.ops if op.domain == keys.GATE_DOMAIN and op.op_type == gate}


def _insert(
    function: Function, gate: str, stats: Stats, moved: dict[tuple[str, str], dict[str, str]]
) -> Function:
    ops = function.ops
    guarded = guarded_ids(function, gate)
    entries = [i for i in flow.summary(ops).wire if flow.is_wire_entry(ops[i])]
    entries = [i for i in entries if flow.wire_id(ops[i]) not in guarded]
    if not entries:
        return function
    taken = all_names(function)
    types: dict[str, ValueType] = {}
    pieces: dict[int, tuple[Op, Op]] = {}
    for last in entries:
        number = flow.wire_id(ops[last])
        while last + 1 < len(ops) and is_rx_gate(ops[last + 1]) and flow.wire_id(ops[last + 1]) == number:
            last += 1
        pieces[last] = _split(ops[last], gate, taken, function, types, moved)
        stats.count("gates_inserted")
    if not types:
        return function
    imports = {**function.opsets, keys.GATE_DOMAIN: 1}
    return function.with_ops(flow.spliced(ops, pieces), {**function.types, **types}, opsets=imports)


def _split(
    op: Op,
    gate: str,
    taken: set[str],
    function: Function,
    types: dict[str, ValueType],
    moved: dict[tuple[str, str], dict[str, str]],
) -> tuple[Op, Op]:
    suffix = RX_GATES.get(op.op_type, _ENTRY_SUFFIX)
    names: dict[str, str] = {}
    for name in op.outputs:
        if name:
            new = f"{name}__{suffix}"
            while new in taken:
                new += "_"
            taken.add(new)
            names[name] = new
            if name in function.types:
                types[new] = function.types[name]
    if flow.is_wire(op):
        moved[_key(op)] = names
    before = dataclasses.replace(op, outputs=tuple(names.get(n, n) for n in op.outputs))
    facts = OpFacts(wire_id=flow.wire_id(op)) | op.beside()
    guard = Op(gate, keys.GATE_DOMAIN, tuple(names.values()), tuple(names), {}, facts)
    return before, guard


def _key(op: Op) -> tuple[str, str]:
    return flow.wire_id(op), op.facts.correlation


def _follow(function: Function, moved: dict[tuple[str, str], dict[str, str]]) -> Function:
    """The other halves name the values that arrive: they follow the new names."""
    changed: dict[int, Op] = {}
    for index in flow.summary(function.ops).wire:
        op = function.ops[index]
        names = moved.get(_key(op)) if flow.is_send_flavored(op) else None
        if names:
            arrives = {sent: names.get(name, name) for sent, name in op.facts.arrives_as.items()}
            new = op.saying(OpFacts(arrives_as=arrives))
            if arrives and new is not op:
                changed[index] = new
    return flow.restamped(function, changed)
