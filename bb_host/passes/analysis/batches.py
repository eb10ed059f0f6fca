"""Stamps ops that give batches with what the program was compiled for, for whoever configures a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bb_edge.components.class_targets import IGNORE_INDEX
from bb_edge.ir import keys, types
from bb_edge.ir.stamped_parts import write_parts
from bb_edge.ir.types import ValueType
from bb_host.errors import LearnError, source
from bb_host.ir.construction import config_of
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, stamping
from bb_host.ir.queries import component_graph, is_gate, same_values
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bundles import part_of
from bb_host.passes.one_pass import Stats

_MORE_ROWS = 'train on more rows (batch_size of the data source), or leave batch_norm="update" out'

_TAKES_BATCHES = frozenset(("Evaluate", "Forward", "ForwardKeyed", "Train"))
"""Ops of a model whose first input is a batch."""

_ROW_BY_ROW = frozenset(
    ("Abs", "Add", "Cast", "Clip", "Div", "Identity", "Log", "Mul", "Neg", "Pow", "Sqrt", "Sub")
)
"""Operators whose result has the rows of what they read: how programs scale a batch."""


def with_batches(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """Returns the functions with the types and shapes of batches and labels on each `NextBatch`, as known.

    How many samples a batch has is the configuration's to say, unless a model with a fixed batch reads it;
    what nothing reads may be anything. Raises LearnError where a source is configured for other batches than
    the model takes.
    """
    fixed = _fixed_inputs(functions)
    sizes = _batch_sizes(functions) if fixed else {}
    needs = _Needs(functions)
    return tuple(_with_batches(f, _fixed_rows(f, fixed, sizes) if fixed else {}, needs) for f in functions)


class _FixedInput(NamedTuple):
    """The input of a model whose file says how many rows it takes."""

    name: str
    rows: int


def _fixed_inputs(functions: Iterable[Function]) -> Mapping[str, _FixedInput]:
    """By slot, the models that take batches of one size alone."""
    found: dict[str, _FixedInput] = {}
    for function in functions:
        if function.domain != keys.COMPONENT_DOMAIN or not function.inputs:
            continue
        slot, graph, _ = component_graph(function)
        known = function.types.get(function.inputs[0]) if graph == "forward" else None
        if known is not None and known.shape and isinstance(rows := known.shape[0], int):
            found[slot] = _FixedInput(function.inputs[0], rows)
    return found


def _fixed_rows(
    function: Function, fixed: Mapping[str, _FixedInput], sizes: Mapping[str, set[object]]
) -> Mapping[str, int]:
    """By the batch that a source gives, the rows that a model with a fixed batch needs of it."""
    if keys.ROLE_MODEL_DOMAIN not in flow.summary(function.ops).domains:
        return {}
    found: dict[str, int] = {}
    makers = {name: op for op in function.ops for name in op.outputs if name}
    for op in function.ops:
        if op.op_type not in _TAKES_BATCHES or op.domain != keys.ROLE_MODEL_DOMAIN or op.slot not in fixed:
            continue
        name, rows = fixed[op.slot]
        for batch, giving in _sources(op.inputs[0], makers):
            for size in sizes.get(giving.slot, ()):
                if isinstance(size, int) and 0 < size != rows:
                    raise LearnError(
                        f"model {op.slot!r} takes batches of {rows} alone: its file says so of input"
                        f" {name!r}; data source {giving.slot!r} gives {size} (batch_size)",
                        source(op),
                        f"export it with a dynamic batch dimension (torch.onnx.export(…, dynamic_shapes=({{0:"
                        f" torch.export.Dim('batch')}},))), or configure batch_size={rows}",
                    )
            found[batch] = rows
    return found


def _sources(name: str, makers: Mapping[str, Op]) -> Iterator[tuple[str, Op]]:
    """The batches that a value was made of row by row, each with the op that gives it."""
    left, seen = [name], set[str]()
    while left:
        *_, name = same_values(left.pop(), makers)
        maker = makers.get(name)
        if maker is None or name in seen:
            continue
        seen.add(name)
        if maker.op_type == "NextBatch" and maker.domain == keys.ROLE_DATA_LOADER_DOMAIN:
            if name == maker.outputs[0]:
                yield name, maker
        elif maker.op_type in _ROW_BY_ROW and maker.domain == keys.ONNX_DOMAIN:
            left += maker.inputs


def _with_batches(function: Function, fixed: Mapping[str, int], needs: _Needs) -> Function:
    if keys.ROLE_DATA_LOADER_DOMAIN not in flow.summary(function.ops).domains:
        return function
    changed: dict[int, Op] = {}
    giving = [
        (index, op)
        for index, op in enumerate(function.ops)
        if op.op_type == "NextBatch" and op.domain == keys.ROLE_DATA_LOADER_DOMAIN
    ]
    given = [name for _, op in giving for name in op.outputs]
    read = flow.read_of(function, given)
    needed = needs.of(function, [name for name in given if name in read])
    stamps: dict[tuple[object, ...], Callable[[Op], Op]] = {}  # most give the same
    for index, op in giving:
        known = list(map(needed.get, op.outputs))
        rows = fixed.get(op.outputs[0], -1)
        key = (rows, *known)
        stamp = stamps.get(key)
        if stamp is None:
            parts = _parts(known, rows)
            stamp = stamps[key] = stamping(OpFacts(parts=parts) if parts else NO_FACTS)
        new = stamp(op)
        if new is not op:
            changed[index] = new
    return flow.restamped(function, changed)


class _Needs:
    """What whoever reads a value takes: behind `after=`, scaled and cast, in branches and loops."""

    def __init__(self, functions: Iterable[Function]) -> None:
        self._keyed = {f.key: f for f in functions}

    def of(self, function: Function, names: Iterable[str]) -> dict[str, ValueType | None]:
        """The types of values, with what is known of them where they are read.

        A first walk over the ops finds what is made of the values, a second one, backwards, what that needs.
        """
        followed = set(names)
        apart = followed.isdisjoint
        handing = [op for op in function.ops if not apart(op.inputs) and self._is_handed_on(op, followed)]
        said: dict[str, list[ValueType | None]] = {}  # by the readers, the last one first

        def known(name: str) -> ValueType | None:
            found = function.types.get(name)
            for needed in reversed(said.get(name, ())):
                found = _narrower(found, needed)
            return found

        for op in reversed(handing):
            if op.domain != keys.SYSCALL_DOMAIN:
                needed = known(op.outputs[0])
                for name in followed.intersection(op.inputs):
                    said.setdefault(name, []).append(_operand(function, op, name, needed))
            elif is_gate(op):
                said.setdefault(op.inputs[0], []).append(known(op.outputs[0]))
            else:
                for name in followed.intersection(op.inputs):
                    said.setdefault(name, []).extend(self._in_bodies(op, name))
        return {name: known(name) for name in names}

    @staticmethod
    def _is_handed_on(op: Op, followed: set[str]) -> bool:
        """Whether an op that reads one of these values hands it on, as it is or element by element; then its
        result too.
        """
        if op.domain == keys.SYSCALL_DOMAIN:
            if not is_gate(op):
                return bool(flow.callees(op))
            if op.inputs[0] not in followed:  # it is what the gate waits for
                return False
        elif op.op_type not in _ROW_BY_ROW or op.domain != keys.ONNX_DOMAIN:
            return False
        followed.add(op.outputs[0])
        return True

    def _in_bodies(self, op: Op, name: str) -> Iterator[ValueType | None]:
        for key in reversed(flow.callees(op)):
            if (body := self._keyed.get(key)) is not None:
                inner = body.inputs[op.inputs.index(name)]
                yield self.of(body, (inner,))[inner]


def _operand(function: Function, op: Op, name: str, needed: ValueType | None) -> ValueType | None:
    """What an operand has to be for the result that is needed, where the shapes of the others are known.

    The batch has the sizes of the result, or is repeated to them: one of a single column, which lacks the
    others. The type of numbers may be another one: of a Cast.
    """
    if needed is None or needed.shape is None:
        return None
    for other in op.inputs:
        if other and other != name:
            known = function.types.get(other)
            if known is None or known.shape is None:
                return None
    return ValueType(types.TENSOR, needed.shape)


def _narrower(one: ValueType | None, other: ValueType | None) -> ValueType | None:
    """What both say of one value; the first of them where they differ, which whoever reads it refuses."""
    if one is None or other is None:
        return one or other
    node, shape = one.node, one.shape
    if types.is_subtype(other.node, node):
        node = other.node
    if shape is None:
        shape = other.shape
    elif other.shape is not None and shape != other.shape and len(shape) == len(other.shape):
        met = zip(shape, other.shape, strict=True)
        shape = tuple([a if isinstance(a, int) or b is None else b for a, b in met])
    return one if node is one.node and shape == one.shape else ValueType(node, shape)


def _parts(known: Iterable[ValueType | None], rows: int) -> str:
    """What is stamped where the outputs have these types; empty where nothing is known.

    `rows` are those that every batch must have, -1 where any number will do.
    """
    parts = []
    for type_hash, shape, _ in map(part_of, known):
        parts.append((type_hash, (rows, *shape[1:]) if shape else shape, None))
        rows = -1  # as many labels come with the batch
    return write_parts([parts]) if any(type_hash or shape for type_hash, shape, _ in parts) else ""


def with_fewest_rows(functions: tuple[Function, ...], stats: Stats) -> tuple[Function, ...]:
    """The functions with the rows that a batch needs at least on each `NextBatch` that a model is trained on.

    Models whose normalizations learn say so of themselves. Raises LearnError where a batch is known to have
    fewer, and warns where the configuration of its source says fewer, which a device may say otherwise.
    """
    fewest = _fewest_rows(functions)
    if not fewest:
        return functions
    sizes = _batch_sizes(functions)
    return tuple(_with_fewest_rows(function, fewest, sizes, stats) for function in functions)


def _batch_sizes(functions: Iterable[Function]) -> Mapping[str, set[object]]:
    """By slot, what its configurations say under `batch_size`, 0 where they say nothing.

    Bodies of loops have no slots: those of the partitions hold for them.
    """
    sizes: dict[str, set[object]] = {}
    for function in functions:
        for name, slot in function.slots.items():
            state = {} if slot.state is None else config_of(slot.state)
            sizes.setdefault(name, set()).add(state.get("batch_size", 0))
    return sizes


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


_TAKES_LABELS = frozenset(("Evaluate", "Train"))
"""Ops of a model whose second input are targets."""


def with_label_classes(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """The functions with the classes of the model on each `NextBatch` whose labels are its targets.

    A device holds the labels that it has against them when the program is installed.
    """
    classes = _label_classes(functions)
    return tuple(_with_label_classes(function, classes) for function in functions) if classes else functions


def _label_classes(functions: Iterable[Function]) -> Mapping[str, tuple[int, int]]:
    """By slot of a model whose targets are numbers of classes: how many, and the number of none.

    Of several models in a slot, as for other targets, the most; slots that disagree on the latter are left.
    """
    counts: dict[str, int] = {}
    ignored: dict[str, set[int]] = {}
    for function in functions:
        if function.domain == keys.COMPONENT_DOMAIN and function.facts.class_count:
            slot = component_graph(function)[0]
            counts[slot] = max(function.facts.class_count, counts.get(slot, 0))
    for function in functions if counts else ():
        for name, record in function.slots.items():
            if name in counts and record.state is not None:
                said = config_of(record.state).get("ignore_index", IGNORE_INDEX)
                ignored.setdefault(name, set()).update((said,) if isinstance(said, int) else ())
    return {
        slot: (count, min(ignored[slot])) for slot, count in counts.items() if len(ignored.get(slot, ())) == 1
    }


def _with_label_classes(function: Function, classes: Mapping[str, tuple[int, int]]) -> Function:
    if keys.ROLE_MODEL_DOMAIN not in flow.summary(function.ops).domains:
        return function
    takes: dict[str, tuple[int, int]] = {}  # by the value that holds labels
    makers = {name: op for op in function.ops for name in op.outputs if name}
    for op in function.ops:
        if op.op_type in _TAKES_LABELS and op.domain == keys.ROLE_MODEL_DOMAIN and op.slot in classes:
            for name in same_values(op.inputs[1], makers):
                takes[name] = min(classes[op.slot], takes.get(name, classes[op.slot]))
    changed = {
        index: op.saying(OpFacts(label_classes=takes[op.outputs[1]]))
        for index, op in enumerate(function.ops)
        if op.op_type == "NextBatch"
        and op.domain == keys.ROLE_DATA_LOADER_DOMAIN
        and len(op.outputs) > 1
        and op.outputs[1] in takes
    }
    return flow.restamped(function, changed)
