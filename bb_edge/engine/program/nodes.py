"""A function of the artifact as it is read: its nodes, with sites for names of values, and their regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bb_edge.engine.errors import LoadError
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, NodeProto
from bb_edge.ir.opsets import OpDef, OpKind, lookup
from bb_edge.ir.opsets.wire import OP_RECV_RESP, OP_SEND_REQ
from bb_edge.ir.tensors import from_tensor_proto

_READERS: Mapping[int, Callable[[AttributeProto], object]] = {
    AttributeProto.INT: lambda attr: attr.i,
    AttributeProto.FLOAT: lambda attr: attr.f,
    AttributeProto.STRING: lambda attr: attr.s,
    AttributeProto.TENSOR: lambda attr: from_tensor_proto(attr.t),
    AttributeProto.GRAPH: lambda attr: attr.g,
    AttributeProto.INTS: lambda attr: list(attr.ints),
    AttributeProto.FLOATS: lambda attr: list(attr.floats),
    AttributeProto.STRINGS: lambda attr: list(attr.strings),
    AttributeProto.TYPE_PROTO: lambda attr: attr.tp,
}


def attribute_value(attr: AttributeProto) -> object:
    """The Python value of an attribute: numbers, bytes, arrays, lists of them; graphs stay protos."""
    if attr.type not in _READERS:
        raise LoadError(f"attribute {attr.name} has kind {attr.type}, which this runtime does not take")
    return _READERS[attr.type](attr)


def captured_names(node: NodeProto) -> tuple[str, ...]:
    """Names that a node's subgraphs (If, Loop) read from the scope around them, in order of first use."""
    found: dict[str, None] = {}
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            graph = attr.g
            known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                for name in (*inner.input, *captured_names(inner)):
                    if name and name not in known:
                        found[name] = None
                known.update(inner.output)
            found.update((v.name, None) for v in graph.output if v.name not in known)
    return tuple(name for name in found if name not in node.input)


def metadata(proto: FunctionProto | NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def constant_value(attrs: Mapping[str, object], where: str) -> object:
    """What a `Constant` node yields (ONNX Constant, all `value*` attributes but sparse ones).

    Arrays are read-only: every execution and the host see the same one.
    """
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in attrs:
            return _fixed(attrs[name], dtype)
    if "value_string" in attrs:
        return attrs["value_string"]
    value = attrs.get("value")
    if isinstance(value, bool) or value is None:
        raise LoadError(
            "a Constant needs a value", where=where, hint="give it value, value_float(s) or value_int(s)"
        )
    if isinstance(value, int):
        return _fixed(value, np.int64)
    if isinstance(value, float):
        return _fixed(value, np.float32)
    return value


def _fixed(value: object, dtype: type[np.generic]) -> object:
    array = np.array(value, dtype=dtype)
    array.setflags(write=False)
    return array


class Node(NamedTuple):
    """A node that is not a constant.

    `data` are the sites of its inputs, -1 where an optional one is absent, and behind them those that its
    subgraphs capture; `controls` are sites that only order it; `reads` are all of these that are there, in
    the order of the node. `outputs` are sites, -1 for one without a name; `writes` those with one.
    """

    proto: NodeProto
    attrs: Mapping[str, object]
    meta: Mapping[str, str]
    definition: OpDef | None
    data: tuple[int, ...]
    controls: tuple[int, ...]
    reads: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(eq=False)
class Function:
    """A function that has been read.

    `producer` has per site the index of the node that writes it, -1 for inputs and constants. Raises
    LoadError where a value is written twice or read before it is written, or a constant has no value.
    """

    proto: FunctionProto
    site_of: dict[str, int] = field(default_factory=dict)
    constants: dict[int, object] = field(default_factory=dict)
    producer: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.where = f"function {self.proto.name}"
        for name in self.proto.input:
            self._new_site(name, -1)
        for node in self.proto.node:
            self._read(node)

    def where_of(self, node: NodeProto) -> str:
        """The place of a node, for errors."""
        return f"{self.where}, node {node.name or node.op_type}"

    def _new_site(self, name: str, producer: int) -> int:
        if name in self.site_of:
            raise LoadError(f"value {name!r} is written twice", where=self.where)
        self.site_of[name] = site = len(self.producer)
        self.producer.append(producer)
        return site

    def _read(self, node: NodeProto) -> None:
        attrs = {a.name: attribute_value(a) for a in node.attribute}
        meta = metadata(node)
        definition = lookup(node.domain, node.op_type)
        where = self.where_of(node)
        captured = captured_names(node)
        for name in (*node.input, *captured):
            if name and name not in self.site_of:
                raise LoadError(f"{node.op_type} reads {name!r}, which nothing before it writes", where=where)
        if definition is not None and definition.relation == "constant":
            if len(node.output) != 1:
                raise LoadError("a Constant has one output", where=where)
            site = self._new_site(node.output[0], -1)
            self.constants[site] = constant_value(attrs, where)
            return
        inputs = [self.site_of[name] if name else -1 for name in node.input]
        first_control = len(inputs) - int(meta.get(keys.CONTROL_INPUTS_KEY, "0"))
        if first_control < 0:
            raise LoadError("more control inputs than inputs", where=where)
        caught = [self.site_of[name] for name in captured]
        index = len(self.nodes)
        outputs = [self._new_site(name, index) if name else -1 for name in node.output]
        self.nodes.append(
            Node(
                proto=node,
                attrs=attrs,
                meta=meta,
                definition=definition,
                data=(*inputs[:first_control], *caught),
                controls=tuple(inputs[first_control:]),
                reads=tuple(site for site in (*inputs, *caught) if site >= 0),
                outputs=tuple(outputs),
                writes=tuple(site for site in outputs if site >= 0),
            )
        )

    def lazy_sites(self) -> tuple[set[int], dict[int, tuple[int, ...]]]:
        """Sites that stem from source ops and constants alone, and for each the source nodes behind it."""
        lazy: set[int] = set()
        behind: dict[int, tuple[int, ...]] = {}
        for index, node in enumerate(self.nodes):
            live = [site for site in node.reads if site not in self.constants]
            if not live:
                if node.definition is not None and node.definition.kind is OpKind.ENTRY:
                    continue
                sources: tuple[int, ...] = (index,)
            elif all(site in lazy for site in live):
                sources = tuple(dict.fromkeys(source for site in live for source in behind[site]))
            else:
                continue
            lazy.update(node.writes)
            behind.update(dict.fromkeys(node.writes, sources))
        return lazy, behind


class Opener(NamedTuple):
    """What opens a region: the index of the `RecvResp` node, and that of its request's node."""

    entry: int
    request: int


def node_regions(function: Function, lazy: set[int]) -> tuple[list[int], list[Opener]]:
    """The region of each node, and what opens region 1, 2, …

    `lazy` are the sites that stem from sources alone. LoadError for a `RecvResp` without its request, and
    where an op joins answers of different requests.
    """
    openers = _openers(function)
    region = [0] * len(function.nodes)
    for number, opener in enumerate(openers, 1):
        region[opener.entry] = number
    if openers:
        _spread(function, lazy, openers, region)
        _place_sources(function, lazy, region)
    return region, openers


def _openers(function: Function) -> list[Opener]:
    requests: dict[str, int] = {}
    answers: list[tuple[int, str]] = []
    for index, node in enumerate(function.nodes):
        if node.proto.domain == keys.WIRE_DOMAIN and node.proto.op_type == OP_SEND_REQ:
            requests[node.meta.get(keys.WIRE_ID_KEY, "")] = index
        elif node.proto.domain == keys.WIRE_DOMAIN and node.proto.op_type == OP_RECV_RESP:
            answers.append((index, node.meta.get(keys.WIRE_REQUEST_KEY, "?")))
    openers: list[Opener] = []
    for index, wire_id in answers:
        if wire_id not in requests:
            where = function.where_of(function.nodes[index].proto)
            raise LoadError("RecvResp without its request", where=where)
        openers.append(Opener(index, requests[wire_id]))
    return openers


def _spread(function: Function, lazy: set[int], openers: list[Opener], region: list[int]) -> None:
    """Moves every node to the innermost region that it reads from."""

    def depth(inner: int) -> int:
        depth = 0
        while inner:
            depth += 1
            if depth > len(openers):
                raise LoadError("requests nest in a cycle", where=function.where)
            inner = region[openers[inner - 1].request]
        return depth

    def inside(inner: int, outer: int) -> bool:
        while inner and inner != outer:
            inner = region[openers[inner - 1].request]
        return inner == outer

    for _ in range(len(openers) + 1):
        before = list(region)
        for index, node in enumerate(function.nodes):
            deepest = region[index]
            for site in node.reads:
                producer = function.producer[site]
                if producer < 0 or site in lazy:
                    continue
                other = region[producer]
                if depth(other) > depth(deepest):
                    deepest = other
                if not inside(deepest, other):
                    raise LoadError(
                        "an op joins answers of different requests", where=function.where_of(node.proto)
                    )
            region[index] = deepest
        if region == before:
            return


def _place_sources(function: Function, lazy: set[int], region: list[int]) -> None:
    """Has what stems from sources run where it is read: in the one region that reads it, else in region 0."""
    readers: dict[int, set[int]] = {}
    for index in range(len(function.nodes) - 1, -1, -1):
        node = function.nodes[index]
        if node.writes and lazy.issuperset(node.writes):
            regions = {number for site in node.writes for number in readers.get(site, ())}
            region[index] = regions.pop() if len(regions) == 1 else 0
        for site in node.reads:
            readers.setdefault(site, set()).add(region[index])
