"""Warns of executions that take permits of a limit while they hold some: they may wait for themselves.

An acquire that depends on others of its limit comes while the execution holds theirs, unless a release that
does not depend on it gives some back. Where these are all permits that there are, it waits for ever; where
they are not, several executions that each hold some can wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpKind
from bb_host.errors import MalformedOp, named, source
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import fires_on_one, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.host_gates import ACROSS
from bb_host.passes.one_pass import Stats

ACQUIRE, RELEASE = "Limit.Acquire", "Limit.Release"

_NOTHING: frozenset[int] = frozenset()


def check_limits(functions: Sequence[Function], found: Sequence[Op], stats: Stats) -> None:
    """Warns about limits that are acquired one in the other; MalformedOp where that can never be granted.

    `functions` are those of one partition, `found` its acquires and releases.
    """
    times = Counter(_name(op) for op in found if op.op_type == ACQUIRE)
    keyed = {f.key: f for f in functions}
    calls = Counter(callee.key for f in functions for _, callee in flow.calls(f, keyed))
    if len(found) < 2 and all(count < 2 for count in calls.values()):
        return
    sizes = {_name(op): op.attrs.get("n") for op in found if op.op_type == ACQUIRE}
    takes = _Takes(keyed)
    for function in functions:
        for limit in times:
            _check(function, limit, sizes[limit], takes, stats)


class _Takes:
    """How many permits of a limit an op takes and gives back; a call as many as its function."""

    def __init__(self, keyed: Mapping[tuple[str, str], Function]) -> None:
        self._keyed = keyed
        self._known: dict[tuple[str, str, str], tuple[int, int]] = {}

    def of(self, op: Op, limit: str) -> tuple[int, int]:
        if op.domain == keys.SYSCALL_DOMAIN:
            if op.op_type not in (ACQUIRE, RELEASE) or _name(op) != limit:
                return 0, 0
            return (1, 0) if op.op_type == ACQUIRE else (0, 1)
        callee = None if op.domain in flow.LEAF_DOMAINS else self._keyed.get((op.domain, op.op_type))
        if callee is None:
            return 0, 0
        key = (*callee.key, limit)
        if key not in self._known:
            pairs = [self.of(inner, limit) for inner in callee.ops]
            self._known[key] = sum(p[0] for p in pairs), sum(p[1] for p in pairs)
        return self._known[key]


def _check(function: Function, limit: str, size: object, takes: _Takes, stats: Stats) -> None:
    behind: dict[str, frozenset[int]] = {}
    taken: dict[int, tuple[int, int]] = {}
    before: dict[int, frozenset[int]] = {}
    for index, op in enumerate(function.ops):
        found = _certain(op, behind)
        took = takes.of(op, limit)
        if any(took):
            taken[index], before[index] = took, found
            found |= {index}
        if found:
            behind.update((name, found) for name in op.outputs if name)
    for index in taken:
        outer = [i for i in sorted(before[index]) if taken[i][0] > taken[i][1]]
        if not taken[index][0] or not outer:
            continue
        held = sum(taken[i][0] - taken[i][1] for i in outer)
        freed = sum(taken[i][1] for i in taken if i not in outer and i != index and index not in before[i])
        if held <= freed:
            continue
        op = function.ops[index]
        what = f"limit {limit!r} ({_count(size)}) is acquired again behind {named(function.ops[outer[0]])}"
        hint = "release the first one before (after= the done of g.limit_release), or name two limits"
        if isinstance(size, int) and held - freed >= size:
            so = "the execution waits for itself for ever, and so do all that come after it"
            raise MalformedOp(f"{what}: {so}", hint=hint, op=op)
        so = "executions that each hold some of the permits wait for each other for ever"
        stats.warn("nested-limit", f"{what}: {so}", source(op), hint)


def _certain(op: Op, behind: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """The acquires and releases that have run in the op's execution whenever the op runs."""
    inputs = [behind.get(name, _NOTHING) for name in reads(op) if name]
    if not inputs or ACROSS in op.attrs:
        return _NOTHING
    row = opsets.lookup(op.domain, op.op_type)
    if row is None:
        return _NOTHING.union(*inputs)
    if row.kind is OpKind.ENTRY:
        return _NOTHING  # answers come in executions of their own
    if fires_on_one(row):
        return frozenset.intersection(*inputs)
    return _NOTHING.union(*inputs)


def _count(size: object) -> str:
    return f"{size} permit{'' if size == 1 else 's'}"


def _name(op: Op) -> str:
    value = op.attrs.get("name")
    return value.decode() if isinstance(value, bytes) else str(value)
