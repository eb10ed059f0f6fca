"""The light form: a program as plain records, between two protos (docs/design/artifact.md, "Light form").

Records are never changed in place, the dicts in them neither: a pass builds new ones and shares what it
leaves alone. Records compare by identity, so that "untouched" is one `is`; `proto.to_proto` gives
bytes where contents are to be compared. What a record does not name itself is kept in `extra`, serialized,
and written back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import is_
from typing import Any, Final, TypeAlias

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.diagnostics import ProgramWarning
from bb_host.ir.facts import NO_FACTS, FunctionFacts, OpFacts, ProgramFacts

Array = np.ndarray[Any, np.dtype[Any]]
FunctionKey = tuple[str, str]
"""What a call names: `(domain, op_type)`."""

_NO_FUNCTION_FACTS, _NO_PROGRAM_FACTS = FunctionFacts(), ProgramFacts()

_MOST_SHOWN = 4
"""Names that a record shows of its inputs and outputs: a record is printed as one line."""


def _signature(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """`MatMul(x, w) → y`."""
    shown = [
        ", ".join([*names[:_MOST_SHOWN], *(["…"] if len(names) > _MOST_SHOWN else [])])
        for names in (inputs, outputs)
    ]
    return f"{name}({shown[0]})" + (f" → {shown[1]}" if shown[1] else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """A tensor that no NumPy array says fully (bfloat16, strings, float8, external data): its serialized
    TensorProto.
    """

    elem_type: int
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:
        return f"<RawTensor of element type {self.elem_type}, {list(self.shape)}, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True, eq=False)
class RawAttribute:
    """An attribute of a kind that passes don't look into: its `AttributeProto.type` and its serialized
    form.
    """

    kind: int
    data: bytes

    def __repr__(self) -> str:
        return f"<RawAttribute of kind {self.kind}, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """A GraphProto on an attribute: a branch, a loop body, or a component's construction state.

    `initializers` are in order. `config` is its metadata: of a construction state the component's
    configuration, values as JSON. `extra` is a serialized GraphProto of the rest (sparse initializers,
    quantization annotations, doc string); `foreign_types` holds value infos that say more than a ValueType
    does.
    """

    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    types: dict[str, ValueType] = field(default_factory=dict)
    initializers: dict[str, Array | RawTensor] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    extra: bytes = b""
    foreign_types: dict[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Subgraph {_signature(self.name, self.inputs, self.outputs)}: {_count(len(self.ops), 'op')}>"


AttrValue: TypeAlias = (
    "int | float | bytes | Array | list[int] | list[float] | list[bytes]"
    " | Subgraph | ValueType | RawTensor | RawAttribute"
)
"""INT, FLOAT, STRING, TENSOR, INTS, FLOATS, STRINGS, GRAPH, TYPE_PROTO; an empty list is INTS."""


@dataclass(slots=True, eq=False)
class Op:
    """One NodeProto. An input left out is an empty name. `domain` is as on disk: ONNX's own is ``""``.

    `extra` is a serialized NodeProto of the rest (device configurations, overload, doc string). An op never
    changes: its fields are final for the type checker, which costs nothing where passes make ops by the
    thousand. A frozen dataclass takes four times as long to make.
    """

    op_type: Final[str]
    domain: Final[str]
    inputs: Final[tuple[str, ...]] = ()
    outputs: Final[tuple[str, ...]] = ()
    attrs: Final[dict[str, AttrValue]] = field(default_factory=dict)
    facts: Final[OpFacts] = NO_FACTS
    name: Final[str] = ""
    extra: Final[bytes] = b""

    def __repr__(self) -> str:
        return f"<Op {_signature(self.op_type, self.inputs, self.outputs)}>"

    def saying(self, more: OpFacts) -> Op:
        """A copy that says this too; the op itself where it does: passes stamp every op this way."""
        facts = self.facts
        if vars(more).items() <= vars(facts).items():
            return self
        return self.with_facts(facts | more)

    def with_facts(self, facts: OpFacts) -> Op:
        """A copy that says these facts and no others."""
        return Op(
            self.op_type, self.domain, self.inputs, self.outputs, self.attrs, facts, self.name, self.extra
        )

    @property
    def source(self) -> str:
        """The author's line, `file.py:12`; empty where the op has no author."""
        return self.facts.source

    @property
    def slot(self) -> str:
        """The slot that it runs on; empty where it runs on none."""
        return self.facts.slot

    def beside(self) -> OpFacts:
        """What an op says that a pass puts beside this one: it is of the same line."""
        return OpFacts(source=self.facts.source) if self.facts.source else NO_FACTS

    def integer(self, name: str, default: int | None = None) -> int:
        """An INT attribute; KeyError where it is missing and has no default."""
        value = self.attrs[name] if default is None else self.attrs.get(name, default)
        assert isinstance(value, int), f"{self}, {name}: {value!r}"
        return value

    def number(self, name: str, default: float) -> float:
        """A FLOAT attribute, or an INT one as a float."""
        value = self.attrs.get(name, default)
        assert isinstance(value, (int, float)), f"{self}, {name}: {value!r}"
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A STRING attribute; KeyError where it is missing and has no default."""
        value = self.attrs[name] if default is None else self.attrs.get(name, default.encode())
        assert isinstance(value, bytes), f"{self}, {name}: {value!r}"
        return value.decode()

    def integers(self, name: str, default: Iterable[int] = ()) -> list[int]:
        """An INTS attribute; an empty one is one that is left out."""
        value = self.attrs.get(name) or default
        assert isinstance(value, Iterable), f"{self}, {name}: {value!r}"
        return list(value)

    def subgraphs(self) -> Iterator[tuple[str, Subgraph]]:
        """The subgraphs on its attributes, by attribute name."""
        for key, value in self.attrs.items():
            if isinstance(value, Subgraph):
                yield key, value


def stamping(more: OpFacts) -> Callable[[Op], Op]:
    """What many ops of a pass say more: `stamp(op)` is `op.saying(more)`, `stamp` being what this gives.

    Ops that share one record of facts share one afterwards, put together once.
    """
    known: dict[int, OpFacts] = {}  # by the identity of the facts before
    before: list[OpFacts] = []  # kept, so that no others can have that identity

    def stamp(op: Op) -> Op:
        facts = op.facts
        new = known.get(id(facts))
        if new is None:
            new = known[id(facts)] = op.saying(more).facts
            before.append(facts)
        if new is facts:
            return op
        return Op(op.op_type, op.domain, op.inputs, op.outputs, op.attrs, new, op.name, op.extra)

    return stamp


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A component slot of a function: generic where `state` is None, else concrete with its construction
    state.

    `role` is a role's binding name (`keys.ROLES`); empty for a plain function attribute, which is not a slot.
    `where` is the line that declares it, `file.py:12`, while the program is compiled; no file holds it.
    """

    role: str
    concrete_type: str = ""
    at: str = ""
    peer_class: str = ""
    state: AttrValue | None = None
    where: str = field(default="", compare=False)

    def __repr__(self) -> str:
        parts = [self.role or "attribute", self.concrete_type, self.at and f"at {self.at}"]
        parts.append(self.peer_class and f"peers of {self.peer_class}")
        return f"<Slot {', '.join(filter(None, parts))}>"

    @property
    def is_concrete(self) -> bool:
        return self.state is not None


class OpList(tuple[Op, ...]):
    """The ops of a function, with what they hold: passes skip what is not there.

    Each answer is found when it is first asked for, most lists are asked for few of them, and is kept with
    the list. Compares as any tuple of ops.
    """

    sound: object = None
    """What a check has found of the names (`passes.analysis.sound_names.Names`); None where none has."""

    @cached_property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """Domain and op type, of the list itself."""
        return frozenset({(op.domain, op.op_type) for op in self})

    @cached_property
    def all_kinds(self) -> frozenset[tuple[str, str]]:
        """Domain and op type, those of subgraphs too."""
        if not self.has_subgraphs:
            return self.kinds
        return frozenset((op.domain, op.op_type) for op in walk_ops(self))

    @cached_property
    def domains(self) -> frozenset[str]:
        """Those of subgraphs too."""
        return frozenset(domain for domain, _ in self.all_kinds)

    @cached_property
    def records(self) -> tuple[OpFacts, ...]:
        """The records of facts of the list itself, each once: most ops share theirs with others."""
        return tuple({id(facts): facts for facts in [op.facts for op in self]}.values())

    @cached_property
    def said(self) -> frozenset[str]:
        """The names of all facts that ops of the list itself say."""
        return frozenset().union(*map(vars, self.records))

    @cached_property
    def by_slot(self) -> dict[str, list[Op]]:
        """The ops that run on a slot, those of subgraphs too, per slot, in the order of its first op."""
        found: defaultdict[str, list[Op]] = defaultdict(list)
        for op in walk_ops(self) if self.has_subgraphs else self:
            if slot := op.facts.slot:
                found[slot].append(op)
        return dict(found)

    @cached_property
    def has_subgraphs(self) -> bool:
        """Whether a branch or loop body hangs on an op."""
        values = chain.from_iterable([op.attrs.values() for op in self if op.attrs])
        return Subgraph in map(type, values)

    @cached_property
    def wire(self) -> tuple[int, ...]:
        """The indices of the wire ops."""
        places = [op.domain for op in self]
        found: list[int] = []
        for _ in range(places.count(keys.WIRE_DOMAIN)):
            found.append(places.index(keys.WIRE_DOMAIN, found[-1] + 1 if found else 0))
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One FunctionProto; ops in topological order, an `OpList` where they come as a tuple. `slots` are
    in the order of their declaration.

    What is known of slots stands in `slots` and not in `facts`. `extra` is a serialized FunctionProto of the
    rest.
    """

    name: str
    domain: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    types: dict[str, ValueType] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    facts: FunctionFacts = _NO_FUNCTION_FACTS
    opsets: dict[str, int] = field(default_factory=dict)
    extra: bytes = b""
    foreign_types: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.ops) is tuple:  # of what is none, the check behind a pass of an author's speaks
            object.__setattr__(self, "ops", OpList(self.ops))

    def __repr__(self) -> str:
        return f"<Function {_signature(self.name, self.inputs, self.outputs)}: {_count(len(self.ops), 'op')}>"

    @property
    def key(self) -> FunctionKey:
        """What a call names: `(domain, op_type)`."""
        return self.domain, self.name

    @property
    def is_tensor_work(self) -> bool:
        """Whether a backend runs it: a run of ONNX ops, or a graph that a component brought."""
        return self.domain in (keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN)

    def with_ops(
        self,
        ops: Iterable[Op],
        types: dict[str, ValueType] | None = None,
        facts: FunctionFacts | None = None,
        opsets: dict[str, int] | None = None,
    ) -> Function:
        """The function with these ops, and with other types, facts or imports where they are given; itself
        where nothing changes. Most passes end with it: `replace` takes four times as long.
        """
        new = ops if isinstance(ops, tuple) else tuple(ops)
        as_it_was = types is None and facts is None and opsets is None
        if as_it_was and are_same(new, self.ops):
            return self
        return Function(
            self.name,
            self.domain,
            self.inputs,
            self.outputs,
            new,
            self.types if types is None else types,
            self.slots,
            self.facts if facts is None else facts,
            self.opsets if opsets is None else opsets,
            self.extra,
            self.foreign_types,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One ModelProto. `functions[0]` is the root of a recorded program.

    `name` is the root module's; `graph_name` only where the graph is called otherwise. `extra` is a
    serialized ModelProto of the rest (versions, producer, training info, device configurations, a foreign
    graph's content); empty stands for what we write ourselves. `warnings` are not part of the model: they are
    what recording and compiling have to say about it.
    """

    name: str
    functions: tuple[Function, ...] = ()
    facts: ProgramFacts = _NO_PROGRAM_FACTS
    opsets: dict[str, int] = field(default_factory=dict)
    graph_name: str = ""
    extra: bytes = b""
    warnings: tuple[ProgramWarning, ...] = ()

    def __repr__(self) -> str:
        ops = _count(sum(len(function.ops) for function in self.functions), "op")
        return f"<Program {self.name}: {_count(len(self.functions), 'function')}, {ops}>"

    def function(self, domain: str, name: str) -> Function | None:
        """The function that a call `(domain, name)` means, if the program holds it."""
        return next((f for f in self.functions if f.name == name and f.domain == domain), None)

    def with_functions(self, functions: Iterable[Function]) -> Program:
        """The program with these functions; itself where they are its own."""
        new = tuple(functions)
        if are_same(new, self.functions):
            return self
        return Program(self.name, new, self.facts, self.opsets, self.graph_name, self.extra, self.warnings)


def are_same(new: Sequence[object], old: Sequence[object]) -> bool:
    """Whether two sequences hold the same records, one by one."""
    return len(new) == len(old) and all(map(is_, new, old))


def walk_ops(ops: tuple[Op, ...]) -> Iterator[Op]:
    """All ops, those in subgraphs included; an op comes before what it holds."""
    for op in ops:
        yield op
        for _, graph in op.subgraphs():
            yield from walk_ops(graph.ops)
