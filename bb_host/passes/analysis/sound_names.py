"""Whether a function's names are sound still, from what has changed since they were last found sound.

Sound is what `verify.values_problem` calls so: every name is written before it is read, and once, and has a
type where types are promised. A stage stamps metadata, or puts a few ops in: the names of the others are the
same tuples, and what was found of them holds. Whatever is not plainly so is left to the full check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import reads
from bb_host.passes.analysis import flow

_Tuples = tuple[tuple[str, ...], ...]


class Names(NamedTuple):
    """The names of a sound function: `read` and `written` by op, `all` with the inputs and the empty name.

    `types` are those that all of them were found in; None where nobody has looked. The ops, whose list keeps
    these names, are not among them: a circle would keep what each pass made until the collector comes.
    """

    inputs: tuple[str, ...]
    read: _Tuples
    written: _Tuples
    all: frozenset[str]
    types: Mapping[str, ValueType] | None = None

    @classmethod
    def of(cls, function: Function) -> Names:
        """Of a function that was found sound just now."""
        written = tuple([op.outputs for op in function.ops])
        known = frozenset(("",)).union(function.inputs, *written)
        return cls(function.inputs, tuple([op.inputs for op in function.ops]), written, known)

    def hold(self, function: Function) -> bool:
        """Whether the names of a function of these ops are sound, without a look at them."""
        return function.inputs == self.inputs and self.all.issuperset(function.outputs)

    def typed(self, function: Function) -> Names | None:
        """The names, once all of them have types; None where one has none. A component's graph needs none."""
        kinds = function.types
        if self.types is kinds or function.domain == keys.COMPONENT_DOMAIN:
            return self
        if self.all.difference(kinds, function.inputs, ("",)):
            return None
        return self._replace(types=kinds)


def sound_names(function: Function) -> Names | None:
    """What was found of the names of a function's ops; None where nobody has looked."""
    found = flow.summary(function.ops).sound
    return found if isinstance(found, Names) else None


def all_names(function: Function) -> set[str]:
    """All names of a function's values, inputs and the empty one among them."""
    found = sound_names(function)
    if found is None or found.inputs != function.inputs:
        found = Names.of(function)
    return set(found.all)


def names_after(before: Names, old: tuple[Op, ...], function: Function, typed: bool) -> Names | None:
    """The names of a function that has become of one with the names `before` in the ops `old`, where they
    are plainly sound; else None.
    """
    ops = function.ops
    if function.inputs != before.inputs or flow.summary(ops).has_subgraphs:
        return None
    after = _where_few_changed(before, old, function)
    if after is None or not after.all.issuperset(function.outputs):
        return None
    if typed and after.all is before.all and function.types is before.types:
        return after._replace(types=before.types)
    return after.typed(function) if typed else after


def names_of_all(function: Function) -> Names | None:
    """The names of a function that nobody has looked at, where a walk over all its ops finds no fault."""
    ops = function.ops
    read, written = tuple([op.inputs for op in ops]), tuple([op.outputs for op in ops])
    return walked(function, map(reads, ops) if flow.summary(ops).has_subgraphs else read, read, written)


def walked(
    function: Function, needs: Iterable[tuple[str, ...]], read: _Tuples, written: _Tuples
) -> Names | None:
    """The names of a function whose ops need, read and write these, where a walk over them finds no fault."""
    known = {*function.inputs, ""}
    expected = len(known) + sum(map(len, written))
    covers, add = known.issuperset, known.update
    for names, outputs in zip(needs, written, strict=True):
        if not covers(names):
            return None
        add(outputs)
    if len(known) != expected or not covers(function.outputs):
        return None
    return Names(function.inputs, read, written, frozenset(known))


def _where_few_changed(before: Names, old: tuple[Op, ...], function: Function) -> Names | None:
    """Neighbouring ops, a quarter at most, in the place of others: those before and behind have their names.

    Stamps change no name. What the old ops wrote must be written still, for those behind may read it.
    """
    ops = function.ops
    if ops is old:
        return before
    most = len(ops) // 4
    first, last = ends_shared(ops, old)
    if first + last < len(ops) - most:  # stamped all over
        read, written = tuple([op.inputs for op in ops]), tuple([op.outputs for op in ops])
        if read == before.read and written == before.written:
            return Names(before.inputs, read, written, before.all)
        ends = ends_shared(read, before.read), ends_shared(written, before.written)
        first, last = map(min, zip(*ends, strict=True))
        if first + last < len(ops) - most:
            return walked(function, read, read, written)
        fresh = ops[first : len(ops) - last]
    else:
        fresh = ops[first : len(ops) - last]
        read = _between(before.read, first, last, [op.inputs for op in fresh])
        written = _between(before.written, first, last, [op.outputs for op in fresh])
    if first < last:  # whichever end is the shorter one
        there = {"", *before.inputs}.union(*before.written[:first])
    else:
        there = set(before.all).difference(*before.written[first:]) | {""}
    made: set[str] = set()
    count = 0
    for op in fresh:
        if not there.issuperset(op.inputs) or not there.isdisjoint(op.outputs):
            return None
        there.update(op.outputs)
        made.update(op.outputs)
        count += len(op.outputs)
    gone = set().union(*before.written[first : len(old) - last])
    new = made - gone
    if count != len(made) or not gone <= made or not new.isdisjoint(before.all):
        return None
    return Names(before.inputs, read, written, before.all | new if new else before.all)


def _between(names: _Tuples, first: int, last: int, fresh: Iterable[tuple[str, ...]]) -> _Tuples:
    """The first and the last of `names`, and others between them."""
    return (*names[:first], *fresh, *names[len(names) - last :])


def ends_shared(ops: tuple[object, ...], old: tuple[object, ...]) -> tuple[int, int]:
    """How many objects two tuples share at their beginnings, and how many at their ends beyond those."""
    most = min(len(ops), len(old))
    first = _shared(ops, old, most, slice)
    return first, _shared(ops, old, most - first, lambda shared, tried: slice(-tried, -shared or None))


def _shared(
    ops: tuple[object, ...], old: tuple[object, ...], most: int, part: Callable[[int, int], slice]
) -> int:
    """By slices, which are compared much faster than one object after the other: ever longer ones, then by
    halves. `part` is where those from one number to another stand, counted from the end in question.
    """
    shared, length = 0, 1
    while shared < most:
        tried = min(shared + length, most)
        of = part(shared, tried)
        if ops[of] == old[of]:
            shared, length = tried, 4 * length
        else:
            most, length = tried - 1, max(1, (tried - shared) // 2)
    return shared
