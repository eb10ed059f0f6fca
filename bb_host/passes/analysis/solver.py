"""Solves the types of a program: of each function from op to op, until nothing changes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND_RESP
from bb_edge.ir.types import ValueType
from bb_host.errors import TypeConstraintFailed, label
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import is_gate, onnx_opset, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bound_types import Bound, Promises, agreed, agrees, bound, ports_of
from bb_host.passes.analysis.bundles import PUTS
from bb_host.passes.analysis.op_types import ROLE_DOMAINS, Key, OpRules, Solve
from bb_host.passes.analysis.other_codec import other_codec
from bb_host.passes.analysis.type_terms import Shape, Terms
from bb_host.passes.options import Options

_MOST_STEPS = 64
"""Visits per op on average; each but the last narrows something, and a program needs a handful."""

_FEW = 3

_OF_ENGINE = frozenset({keys.WIRE_DOMAIN, keys.SYSCALL_DOMAIN})


class Solver:
    """One program: solves functions, callees first, and remembers how each kind of op is solved."""

    def __init__(self, program: Program, options: Options, rules: OpRules) -> None:
        self._program = program
        self._functions = {f.key: f for f in program.functions}
        self._done: dict[Key, Function] = {}
        self._given: dict[Key, list[ValueType | None]] = {}
        self._plans: defaultdict[str, dict[str, Solve]] = defaultdict(dict)  # by domain and op type
        self._options = options
        self._rules = rules
        self._records: dict[tuple[int, Shape], ValueType] = {}
        self._own: dict[int, ValueType] = {}
        if len(self._functions) > 1:
            for function in program.functions:
                self._note_calls(function)

    def _note_calls(self, function: Function) -> None:
        """Types of arguments as far as the caller's declarations say them, for untyped inputs of callees."""
        for op, callee in flow.calls(function, self._functions):
            known = self._given.setdefault(callee.key, [None] * len(callee.inputs))
            for index, name in enumerate(op.inputs[: len(known)]):
                found = function.types.get(name)
                if found is not None and known[index] is None:
                    known[index] = found

    def all_solved(self) -> tuple[Function, ...]:
        """The program's functions with their types. TypeConstraintFailed where those of an op contradict."""
        return tuple(map(self.solved, self._program.functions))

    def solved(self, function: Function) -> Function:
        """The function with its types; `self._functions` holds it from then on."""
        done = self._done.get(function.key)
        if done is not None:
            return done
        if function.domain == keys.COMPONENT_DOMAIN:
            return function
        self._done[function.key] = function  # a circle of calls was refused before; here it would end
        if len(self._functions) > 1:
            for _, callee in flow.calls(function, self._functions):
                self.solved(callee)
        found = self._solve(function)
        self._done[function.key] = self._functions[function.key] = found
        return found

    def _solve(self, function: Function) -> Function:
        replies: dict[str, Op] = {}
        linked = False
        engine = not _OF_ENGINE.isdisjoint(flow.summary(function.ops).domains)
        for op in function.ops if engine else ():
            if op.domain == keys.WIRE_DOMAIN and op.op_type == OP_SEND_RESP:
                replies[flow.wire_id(op)] = op
            elif op.domain == keys.SYSCALL_DOMAIN and op.op_type in PUTS:
                linked = True
        terms = Terms(function, self._functions, replies, self._records, self._own)
        changed = False
        for name, given in zip(function.inputs, self._given.get(function.key, ()), strict=False):
            known = terms.types.get(name)
            if given is not None and (known is None or known.node is types.ANY):
                terms.types[name] = given
                changed = True
        version = onnx_opset(function.opsets)
        try:
            changed = self._narrowed(function, terms, version, linked or bool(replies)) or changed
        except TypeConstraintFailed as error:
            codec = other_codec(error, function, self._rules.promised, self._options)
            raise codec or self._behind_gates(error, function, terms, version) from None
        return function.with_ops(function.ops, terms.types) if changed else function

    def _narrowed(self, function: Function, terms: Terms, version: int, linked: bool) -> bool:
        """Looks at each op, and again at those that learn something later; whether any type was narrowed."""
        plans, changed = self._plans, False
        upstream: list[tuple[int, str]] = []  # what an op said about a value that is not its own
        touched = terms.touched
        for index, op in enumerate(function.ops):
            plan = plans[op.domain].get(op.op_type)
            if plan is None:
                plan = plans[op.domain][op.op_type] = self._rules.plan(op, version, self._functions)
            plan(op, terms)
            if touched:
                changed = True
                if len(touched) > 1 or touched[0] not in op.outputs:
                    upstream += [(index, name) for name in touched if name not in op.outputs]
                touched.clear()
        if upstream or linked:
            changed = self._settle(function, terms, upstream, linked) or changed
        return changed

    def _behind_gates(
        self, error: TypeConstraintFailed, function: Function, terms: Terms, version: int
    ) -> TypeConstraintFailed:
        """The refusal of the reader of a value behind a gate, where the gate is what was found to contradict.

        A gate is recorded for `after=`: its author knows the call that takes the value.
        """
        gate = next((op for op in function.ops if is_gate(op) and label(op) == error.op), None)
        came = None if gate is None else terms.get(gate.inputs[0])
        if gate is None or came is None:
            return error
        terms.types[gate.outputs[0]] = came
        for op in function.ops:
            if gate.outputs[0] in op.inputs:
                try:
                    self._rules.plan(op, version, self._functions)(op, terms)
                except TypeConstraintFailed as found:
                    return self._behind_gates(found, function, terms, version) if is_gate(op) else found
        return error

    def _settle(
        self, function: Function, terms: Terms, upstream: list[tuple[int, str]], linked: bool
    ) -> bool:
        """Follows what the first walk learned too late, from op to op, until nothing changes."""
        ops = function.ops
        meets = _Meetings(ops)
        collectors = {
            flow.wire_id(op): i
            for i, op in enumerate(ops)
            if op.op_type == OP_RECV_RESP_BATCHED and op.domain == keys.WIRE_DOMAIN
        }
        todo = _Agenda()
        todo.add(collectors.values())
        for index, name in upstream:
            todo.add(i for i in meets.at(name) if i < index)
        changed = False
        for _ in range(_MOST_STEPS * (len(ops) + 1)):
            if not todo:
                if linked:
                    _link(function, terms)
                if not terms.touched:
                    break
                changed = True
                todo.add(i for name in terms.touched for i in meets.readers.get(name, ()))
                terms.touched.clear()
                continue
            index = todo.pop()
            op = ops[index]
            self._plans[op.domain][op.op_type](op, terms)
            for name in terms.touched:
                changed = True
                todo.add(i for i in meets.at(name) if i != index)
            terms.touched.clear()
            if op.op_type == OP_SEND_RESP and flow.wire_id(op) in collectors:
                todo.add((collectors[flow.wire_id(op)],))
        return changed


class _Meetings:
    """Which ops meet in a value. The first few are looked for one by one: most programs ask for no more."""

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self._ops = ops
        self._left = _FEW

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The numbers of the ops that read a value."""
        return flow.readers(self._ops)

    @cached_property
    def _yields(self) -> dict[str, int]:
        return {name: i for i, op in enumerate(self._ops) for name in op.outputs if name}

    def at(self, name: str) -> list[int]:
        """The numbers of the op that yields a value, where one does, and of those that read it."""
        if self._left:
            self._left -= 1
            return [i for i, op in enumerate(self._ops) if name in op.outputs or name in reads(op)]
        by = self._yields.get(name)
        return [*([] if by is None else [by]), *self.readers.get(name, ())]


class _Agenda:
    """Op numbers to look at, the first in the program first, each once at a time."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._there: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self._there:
                self._there.add(number)
                heapq.heappush(self._heap, number)

    def pop(self) -> int:
        number = heapq.heappop(self._heap)
        self._there.discard(number)
        return number


# --- ops that meet in a named place -----------------------------------------------------------------------

_PUT_UNDER = dict(PUTS.values())
"""What is put somewhere, by the attribute that says where."""


def _link(function: Function, terms: Terms) -> None:
    """What is taken out of a queue or a hold is what was put in."""
    there: dict[tuple[str, object], ValueType] = {}
    for op in function.ops:
        attribute = _PUT_UNDER.get(op.op_type) if op.domain == keys.SYSCALL_DOMAIN else None
        if attribute is not None and op.inputs:
            known = terms.get(op.inputs[0])
            key = (attribute, op.attrs.get(attribute))
            if known is not None and known.node is not types.ANY:
                before = there.get(key)
                same = before is None or before.node is known.node
                there[key] = known if before is None else ValueType(known.node if same else types.ANY)
    for op in function.ops:
        put = PUTS.get(op.op_type) if op.domain == keys.SYSCALL_DOMAIN else None
        if put is not None and op.outputs:
            found = there.get((put[1], op.attrs.get(put[1])))
            if found is not None and found.node is not types.ANY:
                terms.put(op.outputs[0], found, op)


# --- where a slot is bound per class ---------------------------------------------------------------------

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
