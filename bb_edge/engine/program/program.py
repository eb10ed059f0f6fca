"""What `load` makes of an artifact:

immutable, and shared by every node that is installed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.records import GraphSlot
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto
from bb_edge.ir.types import ValueType

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
    """One partition: its main, its bootstrap (or None), and its slots."""

    name: str
    peer_class: str
    main: FunctionKey
    bootstrap: FunctionKey | None
    bindings: Mapping[str, Binding]
    states: Mapping[str, AttributeProto]
    peer_classes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which program an artifact is of, and what its classes agreed to say to each other.

    `program` is the SHA-256 of the recorded program, `accepts` those of other programs whose nodes are taken
    as peers; `contracts` holds, by target and then by the other class, a digest of what travels between them.
    All are hex, and empty in artifacts that were compiled before they were written.
    """

    program: str = ""
    accepts: frozenset[str] = frozenset()
    contracts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed artifact.

    `functions` is the symbol table; `graphs` holds those that the engine runs itself.
    """

    module: str
    targets: Mapping[str, Target]
    graphs: Mapping[FunctionKey, GraphSlot]
    functions: Mapping[FunctionKey, FunctionProto]
    opsets: Mapping[str, int]
    size: int
    digest: str
    identity: Identity = Identity()

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

    def _only(self) -> Target:
        if len(self.targets) != 1:
            raise LoadError(
                f"the program has several targets: {', '.join(self.targets)}",
                self.module,
                "look at one: program.graphs[program.targets[NAME].main]",
            )
        return next(iter(self.targets.values()))
