"""Slots that keep a value between executions (`bb.KeptValue`): one kind of value each, written and read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bb_edge.components import KeptValue
from bb_edge.ir import types
from bb_edge.ir.stamped_parts import StampedPart
from bb_edge.ir.types import ValueType
from bb_host.errors import TypeConstraintFailed, label, named, source
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.text.printer import print_type
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bundles import Bundles, part_of
from bb_host.passes.analysis.slot_table import TargetSlots, targets_of
from bb_host.passes.one_pass import Stats

DOMAIN = KeptValue.TYPE_NAME


def check_kept(targets: Sequence[TargetSlots], stats: Stats) -> None:
    """Refuses values of which a slot cannot keep both; warns of slots that nothing writes, or nothing reads.

    TypeConstraintFailed names both lines.
    """
    for target in targets:
        for slot, found in _by_slot(target.functions).items():
            there = {op.op_type for _, op in found}
            op = found[0][1]
            if there == {"Read"}:
                _alone(op, slot, target, "nothing writes it: it gives what it is given", "write", stats)
            elif there == {"Write"}:
                _alone(op, slot, target, "nothing reads what it keeps", "read", stats)
            _agree(slot, found)


def _by_slot(functions: Sequence[Function]) -> dict[str, list[tuple[Function, Op]]]:
    by_slot: dict[str, list[tuple[Function, Op]]] = {}
    for function in functions:
        if DOMAIN in flow.summary(function.ops).domains:
            for op in function.ops:
                if op.domain == DOMAIN:
                    by_slot.setdefault(op.slot, []).append((function, op))
    return by_slot


def _alone(op: Op, slot: str, target: TargetSlots, what: str, other: str, stats: Stats) -> None:
    stats.warn(
        "missing-half",
        f"{label(op)}: {what} (slot {slot!r}, on {target.main.name})",
        source(op),
        f"record self.{slot}.{other}(g, …) in the same program and class, or leave the slot out",
    )


def _agree(slot: str, found: Sequence[tuple[Function, Op]]) -> None:
    first: tuple[Op, ValueType] | None = None
    for function, op in found:
        kind = function.types.get(op.inputs[0])
        if kind is None or kind.node is types.ANY:
            continue
        if not (types.compatible(kind.node, types.TENSOR) or kind.node is types.COMPOSITE):
            raise TypeConstraintFailed(
                f"slot {slot!r} keeps tensors and bundles of tensors, and is given a {print_type(kind)}",
                hint=_instead(kind.node),
                op=op,
            )
        if first is None:
            first = op, kind
        elif not _fit(first[1], kind):
            raise TypeConstraintFailed(
                f"slot {slot!r} keeps one kind of value: it is given {print_type(kind)} here, and"
                f" {print_type(first[1])} at {named(first[0])}",
                hint="give it values of one shape and element type, or keep the other in a slot of its own",
                op=op,
            )


def _instead(node: types.TypeNode) -> str:
    """What to do with a value that is not a tensor."""
    if node in types.NUMBERS:
        return "make a number of it: g.as_tensor(value)"
    if node in (types.TRIGGER, types.COMMAND_ID):
        return "it says when, and holds no value: write a number, and pass it as after="
    return (
        'it is not a number; g.hold_stash("name", value) keeps it until a later execution takes it:'
        ' g.hold_flush("name", trigger)'
    )


def _fit(one: ValueType, other: ValueType) -> bool:
    """Whether two values may be of one element type and shape, as far as both are known."""
    if not (types.compatible(one.node, other.node) or types.compatible(other.node, one.node)):
        return False
    if one.shape is None or other.shape is None:
        return True
    sizes = zip(one.shape, other.shape, strict=False)
    return len(one.shape) == len(other.shape) and all(
        a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int)
    )


def kept_bytes(program: Program, target: str) -> Iterator[tuple[str, int | None]]:
    """Yields each slot of a target that keeps a value, and its bytes; None where they are not known."""
    bundles = Bundles(program)
    for found in targets_of(program):
        if found.main.name == target:
            for slot, ops in _by_slot(found.functions).items():
                sizes = (_bytes(bundles, function, name) for function, op in ops for name in _values(op))
                yield slot, next((size for size in sizes if size is not None), None)


def _values(op: Op) -> tuple[str, ...]:
    return (op.inputs[0], *(() if op.op_type == "Write" else op.outputs[:1]))


def _bytes(bundles: Bundles, function: Function, name: str) -> int | None:
    known = function.types.get(name)
    if known is not None and known.node is types.COMPOSITE:
        layout = bundles.layout(function, name, {})
        sizes = [_part_bytes(part) for part in layout or ()]
        return sum(size for size in sizes if size) if sizes and None not in sizes else None
    return _part_bytes(part_of(known))


def _part_bytes(part: StampedPart) -> int | None:
    type_hash, shape, inner = part
    if inner is not None:
        sizes = [_part_bytes(one) for one in inner]
        return None if None in sizes else sum(size for size in sizes if size)
    node = types.by_wire_hash(type_hash)
    dtype = types.dtype_of_elem(node.elem_type) if node is not None and node.elem_type is not None else None
    if shape is None or dtype is None or min(shape, default=0) < 0:
        return None
    return math.prod(shape) * dtype.itemsize
