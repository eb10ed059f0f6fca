"""Replaces runs of ONNX ops by one call of a backend function each (BackendSubgraph).

1. Two ONNX ops on one backend join where one reads the other's result and both have the same *arrivals*
   (`arrivals.py`): whatever the group hands out was computable at the very moment at which the whole group
   is. So no output waits for an input that it did not wait for before; the group is convex (what lies on a
   way from one member to another has the same arrivals, or is another kind of op, and that would be an
   arrival of its own); and ops of a request's answers never join ops of the asking execution.
2. A group whose results are all read by one other group joins that one, though that one has more arrivals,
   if none of these may come much later (from the wire, from timers): nothing but that group could tell.
3. Constants are copied into the groups that read them, so that the backend knows them when it plans. A large
   one that several groups read stays outside.
4. The functions are named by their content; equal groups share one. Its inputs are in order of first use,
   its outputs in order of definition. A group fails as a whole.
5. Results that nobody reads are dropped. A function's outputs are read from outside: none is delayed, none
   goes.
6. Left alone: ops that no backend runs (`is_tensor_op`), functions of backends and components.

Running it again changes nothing. Pure: programs in and out.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.opsets import onnx as onnx_opset
from bb_host.ir.facts import NO_FACTS, FunctionFacts
from bb_host.ir.hashing import content_digest
from bb_host.ir.program import Function, Op, Program, RawTensor
from bb_host.ir.queries import is_constant, reads, without_dead_constants
from bb_host.ir.rename import short_names, shortened_op
from bb_host.passes.tensor.arrivals import arrivals, backend_slot

_LARGE = 1024
"""Bytes of a constant above which it is not copied into several groups."""


class Origin(NamedTuple):
    """An op that a call stands for, and how the body names its first output (empty without output)."""

    op: Op
    value: str


Origins = dict[tuple[tuple[str, str], str], tuple[Origin, ...]]


@dataclass(frozen=True, slots=True)
class Collapsed:
    """`origins`: what a call stands for, by function key and the call's first output."""

    program: Program
    origins: Origins = field(default_factory=dict)


def collapse(program: Program) -> Collapsed:
    """Collapses every function that the engine runs itself."""
    bodies: dict[str, Function] = {}
    origins: Origins = {}
    functions = []
    for function in program.functions:
        if not function.is_tensor_work:
            function = collapse_function(function, program.opsets, bodies, origins)
        functions.append(function)
    if all(new is old for new, old in zip(functions, program.functions, strict=True)):
        return Collapsed(program)
    known = {f.key for f in functions}
    added = [f for f in bodies.values() if f.key not in known]
    opsets = {**program.opsets, keys.BACKEND_DOMAIN: 1} if added else program.opsets
    return Collapsed(dataclasses.replace(program, functions=(*functions, *added), opsets=opsets), origins)


def collapse_function(
    function: Function, opsets: Mapping[str, int], bodies: dict[str, Function], origins: Origins
) -> Function:
    """One function; new bodies and origins are added to the two dicts."""
    groups = _groups(function)
    if not groups:
        return function
    writer = _Writer(function, {**opsets, **function.opsets}, groups)
    grouped = {i for members in groups for i in members}
    entries = [(i, op) for i, op in enumerate(function.ops) if i not in grouped]
    for members in groups:
        written = writer.call(members, bodies)
        if written is not None:
            call, origins[function.key, call.outputs[0]] = written
            entries.append((members[0], call))
    ops = _ordered(sorted(entries, key=lambda entry: entry[0]))
    ops = without_dead_constants(ops, function.outputs)
    read = {v for op in ops for v in reads(op)}
    alive = {*function.inputs, *read, *(v for op in ops for v in op.outputs)}
    return dataclasses.replace(
        function,
        ops=ops,
        types={name: known for name, known in function.types.items() if name in alive},
        opsets={**function.opsets, keys.BACKEND_DOMAIN: 1},
    )


# --- grouping -------------------------------------------------------------------------------------


def _groups(function: Function) -> list[list[int]]:
    """Indices of the members of each group, in order."""
    found = arrivals(function)
    if not found.of_op:
        return []
    producer = {v: i for i in found.of_op for v in function.ops[i].outputs if v}
    groups = _Groups(found.of_op)
    readers: dict[str, list[int]] = defaultdict(list)
    for i, op in enumerate(function.ops):
        for name in dict.fromkeys(reads(op)):
            readers[name].append(i)
            other = producer.get(name)
            if other is not None and i in found.of_op and found.of_op[other] == found.of_op[i]:
                groups.join(other, i)
    while _join_only_reader(function, found.waits, groups, readers):
        pass
    return sorted(groups.members.values())


def _join_only_reader(
    function: Function, waits: int, groups: _Groups, readers: Mapping[str, list[int]]
) -> bool:
    """Rule 2, once; from the end, so that a chain of groups joins in one walk."""
    joined = False
    ends = set(function.outputs)
    for root in sorted(groups.members, reverse=True):
        if root not in groups.members:
            continue
        group = groups.members[root]
        results = [v for i in group for v in function.ops[i].outputs if v]
        if ends.intersection(results):
            continue
        outside = {r for v in results for r in readers.get(v, ())}.difference(group)
        targets = {groups.find(r) for r in outside}
        if len(targets) != 1 or None in targets:
            continue
        target = groups.find(min(outside))
        assert target is not None
        if backend_slot(function.ops[group[0]]) != backend_slot(function.ops[target]):
            continue
        more = groups.masks[target] & ~groups.masks[root]
        # A group over constants alone is computed once, at planning: it never waits.
        if groups.masks[root] and more & waits:
            continue
        groups.join(root, target)
        joined = True
    return joined


class _Groups:
    """Disjoint sets of op indices; a group is named by its first member."""

    def __init__(self, masks: Mapping[int, int]) -> None:
        self._root = {i: i for i in masks}
        self.members = {i: [i] for i in masks}
        self.masks = dict(masks)

    def find(self, index: int) -> int | None:
        """The group of an op, None for an op that is in none."""
        return self._root.get(index)

    def join(self, a: int, b: int) -> None:
        first, second = sorted((self._root[a], self._root[b]))
        if first == second:
            return
        moved = self.members.pop(second)
        self.members[first] = sorted([*self.members[first], *moved])
        self.masks[first] |= self.masks.pop(second)
        for i in moved:
            self._root[i] = first


# --- writing --------------------------------------------------------------------------------------


class _Writer:
    """Writes the groups of one function as backend functions and calls."""

    def __init__(
        self, function: Function, opsets: Mapping[str, int], groups: Sequence[Sequence[int]]
    ) -> None:
        self._function = function
        self._opsets = {keys.ONNX_DOMAIN: opsets.get(keys.ONNX_DOMAIN, onnx_opset.VERSION)}
        self._group_of = {i: n for n, members in enumerate(groups) for i in members}
        self._constants = {op.outputs[0]: op for op in function.ops if is_constant(op)}
        self._readers: dict[str, set[int]] = defaultdict(set)  # groups; -1 for any other op
        for i, op in enumerate(function.ops):
            for name in reads(op):
                self._readers[name].add(self._group_of.get(i, -1))
        for name in function.outputs:
            self._readers[name].add(-1)

    def call(
        self, members: Sequence[int], bodies: dict[str, Function]
    ) -> tuple[Op, tuple[Origin, ...]] | None:
        """The call that stands for a group, and what it stands for.

        Its body is added to `bodies`, unless an equal one is there. None for a group whose results nobody
        reads.
        """
        ops = [self._function.ops[i] for i in members]
        own = {v for op in ops for v in op.outputs if v}
        read = dict.fromkeys(v for op in ops for v in reads(op) if v and v not in own)
        copied = [v for v in read if v in self._constants and self._copies(v)]
        inputs = tuple(v for v in read if v not in copied)
        number = self._group_of[members[0]]
        outputs = tuple(v for op in ops for v in op.outputs if v and self._readers[v] - {number})
        if not outputs:
            return None
        inside = (*(self._constants[v] for v in copied), *ops)
        body, rename = self._body(inside, inputs, outputs, backend_slot(ops[0]))
        bodies.setdefault(body.name, body)
        stands_for = tuple(Origin(op, next((rename[v] for v in op.outputs if v), "")) for op in ops)
        return Op(body.name, keys.BACKEND_DOMAIN, inputs, outputs), stands_for

    def _copies(self, name: str) -> bool:
        if len(self._readers[name] - {-1}) == 1:
            return True
        value = self._constants[name].attrs.get("value")
        if isinstance(value, RawTensor):
            return len(value.data) <= _LARGE
        return not isinstance(value, np.ndarray) or value.nbytes <= _LARGE

    def _body(
        self, ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], slot: str
    ) -> tuple[Function, dict[str, str]]:
        """The group as a function: short names, no names of nodes, nothing that only an author reads.

        And the short name of each value.
        """
        values = dict.fromkeys((*inputs, *outputs, *(v for op in ops for v in op.outputs if v)))
        rename = dict(zip(values, short_names(), strict=False))
        known = self._function.types
        function = Function(
            "",
            keys.BACKEND_DOMAIN,
            tuple(rename[v] for v in inputs),
            tuple(rename[v] for v in outputs),
            tuple(_bare(shortened_op(op, rename)) for op in ops),
            {rename[v]: known[v] for v in (*inputs, *outputs) if v in known},
            facts=FunctionFacts(backend_slot=slot) if slot else FunctionFacts(),
            opsets=self._opsets,
        )
        return dataclasses.replace(function, name=f"subgraph_{content_digest(function)}"), rename


def _ordered(entries: Sequence[tuple[int, Op]]) -> tuple[Op, ...]:
    """Topological order again, as near to the old one as it goes: a call may stand before what it reads."""
    ops = [op for _, op in entries]
    producer = {v: i for i, op in enumerate(ops) for v in op.outputs if v}
    befores = [{producer[v] for v in reads(op) if v in producer} for op in ops]
    followers: dict[int, list[int]] = defaultdict(list)
    for i, before in enumerate(befores):
        for other in before:
            followers[other].append(i)
    missing = [len(before) for before in befores]
    ready = [i for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        i = heapq.heappop(ready)
        ordered.append(ops[i])
        for follower in followers[i]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    assert len(ordered) == len(ops), "groups are convex"
    return tuple(ordered)


def _bare(op: Op) -> Op:
    return dataclasses.replace(op, facts=NO_FACTS, name="", extra=b"")
