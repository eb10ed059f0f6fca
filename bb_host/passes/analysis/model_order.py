"""Warnings about calls of a model, or of a kept value, whose order nothing says; and of training unread.

The lines of a body say no order: calls run when what they wait for is there. Two calls of one execution, of
which one changes what the other reads, may so run in either order, unless one waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from bb_edge.ir import keys
from bb_host.errors import source
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import reads
from bb_host.passes.analysis import flow, kept_values
from bb_host.passes.analysis.joins import check_joins
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats

_PARAMETERS, _GRADIENT, _ROUND, _ACTIVATIONS = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class _Use:
    """Which parts of a component an op reads, sets, or adds to: additions have no order among themselves."""

    reads: int = 0
    sets: int = 0
    adds: int = 0

    def __or__(self, other: _Use) -> _Use:
        return _Use(self.reads | other.reads, self.sets | other.sets, self.adds | other.adds)

    def meets(self, other: _Use) -> bool:
        """Whether the order of the two changes what one of them does."""
        mine, others = self.reads | self.adds, other.reads | other.adds
        seen = self.adds & other.reads | other.adds & self.reads
        return bool(self.sets & (other.sets | others) | other.sets & mine | seen)


_USES: Mapping[str, _Use] = {
    "Forward": _Use(reads=_PARAMETERS, adds=_ACTIVATIONS),
    "ForwardKeyed": _Use(reads=_PARAMETERS),
    "Evaluate": _Use(reads=_PARAMETERS),
    "Params": _Use(reads=_PARAMETERS),
    "Train": _Use(reads=_PARAMETERS, adds=_GRADIENT),
    "Backward": _Use(reads=_PARAMETERS | _ACTIVATIONS, adds=_GRADIENT),
    "BackwardKeyed": _Use(reads=_PARAMETERS, adds=_GRADIENT),
    "BackwardInput": _Use(reads=_PARAMETERS | _ACTIVATIONS, adds=_GRADIENT),
    "Gradient": _Use(sets=_GRADIENT),
    "Step": _Use(reads=_ROUND, sets=_PARAMETERS | _GRADIENT),
    "SetRound": _Use(sets=_ROUND),
    "ApplyDelta": _Use(sets=_PARAMETERS),
    "LoadParameters": _Use(sets=_PARAMETERS),
}
_USES_OF_KEPT: Mapping[str, _Use] = {"Read": _Use(reads=1), "Write": _Use(sets=1), "Add": _Use(adds=1)}
_STEP_BY_GIVEN = _Use(reads=_ROUND, sets=_PARAMETERS)
_NOTHING = _Use()
_DOMAINS = frozenset({keys.ROLE_MODEL_DOMAIN, kept_values.DOMAIN})
_NEAR = 8
"""A call is compared with so many before it at least: mistakes are near, and work grows with the program."""

_LOADS = frozenset({"LoadParameters", "ApplyDelta"})
_BACKWARD = frozenset({"Backward", "BackwardKeyed", "BackwardInput"})
_RESULTS = frozenset({"Params", "Evaluate"})
_RUNS = frozenset({"Forward", "ForwardKeyed"})


def warn_of_order(targets: Sequence[TargetSlots], stats: Stats) -> None:
    """Warns of calls of a slot without an order, and of a model whose training has no reader."""
    for target in targets:
        for slot, ops in target.ops.items():
            there = {op.op_type for op in ops}
            domain = ops[0].domain
            if len(there) < 2 or domain not in _DOMAINS:
                continue
            if domain == keys.ROLE_MODEL_DOMAIN:
                _training_unread(slot, ops, there, target.main.name, stats)
            if any(_use(op).sets for op in ops):
                _Order(target.functions, slot, domain, stats).warn()


def _training_unread(slot: str, ops: Sequence[Op], there: set[str], target: str, stats: Stats) -> None:
    read = _RESULTS if _BACKWARD & there else _RESULTS | _RUNS
    if "Step" in there and _LOADS & there and not read & there:
        stats.warn(
            "training-unread",
            f"slot {slot!r}: nothing on {target} reads what this step trains, and the next load replaces it",
            source(next(op for op in ops if op.op_type == "Step")),
            "reply what was trained: r.reply([model.params(g, after=trained), …])",
        )


def _use(op: Op) -> _Use:
    if op.domain == kept_values.DOMAIN:
        return _USES_OF_KEPT.get(op.op_type, _NOTHING)
    if op.op_type == "Step" and flow.data_inputs(op)[:1] not in ((), ("",)):
        return _STEP_BY_GIVEN
    return _USES.get(op.op_type, _NOTHING)


class _Order:
    """The order of the calls of one slot in the functions of a partition."""

    def __init__(self, functions: Sequence[Function], slot: str, domain: str, stats: Stats) -> None:
        self._functions = functions
        self._domain = domain
        self._keyed = {f.key: f for f in functions}
        self._slot = slot
        self._stats = stats

    def warn(self) -> None:
        for function in self._functions:
            found = self._found(function)
            if any(use.sets for _, use, _ in found) and not _is_chain(function, found):
                for begin in range(0, max(len(found) - _NEAR, 1), _NEAR):
                    self._warn(function, found[begin : begin + 2 * _NEAR], begin > 0)

    def _found(self, function: Function) -> list[tuple[int, _Use, Op]]:
        """The calls of the slot, those in bodies as the op that runs the body, with their places."""
        there = flow.summary(function.ops)
        if there.has_subgraphs or flow.may_call(there):
            return [(index, *use) for index, op in enumerate(function.ops) if (use := self._of(op))]
        calls = [(index, op) for index, op in enumerate(function.ops) if op.domain == self._domain]
        return [(index, _use(op), op) for index, op in calls if op.slot == self._slot]

    def _of(self, op: Op) -> tuple[_Use, Op] | None:
        """How an op uses the slot, and the op that does: the first that sets something of those inside it."""
        if op.domain == self._domain:
            return (_use(op), op) if op.slot == self._slot else None
        bodies = [self._keyed[key].ops for key in flow.callees(op) if key in self._keyed]
        bodies += [graph.ops for _, graph in op.subgraphs()]
        found = [use for ops in bodies for inner in ops if (use := self._of(inner))]
        if not found:
            return None
        chosen = next((one for use, one in found if use.sets), found[0][1])
        return reduce(or_, [use for use, _ in found]), chosen

    def _warn(self, function: Function, found: Sequence[tuple[int, _Use, Op]], again: bool) -> None:
        """Warns of these neighbours; with `again` the first `_NEAR` have been compared with each other."""
        behind = _behind(function, [index for index, _, _ in found])
        where: _Where | None = None
        for first, (at, a, one) in enumerate(found):
            for second in range(max(first + 1, _NEAR if again else 0), len(found)):
                later, b, other = found[second]
                if not a.meets(b) or behind[second] >> first & 1:
                    continue
                where = where or _Where(function)
                if where.shared(at, later):
                    self._stats.warn(
                        "no-order",
                        f"slot {self._slot!r}: nothing says which comes first, {other.op_type} or"
                        f" {one.op_type} ({source(one)}), and the result depends on it",
                        source(other),
                        "lines have no order: let the later one wait, after= what the earlier one gives",
                    )


def _is_chain(function: Function, found: Sequence[tuple[int, _Use, Op]]) -> bool:
    """Whether each call waits for the one before, as in most programs: no two of them are without order."""
    calls = [index for index, _, _ in found]
    first, last = calls[0], calls[-1]
    behind = set(function.ops[first].outputs) - {""}  # what waits for the latest call
    branches = flow.summary(function.ops).has_subgraphs
    coming = iter(calls[1:])
    call = next(coming, None)
    for index, op in enumerate(function.ops[first + 1 : last + 1], first + 1):
        waits = not behind.isdisjoint(reads(op) if branches else op.inputs)
        if index == call:
            if not waits:
                return False
            behind.clear()
            call = next(coming, None)
        if waits:
            behind.update(op.outputs)
            behind.discard("")
    return True


def _behind(function: Function, found: Sequence[int]) -> list[int]:
    """Per call those of the others that run before it, as bits: what it waits for, at any distance.

    Ops are in an order in which they can run, so the ones between the calls tell all.
    """
    masks: dict[str, int] = {}
    behind: list[int] = []
    for index in range(found[0], found[-1] + 1):
        op = function.ops[index]
        mask = 0
        for name in reads(op):
            if name in masks:
                mask |= masks[name]
        if index == found[len(behind)]:
            mine = 1 << len(behind)
            behind.append(mask)
            mask |= mine
        if mask:
            masks.update(dict.fromkeys(filter(None, op.outputs), mask))
    return behind


class _Where:
    """In which executions the ops of a function run."""

    def __init__(self, function: Function) -> None:
        self._ops = function.ops
        self._joins = check_joins(function)
        self._readers = flow.readers(function.ops)

    def shared(self, first: int, second: int) -> bool:
        """Whether two ops may run in one execution."""
        if self._joins is None:
            return True
        return not self._of(first).isdisjoint(self._of(second))

    def _of(self, index: int) -> set[int]:
        """The entries of an op; those of its readers for one that runs wherever it is read."""
        values = {} if self._joins is None else self._joins.values
        found: set[int] = set()
        todo, met = [index], {index}
        while todo:
            at = todo.pop()
            known = [values[name] for name in self._ops[at].outputs if name in values]
            if known:
                found.update(*known)
                continue
            later = {reader for name in self._ops[at].outputs for reader in self._readers.get(name, ())} - met
            met |= later
            todo += later
        return found
