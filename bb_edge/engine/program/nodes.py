"""A function of the artifact as it is read: its nodes, with sites for the names of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.attributes import attribute_value, captured_names, constant_value, metadata
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import FunctionProto, NodeProto
from bb_edge.ir.opsets import OpDef, OpKind, lookup


class Node(NamedTuple):
    """A node that is no constant.

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


class Function:
    """A function that has been read.

    `producer` has per site the index of the node that writes it, -1 for inputs and constants. Raises
    LoadError where a value is written twice or read before it is written, or a constant has no value.
    """

    def __init__(self, proto: FunctionProto) -> None:
        self.proto = proto
        self.where = f"function {proto.name}"
        self.site_of: dict[str, int] = {}
        self.constants: dict[int, object] = {}
        self.producer: list[int] = []
        self.nodes: list[Node] = []
        for name in proto.input:
            self._new_site(name, -1)
        for node in proto.node:
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
