"""Checks syscalls that meet under a name: both halves are there and agree, and counters are distinct.

Names belong to a partition: what a client stashes, the server cannot flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bb_edge.ir import keys, types
from bb_edge.ir.counters import spelling
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.errors import MalformedOp, label, named, source
from bb_host.ir.program import Op
from bb_host.ir.text.printer import print_type
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.limits import ACQUIRE, RELEASE, check_limits
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats


class _Event(NamedTuple):
    """An op that emits one, the type of its value, and the class that it runs on."""

    op: Op
    kind: TypeNode
    target: str


_PLACES = {
    "Hold.Stash": ("slot", "Hold.Flush", "nothing flushes what it keeps", "g.hold_flush"),
    "Hold.Flush": ("slot", "Hold.Stash", "it never yields a value: nothing stashes one", "g.hold_stash"),
    "Serialize.Enqueue": (
        "queue",
        "Serialize.Dequeue",
        "nothing takes from the queue, which fails when it is full",
        "g.serialize_dequeue",
    ),
    "Serialize.Dequeue": (
        "queue",
        "Serialize.Enqueue",
        "it waits for ever: nothing puts into the queue",
        "g.serialize_enqueue",
    ),
    "Limit.Release": ("name", "Limit.Acquire", "it fails: nothing acquires a permit", "g.limit_acquire"),
}
_COUNTER = "IncrMetric"
_LOOP = (keys.SYSCALL_DOMAIN, "Loop")
_EVENT = (keys.SYSCALL_DOMAIN, "AppEmit")
_KINDS = frozenset((keys.SYSCALL_DOMAIN, name) for name in (*_PLACES, ACQUIRE, _COUNTER))


def check_pairs(targets: Sequence[TargetSlots], stats: Stats) -> None:
    """Warns about halves without their other one; MalformedOp for a semaphore of two sizes.

    MalformedOp too for two counters that are spelt alike, for events of one name and two types on one class,
    and for a limit that waits for itself. Such events of two classes are warned of.
    """
    events: dict[str, _Event] = {}
    for target in targets:
        _sums(target, stats)
        _gradients(target, stats)
        _looped_sums(target, stats)
        _events(target, events, stats)
        found = [
            op
            for function in target.functions
            if not _KINDS.isdisjoint(flow.summary(function.ops).kinds)
            for op in function.ops
            if (op.domain, op.op_type) in _KINDS
        ]
        if found:
            _halves(found, target.main.name, stats)
            _sizes(found)
            _counters(found)
            limits = [op for op in found if op.op_type in (ACQUIRE, RELEASE)]
            if limits:
                check_limits(target.functions, limits, stats)


def _halves(found: Sequence[Op], target: str, stats: Stats) -> None:
    there = {(op.op_type, _place(op)) for op in found}
    for op in found:
        row = _PLACES.get(op.op_type)
        if row is not None and (row[1], _place(op)) not in there:
            attribute, _, what, other = row
            stats.warn(
                "missing-half",
                f"{label(op)}: {what} ({attribute} {_place(op)!r}, on {target})",
                source(op),
                f"record {other}({_place(op)!r}, …) in the same program and class, under the same name",
            )


def _sums(target: TargetSlots, stats: Stats) -> None:
    """Warns of contributions that nothing aggregates, and of aggregates to which nothing is contributed.

    An aggregate of a `stack` needs no contribution.
    """
    for slot, ops in target.ops.items():
        if target.role(slot) != keys.ROLE_AGGREGATOR:
            continue
        giving = [op for op in ops if op.op_type == "Contribute"]
        closing = [op for op in ops if op.op_type == "Aggregate"]
        for op in giving if not closing else ():
            _alone(op, target, "nothing aggregates what is contributed", "aggregate(g, …)", stats)
        for op in closing if not giving else ():
            if not _given(op):
                _alone(op, target, "nothing is contributed, and it has no stack", "contribute(g, …)", stats)


def _looped_sums(target: TargetSlots, stats: Stats) -> None:
    """Warns of an aggregate in a loop whose contributions come from outside: its first iteration has all."""
    given = {slot for slot, ops in target.ops.items() if any(op.op_type == "Contribute" for op in ops)}
    if not given:
        return
    keyed = {f.key: f for f in target.functions}
    loops = [op for f in target.functions for op in f.ops if (op.domain, op.op_type) == _LOOP]
    for loop in loops:
        bodies = flow.reached([keyed[key] for key in flow.callees(loop) if key in keyed], keyed)
        inside = [op for f in bodies.values() for op in f.ops if op.domain == keys.ROLE_AGGREGATOR_DOMAIN]
        summed = {op.slot for op in inside if op.op_type == "Contribute"}
        for op in inside:
            if op.op_type == "Aggregate" and op.slot in given - summed and not _given(op):
                stats.warn(
                    "spent-aggregate",
                    f"the loop of {source(loop)} takes the sum of slot {op.slot!r} in its first iteration:"
                    " nothing is contributed in it, so that the results of the others are empty and their"
                    " totals 0",
                    source(op),
                    "call it before the loop, and use its results there",
                )


def _events(target: TargetSlots, first: dict[str, _Event], stats: Stats) -> None:
    """MalformedOp for events of one name with values of two types: who reads them can tell no one apart.

    Where it is another class that emits the other, the reader can go by the node: a warning. `first` holds
    the first event of each name, of the classes before this one too.
    """
    for function in target.functions:
        if _EVENT not in flow.summary(function.ops).kinds:
            continue
        for op in function.ops:
            kind = function.types.get(op.inputs[0]) if (op.domain, op.op_type) == _EVENT else None
            if kind is None:
                continue
            name = _place(op)
            other, of_other, there = first.setdefault(name, _Event(op, kind.node, target.main.name))
            if types.compatible(kind.node, of_other) or types.compatible(of_other, kind.node):
                continue
            one, two = print_type(ValueType(kind.node)), print_type(ValueType(of_other))
            if there != target.main.name:
                stats.warn(
                    "two-event-types",
                    f"the event {name!r} is {one} on {target.main.name}, and {two} on {there}, at"
                    f" {named(other)}",
                    source(op),
                    "give one of them another name: who reads the events of a fleet knows them by it",
                )
                continue
            raise MalformedOp(
                f"the event {name!r} is {one} here, and {two} at {named(other)}",
                hint="give one of them another name: who reads the events knows them by it",
                op=op,
            )


_ADDS_GRADIENT = frozenset({"Train", "Backward", "BackwardKeyed", "BackwardInput"})


def _gradients(target: TargetSlots, stats: Stats) -> None:
    """Warns of gradients that nothing applies or reads, and of steps by a gradient that nothing adds to.

    `backward(…, input_grad=True)` alone is whole: the program wants the gradient of the input.
    """
    for slot, ops in target.ops.items():
        if target.role(slot) != keys.ROLE_MODEL:
            continue
        adding = [op for op in ops if op.op_type in _ADDS_GRADIENT]
        taking = [op for op in ops if op.op_type == "Gradient" or (op.op_type == "Step" and not _given(op))]
        for op in adding if not taking else ():
            if op.op_type != "BackwardInput":
                _alone(op, target, "nothing applies the gradient that it adds to", "step(g, after=…)", stats)
        for op in taking if not adding else ():
            _alone(op, target, "no gradient is ever added to: it has zeros", "train(g, x, y)", stats)


def _given(op: Op) -> bool:
    """Whether an op has its optional data input."""
    inputs = flow.data_inputs(op)
    return bool(inputs and inputs[0])


def _alone(op: Op, target: TargetSlots, what: str, other: str, stats: Stats) -> None:
    stats.warn(
        "missing-half",
        f"{label(op)}: {what} (slot {op.slot!r}, on {target.main.name})",
        source(op),
        f"record {other} on the same slot and class",
    )


def _sizes(found: Sequence[Op]) -> None:
    first: dict[str, Op] = {}
    for op in found:
        if op.op_type == ACQUIRE:
            other = first.setdefault(_place(op), op)
            if other.attrs.get("n") != op.attrs.get("n"):
                sizes = f"{op.attrs.get('n')!r} permits here, and {other.attrs.get('n')!r}"
                raise MalformedOp(
                    f"limit {_place(op)!r} has {sizes} at {named(other)}",
                    hint="say the same n, or name two limits",
                    op=op,
                )


def _counters(found: Sequence[Op]) -> None:
    """MalformedOp for two counters that metrics would spell alike."""
    first: dict[str, Op] = {}
    for op in found:
        if op.op_type == _COUNTER:
            other = first.setdefault(spelling(_place(op)), op)
            if _place(other) != _place(op):
                raise MalformedOp(
                    f"counters {_place(op)!r} and {_place(other)!r} ({named(other)}) are both"
                    f" bb_{spelling(_place(op))}_total in metrics",
                    hint="say one name for one counter, or names that differ in letters or digits",
                    op=op,
                )


def _place(op: Op) -> str:
    value = op.attrs.get("name") or op.attrs.get("slot") or op.attrs.get("queue") or b""
    return value.decode() if isinstance(value, bytes) else str(value)
