"""What a program was compiled for is stamped on the ops that give batches, for whoever configures a shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bb_edge.ir import keys, types
from bb_edge.ir.stamped_parts import write_parts
from bb_edge.ir.types import ValueType
from bb_host.errors import LearnError, source
from bb_host.ir.construction import config_of
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, Stamp
from bb_host.ir.queries import component_graph, is_gate, same_values
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bundles import part_of
from bb_host.passes.one_pass import Stats

_MORE_ROWS = 'train on more rows (batch_size of the data source), or leave batch_norm="update" out'


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
    read = flow.read_of(function, [name for _, op in giving for name in op.outputs])
    gated, declared = _handed_on(function), function.types.get
    stamps: dict[tuple[int, ...], Stamp] = {}  # most give the same, in the same records of types
    for index, op in giving:
        known = [
            None if name not in read else _known(function, name, gated) if name in gated else declared(name)
            for name in op.outputs
        ]
        key = tuple(map(id, known))
        stamp = stamps.get(key)
        if stamp is None:
            parts = _parts(known)
            stamp = stamps[key] = Stamp(OpFacts(parts=parts) if parts else NO_FACTS)
        new = stamp(op)
        if new is not op:
            changed[index] = new
    return flow.restamped(function, changed)


def _handed_on(function: Function) -> dict[str, list[str]]:
    """The values that are others as they stand, behind `after=` as a rule, by the one that they are."""
    found: dict[str, list[str]] = {}
    for op in function.ops:
        if op.domain == keys.SYSCALL_DOMAIN and is_gate(op):
            found.setdefault(op.inputs[0], []).extend(op.outputs)
    return found


def _known(function: Function, name: str, gated: Mapping[str, list[str]]) -> ValueType | None:
    """The type of a value, with what is known of it where it is read behind `after=`."""
    found = function.types.get(name)
    for later in gated.get(name, ()):
        found = _narrower(found, _known(function, later, gated))
    return found


def _narrower(one: ValueType | None, other: ValueType | None) -> ValueType | None:
    """What both say of one value; the first of them where they differ, which whoever reads it refuses."""
    if one is None or other is None:
        return one or other
    node = other.node if types.is_subtype(other.node, one.node) else one.node
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return ValueType(node, other.shape if one.shape is None else one.shape)
    return ValueType(
        node,
        tuple(
            a if isinstance(a, int) or b is None else b for a, b in zip(one.shape, other.shape, strict=True)
        ),
    )


def _parts(known: Iterable[ValueType | None]) -> str:
    """What is stamped where the outputs have these types; empty where nothing is known."""
    parts = []
    for type_hash, shape, _ in map(part_of, known):
        parts.append((type_hash, (-1, *shape[1:]) if shape else shape, None))
    return write_parts([parts]) if any(type_hash or shape for type_hash, shape, _ in parts) else ""


def with_fewest_rows(functions: tuple[Function, ...], stats: Stats) -> tuple[Function, ...]:
    """The functions with the rows that a batch needs at least on each `NextBatch` that a model is trained on.

    Models whose normalizations learn say so of themselves. Raises LearnError where a batch is known to have
    fewer, and warns where the configuration of its source says fewer, which a device may say otherwise.
    """
    fewest = _fewest_rows(functions)
    if not fewest:
        return functions
    sizes: dict[str, set[object]] = {}  # bodies of loops have no slots: those of the partitions
    for function in functions:
        for name, slot in function.slots.items():
            state = {} if slot.state is None else config_of(slot.state)
            sizes.setdefault(name, set()).add(state.get("batch_size", 0))
    return tuple(_with_fewest_rows(function, fewest, sizes, stats) for function in functions)


def _fewest_rows(functions: Iterable[Function]) -> Mapping[str, int]:
    """By slot, the rows that a batch needs at least, where every model in it that is trained says so."""
    found: dict[str, int] = {}
    for function in functions:
        if function.domain == keys.COMPONENT_DOMAIN:
            slot, graph, _ = component_graph(function)
            if graph == "fit":
                rows = function.facts.fewest_rows or 1
                found[slot] = min(rows, found.get(slot, rows))
    return {slot: rows for slot, rows in found.items() if rows > 1}


def _with_fewest_rows(
    function: Function, fewest: Mapping[str, int], sizes: Mapping[str, set[object]], stats: Stats
) -> Function:
    if keys.ROLE_MODEL_DOMAIN not in flow.summary(function.ops).domains:
        return function
    needed: dict[str, int] = {}  # by the value that is a batch
    makers = {name: op for op in function.ops for name in op.outputs if name}
    for op in function.ops:
        if op.op_type != "Train" or op.domain != keys.ROLE_MODEL_DOMAIN or op.slot not in fewest:
            continue
        batch, rows = op.inputs[0], fewest[op.slot]
        known = function.types.get(batch)
        if known is not None and known.shape and isinstance(has := known.shape[0], int) and has < rows:
            what = f"slot {op.slot!r}: the batch has {has} of the {rows} rows that its normalizations need"
            raise LearnError(what, source(op), _MORE_ROWS)
        for name in same_values(batch, makers):
            needed[name] = max(rows, needed.get(name, 0))
    changed: dict[int, Op] = {}
    for index, op in enumerate(function.ops):
        if op.op_type != "NextBatch" or op.domain != keys.ROLE_DATA_LOADER_DOMAIN:
            continue
        rows = needed.get(op.outputs[0], 0)
        if not rows:
            continue
        changed[index] = op.saying(OpFacts(fewest_rows=rows))
        for size in sizes.get(op.slot, ()):
            if isinstance(size, int) and 0 < size < rows:
                stats.warn(
                    "too-few-rows",
                    f"slot {op.slot!r}: its batches have {size} of the {rows} rows that the model's"
                    " normalizations need; no node starts with them",
                    source(op),
                    _MORE_ROWS,
                )
    return flow.restamped(function, changed)
