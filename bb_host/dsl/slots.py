"""Slots: what a program asks of its components. One class per role, one method per op of the role's opset.

A generic slot (`ModelSlot("model")`) is filled when the program is compiled (`Compiler().bind_model(…)`); a
concrete one (`ModelSlot("model", Mlp, {"hidden": 32})`) carries its type and construction state. `at` names
the class that the slot lives on. In one program a name is one slot, wherever it is declared.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bb_edge.components import KeptValue
from bb_edge.ir import keys, opsets
from bb_edge.ir.class_names import CLASS_NAME_RULE, is_class_name
from bb_edge.ir.errors import BBError
from bb_edge.ir.opsets import Opset
from bb_host.author_lines import author_line, authoring_error, short_line
from bb_host.diagnostics import ProgramWarning
from bb_host.dsl.calls import CatalogRow, no_graph, record_call
from bb_host.dsl.catalog_ops import find_in, find_op
from bb_host.dsl.misuse import Suggests, typed_call, typed_calls
from bb_host.dsl.named_calls import (
    AggregatorOps,
    CodecOps,
    DataSourceOps,
    IndexOps,
    ModelOps,
    PeerSelectorOps,
)
from bb_host.dsl.names import PORT_NAME
from bb_host.dsl.onnx_namespace import OnnxOps
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ConstructionError, SlotError
from bb_host.ir.construction import (
    check_state,
    class_of,
    construction_state,
    construction_warnings,
    graphs_for,
)
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Slot


def _check_class(name: object) -> None:
    """SlotError for what is not a valid name for a class; None is one that is not named."""
    if name is not None and not is_class_name(name):
        raise authoring_error(SlotError, f"{name!r} is not a valid name for a class", CLASS_NAME_RULE)


@typed_calls
class ComponentSlot(Suggests):
    """A named place for a component of one role."""

    ROLE: ClassVar[str] = ""
    DOMAIN: ClassVar[str] = ""

    def __init__(
        self,
        name: str,
        type: type | str | None = None,
        config: Mapping[str, object] | Any | None = None,
        *,
        at: str | None = None,
    ) -> None:
        if not (isinstance(name, str) and PORT_NAME.fullmatch(name)):
            raise authoring_error(
                SlotError, f"{name!r} is not a valid name for a slot", "letters, digits, '_', '-', '.'"
            )
        _check_class(at)
        if config is not None and type is None:
            raise authoring_error(
                SlotError, f"slot {name!r} has a config and no type", "name the component's type"
            )
        self.name = name
        self.type_name = "" if type is None else type if isinstance(type, str) else _type_name(name, type)
        self._component = type or ""
        self.config = config
        self.at = at or ""
        self.peer_class = ""
        self.where = short_line(author_line())

    def __repr__(self) -> str:
        parts = [repr(self.name)]
        if self.type_name:
            parts.append(self.type_name)
        if self.peer_class:
            parts.append(f"peer_class={self.peer_class!r}")
        if self.at:
            parts.append(f"at={self.at!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _spoken(self) -> str:
        return f"{type(self).__name__} {vars(self).get('name', '')!r}"

    def difference(self, other: ComponentSlot) -> str:
        """What tells two declarations of one name apart; empty where both mean one slot."""
        for what, own, its in (
            ("role", self.ROLE, other.ROLE),
            ("type", self.type_name, other.type_name),
            ("at", self.at, other.at),
            ("peer_class", self.peer_class, other.peer_class),
        ):
            if own != its:
                return f"{what} is {its or 'none'} there, and {own or 'none'} here"
        if self.config is other.config:
            return ""
        here, there = (
            "none" if each.config is None else textwrap.shorten(repr(each.config), 80)
            for each in (self, other)
        )
        if here == there:
            return "each has a config of its own, which reads the same"
        return f"config is {there} there, and {here} here"

    def build(self) -> tuple[Slot, tuple[Function, ...]]:
        """The slot's record, and the graphs that its construction state brings."""
        if not self.type_name:
            return Slot(self.ROLE, "", self.at, self.peer_class, where=self.where), ()
        try:
            kind = class_of(self._component)
            if kind is not None and kind.ROLE != self.ROLE:  # before its settings, which are of another role
                raise self._misfit(
                    f"{self.type_name} is a component of role {kind.ROLE}", f"it is one of {self.ROLE}"
                )
            state, functions = construction_state(self.name, self.config)
            if kind is not None:
                check_state(kind, self.name, state, functions)
        except ConstructionError as error:
            raise self._misfit(error.what, error.hint) from error
        return Slot(self.ROLE, self.type_name, self.at, self.peer_class, state, self.where), functions

    def graphs(self, ops: Sequence[Op]) -> tuple[Function, ...] | None:
        """The graphs that these ops of the slot need; None where they are those of `build` in any case."""
        if not self.type_name:
            return None
        try:
            return graphs_for(self.name, self.config, frozenset(op.op_type for op in ops))
        except BBError as error:
            line = next((op.source for op in reversed(ops) if op.source), self.where)
            error.where = ", ".join(filter(None, (line, error.where)))
            raise

    def warnings(self, record: Slot) -> tuple[ProgramWarning, ...]:
        """What the slot's own config warns about; `record` is what `build` gave."""
        try:
            kind = class_of(self._component) if self.type_name else None
            warned = construction_warnings(self.name, self.config, kind, record.state)
            return tuple(w.at(self.where) for w in warned)
        except ConstructionError as error:
            raise self._misfit(error.what, error.hint) from error

    def _misfit(self, what: str, hint: str) -> SlotError:
        """An error at the line of the declaration."""
        file, _, number = self.where.rpartition(":")
        return SlotError(f"slot {self.name!r}: {what}", self.where, hint, file=file, line=int(number))

    def use_in(self, g: Recorder) -> OpFacts:
        """What an op says that runs on this slot; counts as a use."""
        use = g.session.use_slot(self)
        g.slots_used[self.name] = None
        record = use.record
        found = (
            OpFacts(slot=self.name, concrete_type=record.concrete_type, instance=use.instance)
            if record.is_concrete
            else OpFacts(slot=self.name, trait=self.ROLE, slot_id=use.slot_id)
        )
        g.slot_facts[self] = found
        return found

    def opset(self) -> Opset | None:
        """The ops that the slot has."""
        return opsets.opset(self.DOMAIN) if self.DOMAIN else None

    def op(
        self, g: Recorder, name: str, *inputs: object, after: After = UNORDERED, **attrs: object
    ) -> tuple[Output, ...]:
        """Any op of the slot by its name; its outputs as a tuple."""
        if not isinstance(g, Recorder):
            raise no_graph(self.name, g)
        row = self._find(g, name)
        return tuple(record_call(g, row, inputs, attrs, after=after, facts=self.use_in(g)))

    def _find(self, g: Recorder, name: str) -> CatalogRow:
        return find_op(g, self.DOMAIN, name)


def _type_name(slot: str, component: type) -> str:
    name = getattr(component, "TYPE_NAME", "")
    if not isinstance(name, str) or not name:
        raise authoring_error(
            SlotError, f"slot {slot!r}: {component.__name__} has no TYPE_NAME", "give the component class one"
        )
    return name


@typed_calls
class ModelSlot(ModelOps, ComponentSlot):
    """Something with parameters that maps tensors to tensors. `cmd` results only order (`after=`)."""

    ROLE = keys.ROLE_MODEL


@typed_calls
class AggregatorSlot(AggregatorOps, ComponentSlot):
    """Joins contributions of many peers into one tensor."""

    ROLE = keys.ROLE_AGGREGATOR


@typed_calls
class DataSourceSlot(DataSourceOps, ComponentSlot):
    """Yields batches of a shard of data."""

    ROLE = keys.ROLE_DATA_SOURCE


@typed_calls
class PeerSelectorSlot(PeerSelectorOps, ComponentSlot):
    """Chooses peers of the class `peer_class`; without one, of the module's home class (gossip).

    With the configuration `{"known": True}`, `bb.PresenceSelector` chooses among all that are known, up or
    not: for durable sends, which wait for them (`net_out(…, durable=True)`).
    """

    ROLE = keys.ROLE_PEER_SELECTOR

    def __init__(
        self,
        name: str,
        type: type | str | None = None,
        config: Mapping[str, object] | Any | None = None,
        *,
        peer_class: str | None = None,
        at: str | None = None,
    ) -> None:
        super().__init__(name, type, config, at=at)
        _check_class(peer_class)
        self.peer_class = peer_class or ""


@typed_calls
class CodecSlot(CodecOps, ComponentSlot):
    """Makes tensors smaller."""

    ROLE = keys.ROLE_CODEC


@typed_calls
class IndexSlot(IndexOps, ComponentSlot):
    """Finds nearest vectors."""

    ROLE = keys.ROLE_INDEX


@typed_calls
class BackendSlot(ComponentSlot):
    """A tensor backend that some ops are pinned to: `self.fast.onnx(g).softmax(x)`, or `self.fast.matmul(g,
    a, b)`.
    """

    ROLE = keys.ROLE_BACKEND

    def onnx(self, g: Recorder) -> OnnxOps:
        """ONNX operators that run on this backend, as `g.onnx` otherwise."""
        if not isinstance(g, Recorder):
            raise no_graph(self.name, g)
        return OnnxOps(g, self.use_in(g))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(g: Recorder, *inputs: object, **attrs: object) -> Any:
            return getattr(self.onnx(g), name)(*inputs, **attrs)

        return typed_call(call, f"slot {self.name!r}.{name}")


@typed_calls
class ProtocolSlot(ComponentSlot):
    """A component with ops of its own: those that its type declares (`atomic_opset()`), or the `opset` given.

    An op `ReadRow` is the method `read_row(g, …)`; it returns its output, or a tuple where it has several.
    A component that reads the peers of a class (`ctx.peers`) has that class as `peer_class`. One with remote
    ops hears all classes of the program.
    """

    ROLE = keys.ROLE_PROTOCOL

    def __init__(
        self,
        name: str,
        type: type | str | None = None,
        config: Mapping[str, object] | Any | None = None,
        *,
        opset: Opset | None = None,
        peer_class: str | None = None,
        at: str | None = None,
    ) -> None:
        super().__init__(name, type, config, at=at)
        _check_class(peer_class)
        self.peer_class = peer_class or ""
        declared = getattr(type, "atomic_opset", None)
        found: object = opset
        if opset is None and callable(declared):
            try:
                found = declared()
            except Exception as error:  # the component author's code
                raise authoring_error(
                    SlotError,
                    f"protocol slot {name!r}: atomic_opset() fails: {error.__class__.__name__}: {error}",
                    "mend it: it returns OpTable(cls.TYPE_NAME).opset()",
                ) from error
        if found is None:
            raise authoring_error(
                SlotError,
                f"protocol slot {name!r} has no opset",
                "give a type with atomic_opset(), or opset=",
            )
        if not isinstance(found, Opset):
            hint = "give the class as the second argument, or opset=C.atomic_opset()"
            raise authoring_error(SlotError, f"protocol slot {name!r}: {found!r:.60} is not an opset", hint)
        self._opset: Opset = found

    def opset(self) -> Opset:
        return self._opset

    def _find(self, g: Recorder, name: str) -> CatalogRow:
        return find_in(g, self._opset.ops, name, f"slot {self.name!r}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(g: Recorder, *inputs: object, after: After = UNORDERED, **attrs: object) -> Any:
            found = self.op(g, name, *inputs, after=after, **attrs)
            return found[0] if len(found) == 1 else (found or None)

        return typed_call(call, f"slot {self.name!r}.{name}")


@typed_calls
class ValueSlot(ProtocolSlot):
    """A tensor, or a bundle of tensors, that stays on a node between executions and over restarts.

    It holds the last parameters, a running mean, a control variate: what the next round needs of this one.
    Each node of the class has a value of its own. Its first value decides shape and element type.
    """

    def __init__(self, name: str, *, at: str | None = None) -> None:
        super().__init__(name, KeptValue, at=at)

    def read(self, g: Recorder, first: Value, *, after: After = UNORDERED) -> Output:
        """What is kept, as `first` is in shape and type; `first` itself where nothing was written yet."""
        return _bundled(self.op(g, "Read", first, after=after)[0], first)

    def write(self, g: Recorder, value: Value, *, after: After = UNORDERED) -> Output:
        """Keeps a copy of the value, in place of what was kept. Yields a cmd, which only orders."""
        return self.op(g, "Write", value, after=after)[0]

    def add(self, g: Recorder, value: Value, *, after: After = UNORDERED) -> Output:
        """Adds to what is kept, to zeros where nothing was written yet, and yields the sum.

        Nothing comes between its halves: for what several executions add to, such as the answers of a round.
        """
        return _bundled(self.op(g, "Add", value, after=after)[0], value)


def _bundled(output: Output, like: Value) -> Output:
    """An output of which `g.unbundle` knows what it knows of another value."""
    if isinstance(like, Output):
        output.parts = like.parts
    return output
