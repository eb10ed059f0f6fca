"""The records that an opset catalog is made of, and the compact notation that its tables are written in.

A line of a table names its ports as ``"value:T, trigger:Trigger"``. After the colon comes a type id of
`bb_edge.ir.types` or a type variable (one capital letter, bound to one type per node); then ``?`` marks an
optional port and ``*`` a variadic one. A variadic port takes one or more values; with ``*any`` a single
arrival makes the op ready (``Any``-style), otherwise all of them must be there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bb_edge.ir.errors import BBError


class OpRowError(BBError):
    """A row of an op table that cannot be read."""


class OpKind(enum.Enum):
    """When an op fires."""

    PLAIN = "plain"  # when its required inputs are there
    ENTRY = "entry"  # starts an execution of its own
    SOURCE = "source"  # no inputs: when another op of the execution first has all its other inputs


class Effect(enum.Enum):
    """What a component's op does to its component; it decides which executions wait for each other."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Ready(enum.Enum):
    """Whether an op waits for a port."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    ANY = "any"


class AttrKind(enum.IntEnum):
    """Kinds of attribute, numbered as ONNX's AttributeProto.AttributeType."""

    ANY = 0
    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    TYPE_PROTO = 13


class _Missing(enum.Enum):
    REQUIRED = "required"


REQUIRED = _Missing.REQUIRED
"""The default of an attribute that the author must give."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of an op.

    `type` is a type id, or a type variable where it is a single capital letter.
    """

    name: str
    type: str
    ready: Ready = Ready.REQUIRED
    variadic: bool = False

    @property
    def is_variable(self) -> bool:
        return len(self.type) == 1


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute of an op; `default` is REQUIRED, None (optional, absent) or the value."""

    name: str
    kind: AttrKind
    default: object = None

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True, slots=True)
class OpDef:
    """One row of the catalog.

    `relation` names the type relation that the type solver applies; "" means that the port types and their
    variables say everything. `inserted` marks ops that only compiler passes place; `remote` ops may be
    reached by an envelope addressed to `/component/<ref>/op/<name>`. `own_state` marks ops that keep state
    across executions which no name identifies: each call of a module has a state of its own. `since` is the
    version of the domain in which the op came, or got another input, output or attribute: an artifact imports
    the newest `since` of the ops that it holds, and a runtime that does not know it refuses it by name.
    """

    domain: str
    name: str
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    attrs: tuple[Attr, ...] = ()
    kind: OpKind = OpKind.PLAIN
    effect: Effect = Effect.NONE
    may_suspend: bool = False
    inserted: bool = False
    remote: bool = False
    own_state: bool = False
    relation: str = ""
    doc: str = ""
    since: int = 1

    def attr(self, name: str) -> Attr | None:
        """Returns the attribute of that name, or None where the op has none."""
        return next((a for a in self.attrs if a.name == name), None)

    @property
    def min_inputs(self) -> int:
        return len(self.inputs) - [p.ready for p in self.inputs].count(Ready.OPTIONAL)

    @property
    def max_inputs(self) -> int | None:
        """How many inputs the op may have; None where the last port is variadic."""
        return None if any([p.variadic for p in self.inputs]) else len(self.inputs)


@dataclass(frozen=True, slots=True)
class Opset:
    """All ops of one domain at one version."""

    domain: str
    version: int
    ops: Mapping[str, OpDef] = field(default_factory=dict)


def ports(text: str) -> tuple[Port, ...]:
    """Parses the ports of an op, as in ``"a:T, b:Tensor?, rest:Any*any"``."""
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, type_id = part.partition(":")
        ready, variadic = Ready.REQUIRED, False
        if type_id.endswith("*any"):
            type_id, ready, variadic = type_id[:-4], Ready.ANY, True
        elif type_id.endswith("*?"):
            type_id, ready, variadic = type_id[:-2], Ready.OPTIONAL, True
        elif type_id.endswith("*"):
            type_id, variadic = type_id[:-1], True
        elif type_id.endswith("?"):
            type_id, ready = type_id[:-1], Ready.OPTIONAL
        found.append(Port(name, type_id, ready, variadic))
    return tuple(found)


_DEFAULTS = {
    "int": AttrKind.INT,
    "float": AttrKind.FLOAT,
    "string": AttrKind.STRING,
    "ints": AttrKind.INTS,
    "floats": AttrKind.FLOATS,
    "strings": AttrKind.STRINGS,
    "tensor": AttrKind.TENSOR,
    "graph": AttrKind.GRAPH,
    "type": AttrKind.TYPE_PROTO,
    "any": AttrKind.ANY,
}


def attrs(text: str) -> tuple[Attr, ...]:
    """Parses the attributes of an op, as in ``"n:int, delta:int=1, axis:int?"``.

    The first is required, the second has a default, the third is optional. OpRowError for another kind.
    """
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, rest = part.partition(":")
        kind_text, has_default, default_text = rest.partition("=")
        default: object = None if kind_text.endswith("?") else REQUIRED
        kind = _DEFAULTS.get(kind_text.rstrip("?"))
        if kind is None:
            raise OpRowError(
                f"{part!r:.60} is not an attribute",
                hint='write op("Name", "input:T, input:T", "output:T, output:T", "attribute:int=1"): all'
                f" inputs in one text, all outputs in another; attributes are of {', '.join(_DEFAULTS)}",
            )
        if has_default:
            if kind is AttrKind.INT:
                default = int(default_text)
            elif kind is AttrKind.FLOAT:
                default = float(default_text)
            else:
                default = default_text
        found.append(Attr(name, kind, default))
    return tuple(found)


class Table:
    """Collects the rows of one domain.

    table.op("After", "trigger:Trigger", "trigger:Trigger", "delay_ns:int")
    """

    def __init__(self, domain: str, version: int = 1) -> None:
        self._domain = domain
        self._version = version
        self._ops: dict[str, OpDef] = {}

    def op(
        self,
        name: str,
        inputs: str = "",
        outputs: str = "",
        attributes: str = "",
        doc: str = "",
        *,
        kind: OpKind = OpKind.PLAIN,
        effect: Effect = Effect.NONE,
        may_suspend: bool = False,
        inserted: bool = False,
        remote: bool = False,
        own_state: bool = False,
        relation: str = "",
        since: int = 1,
    ) -> None:
        """Adds an op: its inputs, its outputs and its attributes, each as one text with commas.

        `effect` is what it does to its component. With WRITE executions that call it take turns, unless the
        class is `shared`; NONE (the default) and READ may run whenever. OpRowError for wrong
        attributes, and for a name that is there.
        """
        if name in self._ops:
            what = f"op {name} is declared twice in the table of {self._domain}"
            raise OpRowError(what, hint="give each op a name of its own")
        self._ops[name] = OpDef(
            self._domain,
            name,
            ports(inputs),
            ports(outputs),
            attrs(attributes),
            kind,
            effect,
            may_suspend,
            inserted,
            remote,
            own_state,
            relation,
            doc,
            since,
        )

    def opset(self) -> Opset:
        version = max([self._version, *(op.since for op in self._ops.values())])
        return Opset(self._domain, version, self._ops)
