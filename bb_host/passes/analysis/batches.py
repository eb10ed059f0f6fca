"""What a program was compiled for is stamped on the ops that give batches, for whoever configures a shard."""

from __future__ import annotations

from collections.abc import Iterable

from bb_edge.ir import keys
from bb_edge.ir.stamped_parts import write_parts
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, Stamp
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bundles import part_of


def with_batches(function: Function) -> Function:
    """Returns the function with the types and shapes of batches and labels on each `NextBatch`, as known.

    How many samples a batch has is the configuration's to say, and what nothing reads may be anything.
    """
    if keys.ROLE_DATA_LOADER_DOMAIN not in flow.summary(function.ops).domains:
        return function
    changed: dict[int, Op] = {}
    giving = [
        (index, op)
        for index, op in enumerate(function.ops)
        if op.op_type == "NextBatch" and op.domain == keys.ROLE_DATA_LOADER_DOMAIN
    ]
    read = flow.read_names(function)
    stamps: dict[tuple[int, ...], Stamp] = {}  # most give the same, in the same records of types
    for index, op in giving:
        known = [function.types.get(name) if name in read else None for name in op.outputs]
        key = tuple(map(id, known))
        stamp = stamps.get(key)
        if stamp is None:
            parts = _parts(known)
            stamp = stamps[key] = Stamp(OpFacts(parts=parts) if parts else NO_FACTS)
        new = stamp(op)
        if new is not op:
            changed[index] = new
    return flow.restamped(function, changed)


def _parts(known: Iterable[ValueType | None]) -> str:
    """What is stamped where the outputs have these types; empty where nothing is known."""
    parts = []
    for type_hash, shape, _ in map(part_of, known):
        parts.append((type_hash, (-1, *shape[1:]) if shape else shape, None))
    return write_parts([parts]) if any(type_hash or shape for type_hash, shape, _ in parts) else ""
