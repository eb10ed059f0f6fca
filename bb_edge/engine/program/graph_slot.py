"""One function of the artifact, compiled to integers (graph_slot.txt, docs/design/engine.md).

Value names become site numbers, nodes become `OpSpec` records, and per site stands who waits for it. The
result
is immutable and shared by every node that is installed from it.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bb_edge.engine.program.node_values import (
    LoadError,
    attribute_value,
    captured_names,
    constant_value,
    metadata,
)
from bb_edge.ir import keys, types
from bb_edge.ir.onnx_pb2 import FunctionProto, NodeProto
from bb_edge.ir.opsets import OpDef, OpKind, Ready, lookup, normalize_domain
from bb_edge.ir.opsets.wire import OP_RECV_RESP, OP_RECV_RESP_BATCHED, OP_SEND_REQ
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto
from bb_edge.ir.types import ValueType

LAZY = 1 << 16
"""Weight of a source-fed site in an op's counter."""

EAGER_MASK = LAZY - 1

OUTPUT_OP = "__output__"
"""op_type of the record that surfaces a declared output of a main as an AppEvent."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op of a graph.

    `inputs` are data sites in the node's order, -1 where an optional one is absent; `controls` are sites that
    only order; `outputs` are sites, -1 where nobody named one. `port` is the input port that a record of an
    Any-style op stands for, -1 for all others.
    """

    index: int
    origin: int
    port: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[int, ...]
    controls: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, object]
    meta: Mapping[str, str]
    definition: OpDef | None
    kind: OpKind
    region: int
    waits: int
    pulls: tuple[int, ...]
    proto: NodeProto | None = None  # kept for ONNX operators, which a backend prepares


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

    `stacks` holds, by the wire id of a request, the declared types of its answers' batches.
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
    # Of the sites that components' ops write, where the artifact says it: a stripped one does not.
    output_types: Mapping[int, ValueType] = field(default_factory=dict)

    @property
    def absent(self) -> int:
        """The extra last entry of a frame's values, which is never written."""
        return len(self.sites)


class _Builder:
    """Walks one function; its fields are the tables under construction."""

    def __init__(self, function: FunctionProto, is_entry: bool) -> None:
        self.function = function
        self.is_entry = is_entry
        self.where = f"function {function.name}"
        self.site_of: dict[str, int] = {}
        self.constants: dict[int, object] = {}
        self.producer: list[int] = []  # per site: node index, -1 for a function input
        self.nodes: list[tuple[NodeProto, dict[str, object], dict[str, str], OpDef | None]] = []

    def site(self, name: str, producer: int) -> int:
        if name in self.site_of:
            raise LoadError(f"value {name!r} is written twice", where=self.where)
        self.site_of[name] = index = len(self.producer)
        self.producer.append(producer)
        return index

    def read(self) -> None:
        for name in self.function.input:
            self.site(name, -1)
        for node in self.function.node:
            attrs = {a.name: attribute_value(a) for a in node.attribute}
            meta = metadata(node)
            definition = lookup(node.domain, node.op_type)
            for name in (*node.input, *captured_names(node)):
                if name and name not in self.site_of:
                    raise LoadError(
                        f"{node.op_type} reads {name!r}, which nothing before it writes",
                        where=self._where(node),
                    )
            if definition is not None and definition.relation == "constant":
                if len(node.output) != 1:
                    raise LoadError("a Constant has one output", where=self._where(node))
                self.constants[self.site(node.output[0], -1)] = constant_value(attrs, self._where(node))
                continue
            index = len(self.nodes)
            for name in node.output:
                if name:
                    self.site(name, index)
            self.nodes.append((node, attrs, meta, definition))

    def _where(self, node: NodeProto) -> str:
        return f"{self.where}, node {node.name or node.op_type}"

    # --- what stems from sources alone ----------------------------------------------------------------

    def lazy_sites(self) -> tuple[set[int], dict[int, tuple[int, ...]]]:
        """Sites that stem from source ops and constants alone, and for each the source nodes behind it."""
        lazy: set[int] = set()
        behind: dict[int, tuple[int, ...]] = {}
        for index, (node, _, _, definition) in enumerate(self.nodes):
            ins = [self.site_of[name] for name in (*node.input, *captured_names(node)) if name]
            live = [s for s in ins if s not in self.constants]
            outs = [self.site_of[name] for name in node.output if name]
            if not live:
                if definition is not None and definition.kind is OpKind.ENTRY:
                    continue
                sources: tuple[int, ...] = (index,)
            elif all(s in lazy for s in live):
                sources = tuple(dict.fromkeys(n for s in live for n in behind[s]))
            else:
                continue
            lazy.update(outs)
            behind.update(dict.fromkeys(outs, sources))
        return lazy, behind

    # --- regions --------------------------------------------------------------------------------------

    def node_regions(self, lazy: set[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Region per node, and per region beyond 0 its (RecvResp node, SendReqBatched node)."""
        requests = {
            meta.get(keys.WIRE_ID_KEY, ""): i
            for i, (n, _, meta, _) in enumerate(self.nodes)
            if n.domain == keys.WIRE_DOMAIN and n.op_type == OP_SEND_REQ
        }
        openers: list[tuple[int, int]] = []
        region_of_opener: dict[int, int] = {}
        for i, (n, _, meta, _) in enumerate(self.nodes):
            if n.domain == keys.WIRE_DOMAIN and n.op_type == OP_RECV_RESP:
                request = requests.get(meta.get(keys.WIRE_REQUEST_KEY, "?"))
                if request is None:
                    raise LoadError("RecvResp without its request", where=self._where(n))
                openers.append((i, request))
                region_of_opener[i] = len(openers)
        region = [region_of_opener.get(i, 0) for i in range(len(self.nodes))]
        if not openers:
            return region, openers

        def depth(r: int) -> int:
            d = 0
            while r:
                d += 1
                if d > len(openers):
                    raise LoadError("requests nest in a cycle", where=self.where)
                r = region[openers[r - 1][1]]
            return d

        def inside(inner: int, outer: int) -> bool:
            while inner and inner != outer:
                inner = region[openers[inner - 1][1]]
            return inner == outer

        for _ in range(len(openers) + 1):
            changed = False
            for i, (n, _, _, _) in enumerate(self.nodes):
                deepest = region[i]
                for name in (*n.input, *captured_names(n)):
                    producer = self.producer[self.site_of[name]] if name else -1
                    if producer >= 0 and self.site_of[name] not in lazy:
                        r = region[producer]
                        if depth(r) > depth(deepest):
                            deepest = r
                        if not inside(deepest, r):
                            raise LoadError("an op joins answers of different requests", where=self._where(n))
                changed |= deepest != region[i]
                region[i] = deepest
            if not changed:
                break
        # What stems from sources runs where it is read: in the one region that reads it, else in the
        # outermost.
        readers: dict[int, set[int]] = {}
        for i in range(len(self.nodes) - 1, -1, -1):
            outs = [self.site_of[name] for name in self.nodes[i][0].output if name]
            if outs and all(s in lazy for s in outs):
                found = {r for s in outs for r in readers.get(s, set())}
                region[i] = found.pop() if len(found) == 1 else 0
            for name in (*self.nodes[i][0].input, *captured_names(self.nodes[i][0])):
                if name:
                    readers.setdefault(self.site_of[name], set()).add(region[i])
        return region, openers

    # --- assembly -------------------------------------------------------------------------------------

    def build(self) -> GraphSlot:
        self.read()
        lazy, behind = self.lazy_sites()
        regions, openers = self.node_regions(lazy)
        ops: list[OpSpec] = []
        read = {name for n, _, _, _ in self.nodes for name in (*n.input, *captured_names(n))}
        read.update(self.function.output)
        first_op_of_node: dict[int, int] = {}
        constant_arrivals: dict[int, list[int]] = {}  # per any-style node: its records of constants
        pulls: tuple[int, ...]
        for index, (node, attrs, meta, definition) in enumerate(self.nodes):
            sites = [self.site_of[name] if name else -1 for name in node.input]
            n_control = int(meta.get(keys.CONTROL_INPUTS_KEY, "0"))
            if n_control > len(sites):
                raise LoadError("more control inputs than inputs", where=self._where(node))
            data, controls = sites[: len(sites) - n_control], sites[len(sites) - n_control :]
            captured = [self.site_of[name] for name in captured_names(node)]
            data, sites = data + captured, sites + captured
            is_onnx = normalize_domain(node.domain) == keys.ONNX_DOMAIN
            outputs = tuple(self.site_of[name] if name else -1 for name in node.output)
            any_style = definition is not None and any(p.ready is Ready.ANY for p in definition.inputs)
            first_op_of_node[index] = len(ops)
            kind = definition.kind if definition is not None else OpKind.PLAIN
            if kind is OpKind.SOURCE and sites:
                kind = OpKind.PLAIN  # `after=` makes a source a plain op
            base = (node.name or f"{node.op_type}_{index}", node.op_type, node.domain)
            live = {s for s in sites if s >= 0 and s not in self.constants}
            if any_style:
                unread = read.isdisjoint(node.output)
                for port, site in enumerate(data):
                    if site >= 0:
                        waits, pulls = 1, ()
                        if not live:  # constants alone: pulled by who reads it, else by what starts it
                            constant_arrivals.setdefault(index, []).append(len(ops))
                            waits, pulls = (LAZY, (index,)) if unread else (1, ())
                        elif site in self.constants:
                            waits = 0
                        ops.append(
                            OpSpec(
                                len(ops),
                                first_op_of_node[index],
                                port,
                                *base,
                                (site,),
                                (),
                                outputs,
                                attrs,
                                meta,
                                definition,
                                kind,
                                regions[index],
                                waits,
                                pulls,
                            )
                        )
                continue
            own_lazy = (
                bool(outputs) and all(s in lazy for s in outputs if s >= 0) and any(s >= 0 for s in outputs)
            )
            pulls = ()
            if own_lazy and not read.isdisjoint(node.output):
                waits = len(live) or 1  # a bare source waits for being pulled
            elif not live and kind is not OpKind.ENTRY:
                # Nobody will pull it: it starts with the flows without an entry.
                waits, pulls = LAZY, (index,)
            else:
                lazies = {s for s in live if s in lazy}
                waits = (len(live) - len(lazies)) + LAZY * len(lazies)
                pulls = tuple(dict.fromkeys(n for s in sorted(lazies) for n in behind[s]))
            ops.append(
                OpSpec(
                    len(ops),
                    len(ops),
                    -1,
                    *base,
                    tuple(data),
                    tuple(controls),
                    outputs,
                    attrs,
                    meta,
                    definition,
                    kind,
                    regions[index],
                    waits,
                    pulls,
                    node if is_onnx else None,
                )
            )
        if self.is_entry:
            self._surface_outputs(ops, behind)
        ops = [
            replace(
                op,
                pulls=tuple(r for n in op.pulls for r in constant_arrivals.get(n, (first_op_of_node[n],))),
            )
            if op.pulls
            else op
            for op in ops
        ]
        return self._slot(ops, lazy, openers, first_op_of_node)

    def _surface_outputs(self, ops: list[OpSpec], behind: Mapping[int, tuple[int, ...]]) -> None:
        """Each declared output surfaces as an AppEvent named after it, whether or not an op reads it too.

        The record is one more reader of the value: it keeps it alive, and runs where and whenever it is
        computed.
        """
        for name in self.function.output:
            site = self.site_of.get(name)
            if site is None:
                raise LoadError(f"output {name!r} is written by nothing", where=self.where)
            index = len(ops)
            region = next((op.region for op in ops if site in op.outputs), 0)
            pulls = behind.get(site, ())
            waits = LAZY if pulls else 1
            ops.append(
                OpSpec(
                    index, index, -1, f"output {name}", OUTPUT_OP, keys.SYSCALL_DOMAIN, (site,), (), (),
                    {"name": name}, {}, None, OpKind.PLAIN, region, waits, pulls,
                )
            )  # fmt: skip

    def _types(self) -> tuple[dict[str, ValueType], dict[int, ValueType]]:
        """The types of the function's inputs, and those of what components' ops write, by site."""
        declared = {info.name: info.type for info in self.function.value_info}
        read: dict[bytes, ValueType] = {}  # most values are of a few types

        def type_of(name: str) -> ValueType:
            content = declared[name].SerializeToString()
            found = read.get(content)
            if found is None:
                found = read[content] = from_type_proto(declared[name])
            return found

        try:
            inputs = {
                name: type_of(name) if name in declared else ValueType(types.ANY)
                for name in self.function.input
            }
            outputs = {
                self.site_of[name]: type_of(name)
                for node, _, meta, _ in self.nodes
                if keys.SLOT_KEY in meta
                for name in node.output
                if name in declared
            }
        except TypeProtoError as error:
            raise LoadError(error.what, where=self.where) from error
        return inputs, outputs

    def _stacks(self) -> dict[str, tuple[ValueType | None, ...]]:
        """The declared types of batches; None for one that the artifact says nothing about."""
        found: dict[str, tuple[ValueType | None, ...]] = {}
        for node, _, meta, _ in self.nodes:
            if node.domain == keys.WIRE_DOMAIN and node.op_type == OP_RECV_RESP_BATCHED and node.output[2:]:
                declared = {info.name: info.type for info in self.function.value_info}
                try:
                    found[meta.get(keys.WIRE_REQUEST_KEY, "")] = tuple(
                        from_type_proto(declared[name]) if name in declared else None
                        for name in node.output[2:]
                    )
                except TypeProtoError as error:
                    raise LoadError(error.what, where=self._where(node)) from error
        return found

    def _slot(
        self,
        ops: Sequence[OpSpec],
        lazy: set[int],
        openers: Sequence[tuple[int, int]],
        first_op_of_node: Mapping[int, int],
    ) -> GraphSlot:
        n = len(self.producer)
        parents = [0] + [ops[first_op_of_node[request]].region for _, request in openers]
        tables: list[list[list[tuple[int, int]]]] = [[[] for _ in range(n)] for _ in parents]
        region_of_site = [0] * n
        for op in ops:
            for s in op.outputs:
                if s >= 0:
                    region_of_site[s] = op.region
        imports: list[set[int]] = [set() for _ in parents]
        for op in ops:
            own_lazy = not op.pulls and op.waits < LAZY
            for s in dict.fromkeys((*op.inputs, *op.controls)):
                if s < 0 or s in self.constants:
                    continue
                weight = 1 if own_lazy or s not in lazy else LAZY
                tables[op.region][s].append((op.index, weight))
                r = op.region
                while (
                    r != region_of_site[s] and r
                ):  # every region between the writer and the reader passes it on
                    imports[r].add(s)
                    r = parents[r]
        waiting = tuple(op.waits for op in ops)
        regions = tuple(
            Region(
                r,
                parents[r],
                -1 if r == 0 else first_op_of_node[openers[r - 1][0]],
                -1 if r == 0 else first_op_of_node[openers[r - 1][1]],
                tuple(tuple(entry) for entry in tables[r]),
                tuple(sorted(imports[r])),
                tuple(op.index for op in ops if op.region == r and op.waits & EAGER_MASK > 1),
            )
            for r in range(len(parents))
        )
        values: list[object] = [None] * (n + 1)
        for s, value in self.constants.items():
            values[s] = value
        input_types, output_types = self._types()
        names = [""] * n
        for name, s in self.site_of.items():
            names[s] = name
        return GraphSlot(
            self.function.name,
            self.function.domain,
            tuple(names),
            tuple(ops),
            regions,
            tuple(values),
            waiting,
            {name: self.site_of[name] for name in self.function.input},
            input_types,
            {name: self.site_of[name] for name in self.function.output if name in self.site_of},
            metadata(self.function),
            self.is_entry,
            frozenset(s for r in regions[1:] for s in r.imports),
            self._stacks(),
            output_types,
        )


def build_graph(function: FunctionProto, is_entry: bool) -> GraphSlot:
    """Compiles one function.

    Raises LoadError where the function is not what the compiler emits: a value written twice or read before
    it
    is written, a Constant without a value, a RecvResp without its request.
    """
    return _Builder(function, is_entry).build()
