"""Finds what a Composite holds: follows it back from its use to the Bundle ops that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from bb_edge.ir import keys, types
from bb_edge.ir.stamped_parts import StampedPart
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import is_gate
from bb_host.passes.analysis import flow

PUTS = {"Hold.Flush": ("Hold.Stash", "slot"), "Serialize.Dequeue": ("Serialize.Enqueue", "queue")}
"""What is taken out here was put in there, under the name that the attribute says."""

Arrivals = Mapping[tuple[str, str], tuple[Function, str]]
"""(partition, value) that arrives → the partition that sends it, and how the value is named there."""


def part_of(known: ValueType | None) -> StampedPart:
    """What is stamped of a value of a type, but for what a bundle holds."""
    if known is None:
        return 0, None, None
    type_hash = known.node.wire_hash or 0
    if known.shape is None or not types.is_subtype(known.node, types.TENSOR):
        return type_hash, None, None
    return type_hash, tuple(size if isinstance(size, int) else -1 for size in known.shape), None


def _common(
    one: tuple[StampedPart, ...] | None, other: tuple[StampedPart, ...] | None
) -> tuple[StampedPart, ...] | None:
    """What holds for each of two bundles of which one comes; None where they have not as many parts."""
    if one is None or other is None or len(one) != len(other):
        return None
    found = []
    for (a, shape, inner), (b, other_shape, other_inner) in zip(one, other, strict=True):
        if shape is None or other_shape is None or len(shape) != len(other_shape):
            shape = None
        else:
            shape = tuple(n if n == m else -1 for n, m in zip(shape, other_shape, strict=True))
        found.append((a, shape, _common(inner, other_inner)) if a == b else (0, None, None))
    return tuple(found)


class Bundles:
    """The bundles of one program; a function is read when one of its Composites is asked about."""

    def __init__(self, program: Program) -> None:
        self._functions = {f.key: f for f in program.functions}
        self._yields: dict[tuple[str, str], Mapping[str, Op]] = {}

    def parts(self, function: Function, name: str) -> Iterator[tuple[TypeNode, Op]]:
        """The types of all that a Composite may hold, to any depth, each with the Bundle that takes it in.

        What came in from outside (an input of the host, another device) is not known here, and not among it.
        """
        yield from self._parts(function, name, set(), [])

    def layout(self, function: Function, name: str, arrivals: Arrivals) -> tuple[StampedPart, ...] | None:
        """What a Composite holds for certain, None where that is not known.

        Unlike `parts` this follows only what cannot put another Composite in its place.
        """
        return self._layout(function, name, arrivals, frozenset(), ())

    def _layout(
        self,
        function: Function,
        name: str,
        arrivals: Arrivals,
        seen: frozenset[tuple[str, str, str]],
        callers: tuple[tuple[Function, Op], ...],
    ) -> tuple[StampedPart, ...] | None:
        key = (*function.key, name)
        if key in seen:
            return None
        seen |= {key}
        sent = arrivals.get((function.name, name)) if not callers else None
        if sent is not None:
            return self._layout(*sent, arrivals, seen, ())
        op = self._of(function).get(name)
        if op is None:
            if not callers or name not in function.inputs:
                return None
            caller, call = callers[-1]
            index = function.inputs.index(name)
            if index >= len(call.inputs):
                return None
            return self._layout(caller, call.inputs[index], arrivals, seen, callers[:-1])
        if op.domain == keys.COMPOSITE_DOMAIN and op.op_type == "Bundle":
            return tuple(
                self._part(function, source, arrivals, seen, callers) for source in flow.data_inputs(op)
            )
        if op.domain == keys.COMPOSITE_DOMAIN and op.op_type == "Unbundle":
            around = self._layout(function, op.inputs[0], arrivals, seen, callers)
            place = op.outputs.index(name)
            return around[place][2] if around is not None and place < len(around) else None
        callee = self._functions.get((op.domain, op.op_type))
        if callee is not None and op.domain not in flow.LEAF_DOMAINS:
            formal = callee.outputs[op.outputs.index(name)]
            return self._layout(callee, formal, arrivals, seen, (*callers, (function, op)))
        if is_gate(op):
            return self._layout(function, op.inputs[0], arrivals, seen, callers)
        if op.domain == keys.SYSCALL_DOMAIN and op.op_type == "Any":
            sources = [
                self._layout(function, source, arrivals, seen, callers) for source in flow.data_inputs(op)
            ]
            return reduce(_common, sources)
        if op.domain == keys.GATE_DOMAIN:
            return self._layout(function, op.inputs[op.outputs.index(name)], arrivals, seen, callers)
        return None

    def _part(
        self,
        function: Function,
        source: str,
        arrivals: Arrivals,
        seen: frozenset[tuple[str, str, str]],
        callers: tuple[tuple[Function, Op], ...],
    ) -> StampedPart:
        part = part_of(function.types.get(source))
        if part[0] != types.COMPOSITE.wire_hash:
            return part
        return part[0], None, self._layout(function, source, arrivals, seen, callers)

    def _parts(
        self,
        function: Function,
        name: str,
        seen: set[tuple[str, str, str]],
        callers: list[tuple[Function, Op]],
    ) -> Iterator[tuple[TypeNode, Op]]:
        if (*function.key, name) in seen:
            return
        seen.add((*function.key, name))
        op = self._of(function).get(name)
        if op is None:
            if callers and name in function.inputs:
                caller, call = callers[-1]
                index = function.inputs.index(name)
                if index < len(call.inputs):
                    yield from self._parts(caller, call.inputs[index], seen, callers[:-1])
            return
        callee = self._functions.get((op.domain, op.op_type))
        if callee is not None and op.domain not in flow.LEAF_DOMAINS:
            formal = callee.outputs[op.outputs.index(name)]
            yield from self._parts(callee, formal, seen, [*callers, (function, op)])
            return
        bundle = op.domain == keys.COMPOSITE_DOMAIN and op.op_type == "Bundle"
        for source in self._sources(function, op):
            known = function.types.get(source)
            if known is None:
                continue
            if bundle and known.node is not types.COMPOSITE:
                yield known.node, op
            elif known.node is types.COMPOSITE:
                yield from self._parts(function, source, seen, callers)

    def _sources(self, function: Function, op: Op) -> Iterator[str]:
        """The values that may become an op's result."""
        yield from flow.data_inputs(op)
        put = PUTS.get(op.op_type) if op.domain == keys.SYSCALL_DOMAIN else None
        if put is not None:
            for other in function.ops:
                if other.op_type == put[0] and other.attrs.get(put[1]) == op.attrs.get(put[1]):
                    yield from flow.data_inputs(other)

    def _of(self, function: Function) -> Mapping[str, Op]:
        found = self._yields.get(function.key)
        if found is None:
            found = {name: op for op in function.ops for name in op.outputs if name}
            self._yields[function.key] = found
        return found
