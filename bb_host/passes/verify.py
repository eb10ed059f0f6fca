"""Checks at the seams between passes: values and types, wire pairs, calls.

A function, or a body, that a pass left alone is not looked at again. What fails here is a defect of the stage
before, and the message says which; the author's own mistakes are found by the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import (
    OP_RECV,
    OP_RECV_REQ,
    OP_RECV_RESP,
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
)
from bb_host.errors import SeamError, label
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.sound_names import Names, names_after, names_of_all, sound_names
from bb_host.passes.one_pass import Pass, Promise

PARTNERS: Mapping[str, tuple[str, ...]] = {
    OP_SEND: (OP_RECV,),
    OP_RECV: (OP_SEND,),
    OP_SEND_REQ: (OP_RECV_REQ,),
    OP_RECV_REQ: (OP_SEND_REQ,),
    OP_SEND_RESP: (OP_RECV_RESP, OP_RECV_RESP_BATCHED),
    OP_RECV_RESP: (OP_SEND_RESP,),
    OP_RECV_RESP_BATCHED: (OP_SEND_RESP,),
}
"""Which ops are the other half of a wire op."""


class Seam:
    """Checks what a pass changed, as far as the passes so far promise it. One per run of the pipeline."""

    def __init__(self, strict_types: bool, unchecked: bool = True) -> None:
        """`unchecked`: nothing is known of the program until a pass says that it is well formed."""
        self._typed = strict_types
        self._held: set[Promise] = set() if unchecked else {Promise.WELL_FORMED}
        self._sound: dict[tuple[str, str], Function] = {}  # as each was last found sound
        self._paired: list[tuple[str, str, tuple[int, ...]]] = []  # what its wire ops said then

    def check(self, one: Pass[Any, Any], earlier: Program, later: Program) -> None:
        """Raises SeamError, naming the stage, where its result is malformed."""
        self._held.update(one.gives)
        if Promise.WELL_FORMED in one.gives:
            self._sound.update({f.key: f for f in later.functions if sound_names(f) is not None})
        if later is earlier or Promise.WELL_FORMED not in self._held:
            return
        known = {id(f) for f in earlier.functions}
        changed = [f for f in later.functions if id(f) not in known]
        if not changed and len(later.functions) == len(earlier.functions):
            return
        typed = self._typed and Promise.TYPED in self._held
        checked = {} if Promise.TYPED in one.gives else {id(f.ops): f for f in earlier.functions}
        for function in changed:
            same = checked.get(id(function.ops))
            if same is not None and _have_same_values(same, function):
                continue
            problem = self._values_problem(function, typed)
            if problem:
                raise SeamError(f"{problem} after {one.name}", f"function {function.name}")
        keyed = {f.key for f in later.functions}
        all_there = keyed.issuperset([f.key for f in earlier.functions])
        problem = calls_problem(changed if all_there else later.functions, keyed)
        if not problem and Promise.PAIRED in self._held:
            problem = self._pairs_problem(later.functions)
        if problem:
            raise SeamError(f"{problem} after {one.name}", later.name)

    def _pairs_problem(self, functions: Sequence[Function]) -> str:
        """`wire_problem`, where wire ops say something else than when it last found none."""
        said = [
            (op.op_type, op.facts.wire_id, op.facts.sites)
            for function in functions
            for op in flow.wire_ops(function)
        ]
        problem = "" if said == self._paired else wire_problem(functions)
        self._paired = said
        return problem

    def _values_problem(self, function: Function, typed: bool) -> str:
        """`values_problem`, over no more than what has changed since the function was last found sound."""
        last = self._sound.get(function.key)
        before = None if last is None else sound_names(last)
        names = None
        if last is not None and before is not None:
            names = names_after(before, last.ops, function, typed)
        if names is None:
            names = _found_sound(function, typed)
        if names is None:
            problem = _values_problem(function, typed)
            if problem:
                return problem
            names = Names.of(function)
        flow.summary(function.ops).sound = names
        self._sound[function.key] = function
        return ""


def _have_same_values(function: Function, other: Function) -> bool:
    """Whether two functions of the same ops have the same values of the same types."""
    return (
        function.types is other.types
        and function.inputs == other.inputs
        and function.outputs == other.outputs
    )


def check_functions(name: str, where: str, earlier: Sequence[Function], later: Sequence[Function]) -> None:
    """Raises SeamError, naming the pass, where a function that it made has no sound values or calls."""
    known = {id(f) for f in earlier}
    for function in later:
        problem = "" if id(function) in known else values_problem(function, typed=False)
        if problem:
            raise SeamError(f"{problem} after {name}", f"function {function.name}")
    problem = calls_problem(later, {f.key for f in later})
    if problem:
        raise SeamError(f"{problem} after {name}", where)


def values_problem(function: Function, typed: bool) -> str:
    """What is wrong with a function's values: one read before it is written, written twice, or untyped."""
    return "" if _found_sound(function, typed) is not None else _values_problem(function, typed)


def _found_sound(function: Function, typed: bool) -> Names | None:
    """The names of a function of which nothing can be wrong: the same checks over whole tuples.

    None only asks for a closer look.
    """
    found = sound_names(function)
    if found is None or not found.hold(function):
        found = names_of_all(function)
    return found if found is None or not typed else found.typed(function)


def _values_problem(function: Function, typed: bool) -> str:
    """The same, op by op, with its name; "" where nothing is wrong but an output that is left out."""
    known = set(function.inputs)
    known.add("")
    types = function.types
    for op in function.ops:
        if not known.issuperset(op.inputs) or (op.attrs and not known.issuperset(reads(op))):
            missing = next(n for n in reads(op) if n not in known)
            return f"{label(op)} reads {missing!r}, which nothing before it yields"
        for name in op.outputs:
            if name in known and name:
                return f"{name!r} is yielded twice"
            known.add(name)
            if typed and name and name not in types and function.domain != keys.COMPONENT_DOMAIN:
                return f"{name!r} has no type"
    for name in function.outputs:
        if name not in known:
            return f"output {name!r} is yielded by nothing"
    return ""


_CALLED = frozenset({keys.MODULE_DOMAIN, keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN})


def calls_problem(functions: Sequence[Function], keyed: Set[tuple[str, str]]) -> str:
    """A call of a function of ours that is not `keyed`. Ops of components' own opsets are not calls."""
    for function in functions:
        missing = {kind for kind in flow.summary(function.ops).kinds - keyed if kind[0] in _CALLED}
        if missing:
            op = next(op for op in function.ops if (op.domain, op.op_type) in missing)
            return f"{label(op)} in {function.name} calls {op.op_type!r}, which is not there"
    return ""


def wire_problem(functions: Sequence[Function]) -> str:
    """Halves of one wire id that do not fit each other. A half alone is an open port."""
    halves: dict[str, list[Op]] = {}
    for function in functions:
        for op in flow.wire_ops(function):
            halves.setdefault(flow.wire_id(op), []).append(op)
    for number, ops in halves.items():
        if not number:
            return f"{label(ops[0])} has no wire id"
        sends = [op for op in ops if flow.is_send_flavored(op)]
        if len(sends) > 1:
            return f"{label(sends[0])} and {label(sends[1])} share wire id {number}"
        for op in ops:
            others = [o.op_type for o in ops if o is not op]
            if others and not set(others) & {*PARTNERS[op.op_type], OP_RECV_RESP, OP_RECV_RESP_BATCHED}:
                return f"{label(op)} and {others[0]} are not a pair (wire id {number})"
        sites = {op.facts.sites for op in ops if op.facts.sites}
        if len(sites) > 1:
            return f"the halves of wire id {number} have different sites"
    return ""
