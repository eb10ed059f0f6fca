"""What `load` makes of an artifact: immutable, and shared by every node that is installed from it.

Value names of a function become site numbers, nodes become records of ops.

**Waiting.** An op's counter starts at the number of distinct sites that it waits for and falls as they are
written; at 0 it fires. Constants are in the frame's template already and don't count. Sites that stem from
source ops alone weigh `LAZY` each, so that one comparison tells "everything but the sources is there"
(then the sources are pulled) from "ready".

**Any-style ops.** An op that fires on a single arrival is split into one record per input port; each is an
ordinary one-input op, and all of them share `origin`, the key of the op's state.

**Regions.** Region 0 is run by the execution that an entry started. Each `RecvResp` opens a region of its
own, run once per answer in a child execution: the ops that are reached from it. `imports` are the sites of
outer regions that its ops read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bb_edge.engine.errors import LoadError
from bb_edge.ir.bodies import body_keys
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, NodeProto
from bb_edge.ir.opsets import OpDef, OpKind
from bb_edge.ir.types import ValueType
from bb_edge.wire.programs import ProgramClaim

LAZY = 1 << 16
"""Weight of a source-fed site in an op's counter."""

EAGER_MASK = LAZY - 1

INVOKE = -1
"""Key of `GraphSlot.starts`, and of claims, for executions that start without any value."""

OUTPUT_OP = "__output__"
"""op_type of the record that surfaces a declared output of a main as an AppEvent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One op of a graph.

    `inputs` are data sites in the node's order, -1 where an optional one is absent; `controls` are sites that
    only order; `outputs` are sites, -1 where nobody named one. `port` is the input port that a record of an
    Any-style op stands for, -1 for all others.
    """

    index: int
    origin: int
    port: int = -1
    name: str
    op_type: str
    domain: str
    inputs: tuple[int, ...]
    controls: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    attrs: Mapping[str, object]
    meta: Mapping[str, str] = field(default_factory=dict)
    definition: OpDef | None = None
    kind: OpKind = OpKind.PLAIN
    region: int
    waits: int
    pulls: tuple[int, ...]
    proto: NodeProto | None = None  # kept for ONNX operators, which a backend prepares

    @property
    def callees(self) -> tuple[FunctionKey, ...]:
        """The functions that it may run: its bodies, or what it calls, if there is one of its name."""
        return body_keys(self.domain, self.op_type, self.attrs) or ((self.domain, self.op_type),)


@dataclass(frozen=True, slots=True)
class Region:
    """Who waits for each site within one region: per site a tuple of (op index, weight)."""

    index: int
    parent: int
    entry: int
    request: int
    consumers: tuple[tuple[tuple[int, int], ...], ...]
    imports: tuple[int, ...]
    joins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphSlot:
    """A function as the engine runs it. `values` and `waiting` are the templates of its frames.

    `stacks` holds, by the wire id of a request, the declared types of its answers' batches. `starts`,
    `frees` and `thens` are those of `flows.py`.
    """

    name: str
    domain: str
    sites: tuple[str, ...]
    ops: tuple[OpSpec, ...]
    regions: tuple[Region, ...]
    values: tuple[object, ...]
    waiting: tuple[int, ...]
    inputs: Mapping[str, int]
    input_types: Mapping[str, ValueType]
    outputs: Mapping[str, int]
    meta: Mapping[str, str]
    is_entry: bool
    forwarded: frozenset[int] = field(default=frozenset())
    stacks: Mapping[str, tuple[ValueType | None, ...]] = field(default_factory=dict)
    # Of what components' ops, loops and branches write, where the artifact says it: a stripped one does
    # not, but for the rows of loops.
    output_types: Mapping[int, ValueType] = field(default_factory=dict)
    starts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    frees: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    thens: Mapping[int, int] = field(default_factory=dict)

    @property
    def absent(self) -> int:
        """The extra last entry of a frame's values, which is never written."""
        return len(self.sites)


FunctionKey = tuple[str, str]
"""(domain, name); the overload is always empty."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What a target's slot is bound to: role, TYPE_NAME and the compiler's slot id."""

    role: str
    type_name: str
    slot_id: int


@dataclass(frozen=True, slots=True)
class Target:
    """One partition: its main, its bootstrap (or None), and its slots.

    `hears` are the classes of peers whose presence it needs; None for every class. `asks` are those of them
    that it sends to, receives from or selects: what is left a component might call.
    """

    name: str
    peer_class: str
    main: FunctionKey
    bootstrap: FunctionKey | None
    bindings: Mapping[str, Binding]
    states: Mapping[str, AttributeProto]
    peer_classes: Mapping[str, str]
    hears: tuple[str, ...] | None = None
    asks: tuple[str, ...] | None = None


class PeerClasses(NamedTuple):
    """Classes of peers that a node deals with, sorted; None for every class."""

    hears: tuple[str, ...] | None = None
    asks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed artifact.

    `functions` is the symbol table; `graphs` holds those that the engine runs itself. `stripped` for the
    edge, it holds one target; the portable model holds all of them.
    """

    module: str
    targets: Mapping[str, Target]
    graphs: Mapping[FunctionKey, GraphSlot]
    functions: Mapping[FunctionKey, FunctionProto]
    opsets: Mapping[str, int]
    size: int
    digest: str
    identity: ProgramClaim = field(default_factory=ProgramClaim)
    stripped: bool = True

    def __repr__(self) -> str:
        targets, digest = ", ".join(self.targets), self.digest[:16]
        return f"<Program {self.module}: {targets}; {self.size} bytes, sha256 {digest}…>"

    @property
    def inputs(self) -> Mapping[str, ValueType]:
        """The inputs of the only target and their types; LoadError where there are several targets."""
        return self.graphs[self._only().main].input_types

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the only target, in order. LoadError where there are several."""
        return tuple(self.graphs[self._only().main].outputs)

    def heard_by(self, targets: Iterable[str]) -> tuple[str, ...] | None:
        """The classes of peers that these targets hear of, sorted; None for every class."""
        return self.dealt_with(targets).hears

    def dealt_with(self, targets: Iterable[str]) -> PeerClasses:
        """The classes of peers that these targets hear of, and those that they ask for."""
        chosen = [self.targets[name] for name in targets]
        return PeerClasses(_together(t.hears for t in chosen), _together(t.asks for t in chosen))

    def _only(self) -> Target:
        if len(self.targets) != 1:
            raise LoadError(
                f"the program has several targets: {', '.join(self.targets)}",
                self.module,
                "look at one: program.graphs[program.targets[NAME].main]",
            )
        return next(iter(self.targets.values()))


def _together(of_targets: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    found: set[str] = set()
    for classes in of_targets:
        if classes is None:
            return None
        found.update(classes)
    return tuple(sorted(found))
