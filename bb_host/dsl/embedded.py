"""A ModelProto as a module: recorded programs, and compiled ones of a single partition that sends nothing.

A compiled program keeps its components: its bound slots become concrete ones, named `<module>_<slot>`, with
the construction state and the graphs that they were compiled with. Its default backend gives way to the
caller's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.author_lines import authoring_error
from bb_host.dsl.part import Part
from bb_host.dsl.session import ModuleRecord, Session
from bb_host.dsl.slots import ComponentSlot
from bb_host.errors import ModuleError
from bb_host.ir.facts import FunctionFacts, OpFacts
from bb_host.ir.program import AttrValue, Function, Op, Program, Slot
from bb_host.ir.proto import from_proto

_DEFAULT_BACKEND = "backend"


def as_callable(source: Any) -> Part:
    """A module as it is, a ModelProto as a ModelModule. ModuleError for anything else."""
    if isinstance(source, Part):
        return source
    if hasattr(source, "SerializeToString") and hasattr(source, "functions"):
        return ModelModule(source)
    raise authoring_error(
        ModuleError, f"{source!r} is not a module", "a Module, or a recorded or compiled ModelProto"
    )


class ModelModule(Part):
    """A recorded or compiled ModelProto, called like any module: `ModelModule(model).call()…`.

    Raises ModuleError for a model that is neither, has several partitions, or sends.
    """

    def __init__(self, model: Any, name: str = "") -> None:
        self._program = model if isinstance(model, Program) else from_proto(model)
        if not self._program.functions:
            raise authoring_error(
                ModuleError,
                "a plain ONNX model holds no functions",
                "bind it to a ModelSlot, or import it with bb_host.learn",
            )
        self._main = self._find_main()
        self.name = name or self._main.name
        self.domain = self._main.domain
        self.home = self._main.facts.home or Part.home

    @property
    def is_compiled(self) -> bool:
        return bool(self._program.facts.compiled)

    def _find_main(self) -> Function:
        program = self._program
        if not self.is_compiled:
            return program.functions[0]
        targets = program.facts.targets
        mains = [f for f in program.functions if f.facts.entry and f.name in targets]
        if len(mains) != 1:
            raise authoring_error(
                ModuleError,
                f"the compiled program has {len(mains)} partitions ({', '.join(f.name for f in mains)})",
                "compose the module that it was compiled from",
            )
        if any(op.domain == keys.WIRE_DOMAIN for f in program.functions for op in f.ops):
            raise authoring_error(
                ModuleError, "the compiled program sends", "compose the module that it was compiled from"
            )
        return mains[0]

    def body(self, g: object) -> None:
        raise authoring_error(ModuleError, f"module {self.name!r} is a model: call it, don't nest it")

    def _record(self, session: Session, given: Mapping[str, ValueType]) -> ModuleRecord:
        session.enter(self)
        slots = self._slots_of_main(session)
        bootstrap_key = (self._main.domain, self._main.name + keys.BOOTSTRAP_SUFFIX)
        others = [f for f in self._program.functions if f is not self._main and f.key != bootstrap_key]
        start = next((f for f in self._program.functions if f.key == bootstrap_key), None)
        names = {self._main.key: self.name}
        for function in others:
            if function.domain == keys.COMPONENT_DOMAIN:
                names[function.key] = _component_name(function.name, slots)
        for function in others:
            moved = self._moved(session, function, names, slots)
            if function.domain == keys.COMPONENT_DOMAIN:
                session.components.append(moved)
            else:
                record = session.define_function(moved.name, moved.domain, _naming(self, moved))
                names[function.key] = record.function.name

        def make(name: str) -> ModuleRecord:
            own = {**names, self._main.key: name}
            main = self._moved(session, self._main, own, slots)
            boot = None
            if start is not None:
                boot_names = {**own, start.key: name + keys.BOOTSTRAP_SUFFIX}
                boot = self._moved(session, start, boot_names, slots)
            return ModuleRecord(self, main, boot)

        record = session.define_function(self.name, self.domain, make)
        session.leave()
        return record

    def _slots_of_main(self, session: Session) -> dict[str, str]:
        """New slot names by old ones. Recorded programs keep theirs; compiled ones get their own."""
        if not self.is_compiled:
            for function in self._program.functions:
                for name, slot in function.slots.items():
                    session.slot(_Fixed(name, slot))
            return {name: name for f in self._program.functions for name in f.slots}
        found: dict[str, str] = {}
        for (target, old), (role, type_name, _) in self._program.facts.bindings.items():
            if target != self._main.name:
                continue
            if old == _DEFAULT_BACKEND and role == keys.ROLE_BACKEND:
                found[old] = ""
                continue
            found[old] = f"{self.name}_{old}"
            declared = self._main.slots.get(old)
            state = declared.state if declared is not None and declared.state is not None else b"\xa0"
            at = "" if declared is None else declared.at
            peer_class = "" if declared is None else declared.peer_class
            session.slot(_Fixed(found[old], Slot(role, type_name, at, peer_class, state)))
        return found

    def _moved(
        self,
        session: Session,
        function: Function,
        names: Mapping[tuple[str, str], str],
        slots: Mapping[str, str],
    ) -> Function:
        """The function under its new name, its calls and slots renamed too."""
        facts = function.facts.without("entry", "partition")
        if facts.phase == keys.MODULE_PHASE_BODY:
            facts = facts.without("phase")
        if self.is_compiled and facts.backend_slot:
            new = slots.get(facts.backend_slot, "")
            facts = facts.without("backend_slot")
            if new:
                facts |= FunctionFacts(backend_slot=new)
        kept = {
            slots.get(name, name): session.slots[slots[name]].record if name in slots else slot
            for name, slot in function.slots.items()
            if slots.get(name, name)
        }
        return dataclasses.replace(
            function,
            name=names.get(function.key, function.name),
            ops=tuple(self._moved_op(op, names, slots) for op in function.ops),
            slots=kept,
            facts=facts,
        )

    def _moved_op(self, op: Op, names: Mapping[tuple[str, str], str], slots: Mapping[str, str]) -> Op:
        attrs: dict[str, AttrValue] = dict(op.attrs)
        for key, graph in op.subgraphs():
            inner = tuple(self._moved_op(o, names, slots) for o in graph.ops)
            attrs[key] = dataclasses.replace(graph, ops=inner)
        facts = op.facts
        slot = facts.slot
        if self.is_compiled and slot:
            facts = facts.without("trait", "slot_id", "concrete_type", "instance")
            new = slots.get(slot, slot)
            if new:
                bound = self._program.facts.bindings[self._main.name, slot]
                facts |= OpFacts(slot=new, concrete_type=bound.type_name, instance=0)
            else:
                facts = facts.without("slot")
        op_type = names.get((op.domain, op.op_type), op.op_type)
        return dataclasses.replace(op, op_type=op_type, attrs=attrs, facts=facts)


def _naming(module: Part, function: Function) -> Callable[[str], ModuleRecord]:
    return lambda name: ModuleRecord(module, dataclasses.replace(function, name=name))


def _component_name(name: str, slots: Mapping[str, str]) -> str:
    """`model.forward` → `<new slot>.forward`."""
    slot, dot, rest = name.rpartition(".")
    return f"{slots.get(slot) or slot}{dot}{rest}"


class _Fixed(ComponentSlot):
    """A slot whose record is there already."""

    def __init__(self, name: str, record: Slot) -> None:
        super().__init__(name)
        self.where = ""  # no line of the author declares it
        self._record = record

    def build(self) -> tuple[Slot, tuple[Function, ...]]:
        return self._record, ()

    def difference(self, other: ComponentSlot) -> str:
        built, _ = other.build()
        for what in ("role", "at", "peer_class"):
            own, its = getattr(self._record, what), getattr(built, what)
            if own != its:
                return f"{what} is {its or 'none'} there, and {own or 'none'} here"
        return ""
