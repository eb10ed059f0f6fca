"""Which ops start by themselves, whose values go with their only reader, and who that is: found at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.engine.program.program import INVOKE, OUTPUT_OP, OpSpec, Region
from bb_edge.ir import keys
from bb_edge.ir.opsets import OpKind


def starts_of(
    ops: Sequence[OpSpec], values: Sequence[object], inputs: Mapping[str, int]
) -> dict[int, tuple[int, ...]]:
    """Returns the ops that start by themselves: for an invoke, and for the only entry where it is one."""
    found = tuple(op.index for op in ops if op.region == 0 and _starts_by_itself(op, ops, values))
    if not found:
        return {}
    entries = [op.index for op in ops if op.kind is OpKind.ENTRY and op.region == 0]
    only = entries if len(entries) == 1 and not inputs else []
    with_entry = tuple(index for index in found if keys.ON_INVOKE_KEY not in ops[index].meta)
    return {INVOKE: found, **dict.fromkeys(only, with_entry)}


def _starts_by_itself(op: OpSpec, ops: Sequence[OpSpec], values: Sequence[object]) -> bool:
    """Whether an op is an output or a syscall that nobody reads, and constants are all that it needs."""
    if op.domain != keys.SYSCALL_DOMAIN:
        return False
    if op.op_type == OUTPUT_OP and values[op.inputs[0]] is not None:
        return True
    return bool(op.pulls) and all(_is_constant(ops[index]) for index in op.pulls)


def _is_constant(op: OpSpec) -> bool:
    """Whether an op that waits for nothing computes on constants, or is a syscall over constants."""
    if op.domain == keys.SYSCALL_DOMAIN:
        return bool(op.inputs or op.controls)
    return op.proto is not None or op.domain == keys.BACKEND_DOMAIN


def frees_of(
    ops: Sequence[OpSpec], regions: Sequence[Region], values: Sequence[object], forwarded: frozenset[int]
) -> dict[int, tuple[int, ...]]:
    """Returns by op the sites that nobody but it reads: memory comes back with it, not with the execution.

    Left alone are constants, what children may read later, and what first-arrival ops look at.
    """
    kept = set(forwarded)
    kept.update(s for op in ops if op.port >= 0 for s in op.outputs)
    readers: dict[int, list[int]] = {}
    for region in regions:
        for site, entry in enumerate(region.consumers):
            readers.setdefault(site, []).extend(index for index, _ in entry)
    freed: dict[int, list[int]] = {}
    for site, found in readers.items():
        if len(found) == 1 and site not in kept and values[site] is None:
            freed.setdefault(found[0], []).append(site)
    return {index: tuple(sites) for index, sites in freed.items()}


def thens_of(ops: Sequence[OpSpec], regions: Sequence[Region], kept: frozenset[int]) -> dict[int, int]:
    """Returns by op the one that waits for what this one gives, and for nothing else, where nobody else does.

    Both call a component, and the first one gives one value or two. `kept` are sites that are looked at
    from outside: by children, or a caller.
    """
    readers: dict[int, dict[int, int]] = {}
    for region in regions:
        for site, entry in enumerate(region.consumers):
            readers.setdefault(site, {}).update(entry)
    found = {}
    for op in ops:
        outs = op.outputs
        if keys.SLOT_KEY not in op.meta or not 1 <= len(outs) <= 2:
            continue
        if min(outs) < 0 or not kept.isdisjoint(outs):
            continue
        reading = {index for site in outs for index in readers.get(site, ())}
        if len(reading) != 1:
            continue
        (index,) = reading
        then = ops[index]
        if then.pulls or keys.SLOT_KEY not in then.meta:
            continue
        if then.waits == sum(readers.get(site, {}).get(index, 0) for site in outs):
            found[op.index] = index
    return found
