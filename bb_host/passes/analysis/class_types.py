"""The types of ops whose slot is served by other components on other classes: judged where each op runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir.types import ValueType
from bb_host.errors import TypeConstraintFailed
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bound_types import Bound, Promises, agreed, agrees, bound, ports_of
from bb_host.passes.analysis.op_types import ROLE_DOMAINS, Key, OpRules, Solve
from bb_host.passes.analysis.solver import Solver
from bb_host.passes.analysis.type_terms import Terms
from bb_host.passes.options import Options

Classes = tuple[str, ...]


def solved_by_class(program: Program, options: Options, alone: str) -> Program:
    """A placed program whose types are narrowed to what serves each slot on the class of its op.

    Needs types that hold wherever an op runs; where all that serves a slot promises the same they are the
    program's. `alone` is the class of ops that none is written on. TypeConstraintFailed where a class
    contradicts; it names what the slots are bound to.
    """
    if all(binding.target is None for binding in options.bindings):
        return program
    differing = {
        name: serving
        for name, serving in bound(program, options).items()
        if any(one.promises != serving[0].promises for one in serving)
    }
    if not differing:
        return program
    around = _around(program, alone)
    rules = _Placed(program, options, differing)
    placed = [_written(f, around.get(f.key, (alone,)), rules) for f in program.functions]
    try:
        solved = Solver(program.with_functions(placed), options, rules).all_solved()
    except TypeConstraintFailed as error:
        error.hint = "; ".join(filter(None, (error.hint, *map(_told, differing, differing.values()))))
        raise
    pairs = zip(program.functions, placed, solved, strict=True)
    return program.with_functions(
        [one if new is old else one.with_ops(one.ops, new.types) for one, old, new in pairs]
    )


def _around(program: Program, alone: str) -> dict[Key, Classes]:
    """The classes that run a function that others call, or that is a body; of all that call it."""
    keyed = {f.key: f for f in program.functions}
    found: dict[Key, Classes] = {}
    todo = list(program.functions)
    while todo:
        function = todo.pop()
        for op in function.ops:
            for key in flow.callees(op):
                known = found.get(key, ())
                classes = op.facts.classes or found.get(function.key, (alone,))
                new = tuple(dict.fromkeys((*known, *classes)))
                if new != known and key in keyed:
                    found[key] = new
                    todo.append(keyed[key])
    return found


def _written(function: Function, around: Classes, rules: _Placed) -> Function:
    """The function with its classes on those of its ops that run on a slot.

    What those yield whose slot differs has the type that is promised, where another was concluded from its
    readers: so the reader is refused, whose author can change what it reads.
    """
    changed: dict[int, Op] = {}
    kinds: dict[str, ValueType] = {}
    for index, op in enumerate(function.ops):
        classes = op.facts.classes or around
        if op.slot and not op.facts.classes:
            changed[index] = op.saying(OpFacts(classes=classes))
        if op.slot not in rules.differing:
            continue
        for port in ports_of(op, rules.on(classes)[op.slot]):
            name = "" if port.is_input or port.index >= len(op.outputs) else op.outputs[port.index]
            known = function.types.get(name)
            if known is not None and not agrees(known, port.promise, {}):
                kinds[name] = port.promise.opened()
    found = flow.restamped(function, changed)
    return found.with_ops(found.ops, {**found.types, **kinds}) if kinds else found


class _Placed(OpRules):
    """How each kind of op is solved, by the classes that an op runs on."""

    def __init__(self, program: Program, options: Options, differing: Mapping[str, list[Bound]]) -> None:
        super().__init__(program, options)
        self.differing = differing

    def plan(self, op: Op, version: int, functions: Mapping[Key, Function]) -> Solve:
        if op.domain not in ROLE_DOMAINS:
            return super().plan(op, version, functions)
        made: dict[Classes, Solve] = {}

        def solve(op: Op, terms: Terms) -> None:
            classes = op.facts.classes
            plan = made.get(classes)
            if plan is None:
                plan = made[classes] = self.plan_of(op, version, functions, self.on(classes))
            plan(op, terms)

        return solve

    def on(self, classes: Classes) -> Mapping[str, Promises]:
        """What slots promise on ops of these classes, by slot."""
        if not classes:
            return self.promised
        own = {n: agreed([_serving(several, c) for c in classes]) for n, several in self.differing.items()}
        return {**self.promised, **own}


def _serving(several: Sequence[Bound], where: str) -> Promises:
    """What serves a class promises; nothing where none does, which is refused where slots are resolved."""
    own = {one.target: one.promises for one in several}
    return own.get(where) or own.get(None) or {}


def _told(slot: str, several: Sequence[Bound]) -> str:
    served = (f"{one.target or 'other classes'} by {one.where or 'its declaration'}" for one in several)
    return f"slot {slot!r} is bound for {', for '.join(served)}"
