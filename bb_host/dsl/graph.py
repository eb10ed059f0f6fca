"""`Graph`: what a Module's body records into."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bb_edge.ir import keys, types
from bb_edge.ir.class_names import CLASS_NAME_RULE, is_class_name
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line
from bb_host.dsl.catalog_ops import Namespace
from bb_host.dsl.composition import ModuleOutputs
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.embedded import as_callable
from bb_host.dsl.literals import TypeLike, as_type, lift
from bb_host.dsl.loops import Loop
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.onnx_names import onnx_name
from bb_host.dsl.onnx_namespace import OnnxOps
from bb_host.dsl.onnx_ops import record_one
from bb_host.dsl.open_wire import OpenWire
from bb_host.dsl.operators import by_element
from bb_host.dsl.output import Output, Value
from bb_host.dsl.part import Part
from bb_host.dsl.port_graph import PortGraph
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.remarks import unread_results
from bb_host.dsl.rounds import Rounds
from bb_host.dsl.session import Session
from bb_host.dsl.syscalls import NAMES, SyscallOps
from bb_host.dsl.tape import UNORDERED, After
from bb_host.dsl.wire import WireOps
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    EmptyBundleError,
    ModuleError,
    OpInSubgraph,
    PortNameError,
    ValueTypeError,
)
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import AttrValue
from bb_host.whole_numbers import whole

if TYPE_CHECKING:
    import onnx

    _Named = SyscallOps
else:
    _Named = type("_Named", (), {name: getattr(SyscallOps, name) for name in NAMES})
"""The names of what a graph takes over when it is made, for `help()` and type checkers."""


class Scope:
    """A `with` block that pushes a name and pops it."""

    def __init__(self, stack: list[str], name: str, graph: Graph, call: str) -> None:
        graph.session.begin(self, f"{call} stands without `with`, and does nothing", f"write: with {call}:")
        self._stack = stack
        self._name = name
        self._graph = graph

    def __enter__(self) -> Graph:
        self._graph.session.end(self)
        self._stack.append(self._name)
        return self._graph

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.pop()


class AtScope(Scope):
    """A `with g.at(…)` block: warns where nothing in it can be placed."""

    def __enter__(self) -> Graph:
        self._line = author_line()
        self._before = self._size()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._size() == self._before:
            self._graph.warn(
                "scope-places-nothing",
                f"nothing is recorded in the scope of {self._name!r}",
                "record the ops of that class inside the block, or remove it",
                self._line,
            )

    def _size(self) -> int:
        return len(self._graph.drafts) + len(self._graph.inputs)


@typed_calls
class Graph(PortGraph, _Named):
    """Records one module: ports, ops, sends, rounds. Everything that a call returns is a value of this graph.

    `after=` on any call orders it behind other values without using them. All errors of recording are
    `AuthoringError`s that name the author's file and line.
    """

    def __init__(self, session: Session, name: str, phase: str, parent: Recorder | None = None) -> None:
        super().__init__(session, name, phase, parent)
        self.onnx = OnnxOps(self)
        """All ONNX operators: `g.onnx.softmax(x, axis=1)`."""
        self.syscall = Namespace(self, keys.SYSCALL_DOMAIN)
        """All syscalls by their own names and ports; the natural names are methods of the graph."""
        self.gates = Namespace(self, keys.GATE_DOMAIN)
        """The wire gates, which the compiler places by itself."""
        self.address_book = Namespace(self, keys.ADDRESS_BOOK_DOMAIN)
        """The address book's ops."""
        self._sends = WireOps(self)
        self._syscalls = SyscallOps(self)
        vars(self).update((name, getattr(self._syscalls, name)) for name in NAMES)
        self.wire = OpenWire(self._sends)
        """Wire ops by hand, without partner."""
        self.net_out = self._sends.net_out
        self.request = self._sends.request

    def _elsewhere(self, name: str) -> str:
        return "" if onnx_name(name) is None else f"ONNX operators are g.onnx's: g.onnx.{name}(…)"

    # --- what values and branches record

    onnx_op = record_one
    by_element = by_element

    def subgraph(self, name: str) -> Graph:
        return Graph(self.session, name, self.phase, self)

    # --- scopes

    def at(self, peer_class: str) -> Scope:
        """`with g.at("Client"):` ops inside run on that class, where no earlier rule of placement says
        otherwise.
        """
        if self.parent is not None or self.open_branch is not None or self.open_loops:
            raise self.error(
                OpInSubgraph,
                f"a scope of class {peer_class!r} stands in a branch or loop body",
                "a branch runs where its If or Loop runs: put that one into the scope",
            )
        if not is_class_name(peer_class):
            raise self.error(
                PortNameError, f"{peer_class!r} is not a valid name for a class", CLASS_NAME_RULE
            )
        return AtScope(self.at_scopes, peer_class, self, f"g.at({peer_class!r})")

    def on_invoke(self) -> Scope:
        """`with g.on_invoke():` the host starts the flows inside, by `invoke` without inputs.

        Says so to the compiler, which warns about flows that nothing starts beside entries, and keeps
        syscalls over constants from running with the only entry.
        """
        return Scope(self.invoke_scopes, "1", self, "g.on_invoke()")

    def with_module(self, name: str) -> Scope:
        """`with g.with_module("cell"):` ops inside carry the name in their place in the module tree."""
        checked = self.port_name(name, "the module scope", ())
        return Scope(self.module_scopes, checked, self, f"g.with_module({name!r})")

    def rounds(self, times: int | None = None, pause_ns: int = 0) -> Rounds:
        """`with g.rounds(20) as start:`: after bootstrap, then whenever a round has ended. None: for ever.

        A round whose requests asked nobody does not count: behind a back-off it is run again, with the same
        number, and what it emitted comes again. What it has trained by then stays trained.
        """
        given: tuple[tuple[str, object], ...] = (("times", times), ("pause_ns", pause_ns))
        for what, number in given:
            count = whole(number)
            if number is not None and (count is None or count < 0):
                hint = "1 or more, or None for ever" if what == "times" else "0 or more: 5 * MS"
                if what == "times" and isinstance(number, Output):
                    hint += "; what is known when it runs may end them: start.stop(condition)"
                raise self.error(
                    AttributeValueError, f"rounds: {what} is a whole number, not {number!r}", hint
                )
        if times == 0:
            raise self.error(
                AttributeValueError, "rounds: 0 times would run nothing", "say 1 or more, or None for ever"
            )
        return Rounds(self, whole(times) or 0, whole(pause_ns) or 0)

    def loop(self, times: Value | None = None, *, carry: object = None, after: After = UNORDERED) -> Loop:
        """`with g.loop(n) as step:` does what is recorded in the block `n` times, in one execution of one
        device: all of one iteration is done before the next begins.

        `times` is a number or a value (I64; 0 and below: not once), None where `step.stop(…)` ends it.
        `carry` is a value, or a list of them, that each iteration takes from the one before: `step.carried`,
        `step.next(…)`, and behind the block `step.result`. Nothing is sent or started in a loop.
        """
        return Loop(self, times, carry, after)

    # --- composites

    def bundle(self, parts: Sequence[Value], *, after: After = UNORDERED) -> Output:
        """One Composite of several values, to travel or go to the host as one. EmptyBundleError for none."""
        if not isinstance(parts, (list, tuple)):
            raise self.error(
                ValueTypeError,
                f"a bundle takes a list, not {parts!r}",
                "write g.bundle([a, b]), or g.bundle([a])",
            )
        if not parts:
            raise self.error(EmptyBundleError, "a bundle of nothing", "give its parts: g.bundle([a, b])")
        values = [lift(self, part) for part in parts]
        found = self.fresh("bundle", ValueType(types.COMPOSITE))
        found.parts = tuple(v.type for v in values)
        attrs = self._children(found.parts)
        self.put(Draft("Bundle", keys.COMPOSITE_DOMAIN, list(values), [found], attrs), after)
        return found

    def unbundle(
        self, composite: Output, part_types: Sequence[TypeLike] | None = None, *, after: After = UNORDERED
    ) -> tuple[Output, ...]:
        """The parts again. Their types are known where the bundle was recorded here, else `part_types` says
        them.
        """
        source = self.own(composite, "a Composite")
        if not types.compatible(source.node, types.COMPOSITE):
            raise self.error(ValueTypeError, f"{source!r} is not a Composite", "unbundle what g.bundle made")
        if part_types is None and not source.parts:
            raise self.error(
                EmptyBundleError, "the types of the parts are not known here", "name them: part_types="
            )
        parts = source.parts if part_types is None else tuple(as_type(self, like) for like in part_types)
        if not parts:
            raise self.error(EmptyBundleError, "a bundle of nothing", "name the types of its parts")
        if source.parts and len(parts) != len(source.parts):
            raise self.error(
                ArityError,
                f"the bundle has {len(source.parts)} parts, not {len(parts)}",
                "leave part_types out: they are known where the bundle was recorded",
            )
        for number, (part, known) in enumerate(zip(parts, source.parts, strict=False)):
            if not types.compatible(part.node, known.node):
                raise self.error(
                    ValueTypeError,
                    f"part {number} of the bundle is a {known.node}, not a {part.node}",
                    "leave part_types out: they are known where the bundle was recorded",
                )
        outputs = [self.fresh(f"child_{i}", part) for i, part in enumerate(parts)]
        attrs = self._children(parts)
        return tuple(self.put(Draft("Unbundle", keys.COMPOSITE_DOMAIN, [source], outputs, attrs), after))

    def _children(self, parts: Sequence[ValueType]) -> dict[str, AttrValue | SubgraphDraft]:
        denotations = ",".join(part.node.denotation for part in parts)
        return {keys.CHILD_COUNT_ATTR: len(parts), keys.CHILD_TYPES_ATTR: denotations.encode()}

    # --- anything else

    def constant(self, value: Any, dtype: TypeLike = None) -> Output:
        """A constant: a tensor from numbers (integers I64, floats F32, or `dtype`), Bytes from text or
        bytes.
        """
        if not isinstance(value, (str, bytes)):
            return self.onnx.constant(value, dtype)
        if dtype is not None and as_type(self, dtype).node is not types.BYTES:
            raise self.error(
                ValueTypeError,
                f"{value!r} is text, and no {as_type(self, dtype).node}",
                "numbers make a tensor: g.constant(12, 'I32'); text and bytes make Bytes, without a dtype",
            )
        found = self.fresh("bytes", ValueType(types.BYTES))
        data = value.encode() if isinstance(value, str) else value
        self.add(Draft("Constant", keys.SYSCALL_DOMAIN, [], [found], {"value": data}))
        return found

    def op(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[Value],
        output_types: Sequence[TypeLike] = (),
        attrs: dict[str, AttrValue] | None = None,
        *,
        after: After = UNORDERED,
        facts: OpFacts = NO_FACTS,
    ) -> tuple[Output, ...]:
        """An op of any domain as it stands, unchecked: for opsets that no catalog holds."""
        outputs = [self.fresh(op_type.lower(), as_type(self, like)) for like in output_types]
        values: list[Output | None] = [lift(self, value) for value in inputs]
        draft = Draft(op_type, domain, values, outputs, dict(attrs or {}), facts)
        return tuple(self.put(draft, after))

    def call(self, module: Part | onnx.ModelProto, name: str | None = None, **inputs: Value) -> ModuleOutputs:
        """Calls a sub-module with its inputs by name; short for `module.call().input(…).build(g)`.

        A ModelProto, recorded or compiled, is a module too.
        """
        builder = as_callable(module).call(name)
        for port, value in inputs.items():
            builder.input(port, value)
        return builder.build(self)

    def finish(self) -> None:
        """Checks at the end of a body what could not be checked before."""
        self._sends.finish()
        if self.open_rounds:
            raise self.error(ModuleError, "rounds are still open at the end of the body")
        unread_results(self, self.session.functions())
