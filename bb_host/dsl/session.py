"""What all functions of one recording share: wire ids, slots, sub-modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line, authoring_error, short_line
from bb_host.diagnostics import ProgramWarning
from bb_host.dsl.shapes import Shape
from bb_host.errors import ModuleError, SlotError
from bb_host.ir.program import Function, Op, Slot, walk_ops
from bb_host.ir.proto import function_to_proto
from bb_host.ir.queries import is_onnx, unfit_for_body

MANY_CALLS = 10
"""So many open modules of one class, where Python's stack ends, call each other without end."""


RECORDING: ContextVar[Session | None] = ContextVar("recording", default=None)
"""The session that is being recorded: calls of modules begin without a graph."""


class DeclaredSlot(Protocol):
    """A slot as an author declares it."""

    name: str
    where: str

    def build(self) -> tuple[Slot, tuple[Function, ...]]: ...
    def warnings(self, record: Slot) -> tuple[ProgramWarning, ...]: ...
    def difference(self, other: Any) -> str: ...
    def graphs(self, ops: Sequence[Op]) -> tuple[Function, ...] | None: ...


class Recordable(Protocol):
    """A module as its session knows it."""

    @property
    def module_name(self) -> str: ...
    def _record(self, session: Session, given: Mapping[str, ValueType]) -> ModuleRecord: ...


class Caller(Protocol):
    """A graph whose network ports the modules that it calls may read."""

    def _known_ports(self) -> list[str]: ...
    def _network_port(self, name: str) -> Any: ...


@dataclass(slots=True)
class SlotUse:
    """One slot of the program, under its name."""

    declared: DeclaredSlot
    record: Slot
    used: bool = False
    slot_id: int = 0  # generic slots: from 1 in order of first use
    instance: int = 0  # concrete slots: from 0 among those of their type


@dataclass(slots=True)
class ModuleRecord:
    """A recorded sub-module: its body, and its bootstrap where it has one.

    `borrowed` are inputs that its caller fills by itself: parts of network ports of other modules, by input
    (the port, and the place of the value in it; -1 is the sender).
    """

    module: object
    function: Function
    bootstrap: Function | None = None
    borrowed: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Session:
    """One call of `Module.record`."""

    root: tuple[str, str] = ("", "")
    wire_ids: int = 0
    ops: int = 0  # that were recorded, in all functions
    slots: dict[str, SlotUse] = field(default_factory=dict)
    records: list[ModuleRecord] = field(default_factory=list)
    recorded: dict[tuple[int, tuple[tuple[str, ValueType], ...]], ModuleRecord] = field(default_factory=dict)
    components: list[Function] = field(default_factory=list)
    open_modules: list[Recordable] = field(default_factory=list)
    open_graphs: list[Caller] = field(default_factory=list)  # of the bodies that are being recorded
    seen: list[Recordable] = field(default_factory=list)  # kept alive: `recorded` knows modules by their id
    warnings: list[ProgramWarning] = field(default_factory=list)
    unread_requests: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Wire id → the outputs of a request that its module does not use, and its line."""
    unread_sends: dict[str, str] = field(default_factory=dict)
    """Wire id and line of sends that nothing reads in their own body; a caller may."""
    unpacked: tuple[str, tuple[str, int]] = ("", ("", 0))  # what was iterated over last, and where
    shapes: dict[tuple[object, ...], Sequence[Shape]] = field(default_factory=dict)
    """Of the results of ONNX operators, by what they depend on: a program has many ops, of few kinds."""
    kinds: dict[object, ValueType] = field(default_factory=dict)
    """The records of types that values share: the type solver tells types apart by identity."""
    halves: dict[int, tuple[object, str, str, tuple[str, int]]] = field(default_factory=dict)
    _slot_ids: int = 0
    _instances: dict[str, int] = field(default_factory=dict)

    def begin(self, half: object, what: str, hint: str) -> None:
        """Notes what does nothing until its other half is written: a `with`, a `.build(g)`."""
        self.halves[id(half)] = (half, what, hint, author_line())

    def end(self, half: object) -> None:
        """The other half."""
        self.halves.pop(id(half), None)

    def refuse_halves(self) -> None:
        """ModuleError, at its line, for the first half whose other one was forgotten."""
        for _, what, hint, line in self.halves.values():
            raise authoring_error(ModuleError, what, hint, line)

    def next_wire_id(self) -> str:
        self.wire_ids += 1
        return str(self.wire_ids)

    def slot(self, declared: DeclaredSlot) -> SlotUse:
        """The program's slot of that name. SlotError where the name means another slot already."""
        use = self.slots.get(declared.name)
        if use is None:
            record, functions = declared.build()
            self.warnings.extend(declared.warnings(record))
            self.components.extend(functions)
            use = self.slots[declared.name] = SlotUse(declared, record)
        elif use.declared is not declared and (differs := declared.difference(use.declared)):
            line = declared.where or short_line(author_line())  # an embedded program declares it at none
            file, _, number = line.rpartition(":")
            there = use.declared.where or "in a program that is embedded"
            raise SlotError(
                f"slot {declared.name!r} is declared twice, {there} and here: {differs}",
                line,
                "give one of them another name, or declare it once and use that in both places",
                file,
                int(number),
            )
        return use

    def fit_graphs(self) -> None:
        """Gives each slot the graphs that its ops need, where its construction has others for others."""
        recorded = [f for r in self.records for f in (r.function, r.bootstrap) if f is not None]
        ops: dict[str, list[Op]] = {}
        for op in (op for f in recorded for op in walk_ops(f.ops) if op.slot):
            ops.setdefault(op.slot, []).append(op)
        for name, use in self.slots.items():
            found = use.declared.graphs(ops.get(name, ()))
            if found is not None:
                others = [f for f in self.components if not f.name.startswith(f"{name}.")]
                self.components = [*others, *found]

    def use_slot(self, declared: DeclaredSlot) -> SlotUse:
        """The same for an op: numbers the slot at its first use."""
        use = self.slot(declared)
        if not use.used:
            use.used = True
            if use.record.is_concrete:
                use.instance = self._instances.get(use.record.concrete_type, 0)
                self._instances[use.record.concrete_type] = use.instance + 1
            else:
                self._slot_ids += 1
                use.slot_id = self._slot_ids
        return use

    def module(self, module: Recordable, given: Mapping[str, ValueType]) -> ModuleRecord:
        """A sub-module with inputs of these types, recorded at its first call."""
        key = (id(module), tuple(sorted(given.items(), key=lambda item: item[0])))
        found = self.recorded.get(key)
        if found is None:
            self.seen.append(module)
            try:
                found = self.recorded[key] = module._record(self, given)
            except RecursionError as error:
                depth = self.depth(module)
                if depth < MANY_CALLS:
                    raise
                raise authoring_error(
                    ModuleError,
                    f"module {module.module_name!r} calls another one of its class, {depth} deep and no end",
                    "a program has no recursion: let the innermost module call no other, or use g.rounds",
                ) from error
        return found

    def depth(self, module: Recordable) -> int:
        """How many modules of its class are being recorded."""
        return sum(type(m) is type(module) for m in self.open_modules)

    def any_record(self, module: Recordable) -> ModuleRecord:
        """A sub-module's record, whatever its inputs: the first one, recorded now where there is none."""
        found = next((r for key, r in self.recorded.items() if key[0] == id(module)), None)
        return self.module(module, {}) if found is None else found

    def define_function(
        self, name: str, domain: str, make: Callable[[str], ModuleRecord], is_root: bool = False
    ) -> ModuleRecord:
        """Takes a record in under a name that is free in its domain: `Child`, `Child_2`, ….

        One that says the same as an earlier record is that record; what sends is never shared, because its
        wire ids are its own.
        """
        count = 0
        while True:
            count += 1
            candidate = name if count == 1 else f"{name}_{count}"
            if (domain, candidate) == self.root and not is_root:
                continue
            made = make(candidate)
            taken = next((r for r in self.records if r.function.key == (domain, candidate)), None)
            if taken is None:
                self.records.append(made)
                return made
            if not self.sends(made.function) and _bytes(taken) == _bytes(made):
                return taken

    def sends(self, function: Function) -> bool:
        """Whether a function, or one that it calls, holds wire ops."""
        return self.first_op(function, lambda op: op.domain == keys.WIRE_DOMAIN) is not None

    def first_op(self, function: Function, wanted: Callable[[Op], bool]) -> Op | None:
        """The first op of a kind in a function, or in one that it calls. Calls themselves are not asked."""
        records = {r.function.key: r.function for r in self.records}
        called: dict[tuple[str, str], None] = {}
        for op in walk_ops(function.ops):
            if (op.domain, op.op_type) in records:
                called[op.domain, op.op_type] = None
            elif wanted(op):
                return op
        found = (self.first_op(records[key], wanted) for key in called)
        return next((op for op in found if op is not None), None)

    def enter(self, module: Recordable) -> None:
        """Guards against a module that calls itself."""
        if any(m is module for m in self.open_modules):
            raise authoring_error(
                ModuleError,
                f"module {module.module_name!r} calls itself",
                "a program has no recursion; use g.rounds",
            )
        self.open_modules.append(module)

    def leave(self) -> None:
        self.open_modules.pop()

    def functions(self) -> Iterator[Function]:
        """Bodies of sub-modules, then their bootstraps, then graphs that components brought."""
        yield from (r.function for r in self.records)
        yield from (r.bootstrap for r in self.records if r.bootstrap is not None)
        yield from self.components


def is_engine_op(op: Op) -> bool:
    """Whether an op, which is not a call, is more than an ONNX operator where its caller runs."""
    return not is_onnx(op) or bool(op.facts.slot or op.facts.at)


def unfit(op: Op) -> bool:
    """Whether an op cannot stand in a body, nor a call that leads to it."""
    return bool(unfit_for_body(op.domain, op.op_type))


def _bytes(record: ModuleRecord) -> bytes:
    functions = [record.function] if record.bootstrap is None else [record.function, record.bootstrap]
    return b"".join(function_to_proto(f).SerializeToString(deterministic=True) for f in functions)
