"""Compiles a function of the artifact to the records that the engine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.flows import frees_of, starts_of, thens_of
from bb_edge.engine.program.nodes import Function, Node, Opener, metadata, node_regions
from bb_edge.engine.program.program import EAGER_MASK, LAZY, OUTPUT_OP, GraphSlot, OpSpec, Region
from bb_edge.ir import keys, types
from bb_edge.ir.bodies import BODY_ATTRS
from bb_edge.ir.onnx_pb2 import FunctionProto, NodeProto
from bb_edge.ir.opsets import OpKind, Ready, normalize_domain
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto
from bb_edge.ir.types import ValueType


def build_graph(function: FunctionProto, is_entry: bool) -> GraphSlot:
    """Compiles one function; the outputs of an entry surface as app events.

    Raises LoadError where the function is not what the compiler emits: a value written twice or read before
    it is written, a Constant without a value, a RecvResp without its request.
    """
    read = Function(function)
    lazy, behind = read.lazy_sites()
    regions, openers = node_regions(read, lazy)
    builder = _Ops(read, lazy, behind, regions)
    if is_entry:
        builder.surface_outputs()
    ops = builder.with_pulls()
    tables = _regions(read, ops, lazy, openers, builder.first)
    values: list[object] = [None] * (len(read.producer) + 1)
    for site, value in read.constants.items():
        values[site] = value
    input_types, output_types, stacks = _types(read)
    inputs = {name: read.site_of[name] for name in function.input}
    forwarded = frozenset(site for region in tables[1:] for site in region.imports)
    outputs = {name: read.site_of[name] for name in function.output if name in read.site_of}
    return GraphSlot(
        name=function.name,
        domain=function.domain,
        sites=tuple(read.site_of),
        ops=ops,
        regions=tables,
        values=tuple(values),
        waiting=tuple(op.waits for op in ops),
        inputs=inputs,
        input_types=input_types,
        outputs=outputs,
        meta=metadata(function),
        is_entry=is_entry,
        forwarded=forwarded,
        stacks=stacks,
        output_types=output_types,
        starts=starts_of(ops, values, inputs),
        frees=frees_of(ops, tables, values, forwarded),
        thens=thens_of(ops, tables, forwarded.union(outputs.values())),
    )


@dataclass(eq=False)
class _Ops:
    """Makes the records of a function's ops, in the order of its nodes; `first` has each node's first one."""

    _function: Function
    _lazy: set[int]
    _behind: Mapping[int, tuple[int, ...]]
    _regions: Sequence[int]
    _read: set[int] = field(init=False)
    _constant_arrivals: dict[int, list[int]] = field(default_factory=dict)  # of any-style nodes
    _ops: list[OpSpec] = field(default_factory=list)
    first: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        function = self._function
        self._read = {site for node in function.nodes for site in node.reads}
        self._read.update(function.site_of.get(name, -1) for name in function.proto.output)
        for index, node in enumerate(function.nodes):
            self.first.append(len(self._ops))
            if node.definition is not None and any(p.ready is Ready.ANY for p in node.definition.inputs):
                self._add_arrivals(index, node)
            else:
                self._add_op(index, node)

    def _add(
        self, node: Node, inputs: tuple[int, ...], waits: int, pulls: tuple[int, ...], port: int = -1
    ) -> None:
        """One more record of the node that is added now."""
        index = len(self.first) - 1
        kind = node.definition.kind if node.definition is not None else OpKind.PLAIN
        if kind is OpKind.SOURCE and (node.data or node.controls):
            kind = OpKind.PLAIN  # `after=` makes a source a plain op
        self._ops.append(
            OpSpec(
                index=len(self._ops),
                origin=self.first[index],
                port=port,
                name=node.proto.name or f"{node.proto.op_type}_{index}",
                op_type=node.proto.op_type,
                domain=node.proto.domain,
                inputs=inputs,
                controls=node.controls if port < 0 else (),
                outputs=node.outputs,
                attrs=node.attrs,
                meta=node.meta,
                definition=node.definition,
                kind=kind,
                region=self._regions[index],
                waits=waits,
                pulls=pulls,
                proto=node.proto if normalize_domain(node.proto.domain) == keys.ONNX_DOMAIN else None,
            )
        )

    def _add_arrivals(self, index: int, node: Node) -> None:
        """One record per input of an op that fires on a single arrival."""
        constants = self._function.constants
        only_constants = all(site in constants for site in node.reads)
        is_unread = self._read.isdisjoint(node.writes)
        pulls: tuple[int, ...]
        for port, site in enumerate(node.data):
            if site < 0:
                continue
            waits, pulls = int(only_constants or site not in constants), ()
            if only_constants:  # pulled by its reader, else by what starts it
                self._constant_arrivals.setdefault(index, []).append(len(self._ops))
                if is_unread:
                    waits, pulls = LAZY, (index,)
            self._add(node, (site,), waits, pulls, port)

    def _add_op(self, index: int, node: Node) -> None:
        live = {site for site in node.reads if site not in self._function.constants}
        is_lazy = bool(node.writes) and self._lazy.issuperset(node.writes)
        pulls: tuple[int, ...] = ()
        if is_lazy and not self._read.isdisjoint(node.writes):
            waits = len(live) or 1  # a bare source waits for being pulled
        elif not live and (node.definition is None or node.definition.kind is not OpKind.ENTRY):
            # Nobody will pull it: it starts with the flows without an entry.
            waits, pulls = LAZY, (index,)
        else:
            sources = sorted(live & self._lazy)
            waits = len(live) - len(sources) + LAZY * len(sources)
            pulls = tuple(dict.fromkeys(n for site in sources for n in self._behind[site]))
        self._add(node, node.data, waits, pulls)

    def surface_outputs(self) -> None:
        """Has each declared output surface as an app event named after it, whether an op reads it or not.

        The record is one more reader of the value: it keeps it alive, and runs where and whenever it is
        computed.
        """
        for name in self._function.proto.output:
            site = self._function.site_of.get(name)
            if site is None:
                raise LoadError(f"output {name!r} is written by nothing", where=self._function.where)
            index, pulls = len(self._ops), self._behind.get(site, ())
            self._ops.append(
                OpSpec(
                    index=index,
                    origin=index,
                    name=f"output {name}",
                    op_type=OUTPUT_OP,
                    domain=keys.SYSCALL_DOMAIN,
                    inputs=(site,),
                    attrs={"name": name},
                    region=next((op.region for op in self._ops if site in op.outputs), 0),
                    waits=LAZY if pulls else 1,
                    pulls=pulls,
                )
            )

    def with_pulls(self) -> tuple[OpSpec, ...]:
        """The records, with the sources that they pull as indexes of records instead of nodes."""
        return tuple(
            replace(op, pulls=tuple(r for node in op.pulls for r in self._pulled(node))) if op.pulls else op
            for op in self._ops
        )

    def _pulled(self, node: int) -> Sequence[int]:
        return self._constant_arrivals.get(node, (self.first[node],))


def _regions(
    function: Function,
    ops: Sequence[OpSpec],
    lazy: set[int],
    openers: Sequence[Opener],
    first: Sequence[int],
) -> tuple[Region, ...]:
    """Who waits for which site, region by region; `first` has the first record of each node."""
    may_miss = _behind_when(ops)
    parents = [0, *(ops[first[opener.request]].region for opener in openers)]
    consumers: list[list[list[tuple[int, int]]]] = [[[] for _ in function.producer] for _ in parents]
    imports: list[set[int]] = [set() for _ in parents]
    region_of_site = {site: op.region for op in ops for site in op.outputs}
    for op in ops:
        is_lazy = not op.pulls and op.waits < LAZY
        for site in dict.fromkeys((*op.inputs, *op.controls)):
            if site < 0 or site in function.constants:
                continue
            weight = 1 if is_lazy or site not in lazy else LAZY
            consumers[op.region][site].append((op.index, weight))
            between = op.region
            # Every region between the writer and the reader passes the value on.
            while between and between != region_of_site.get(site, 0):
                imports[between].add(site)
                between = parents[between]
    return tuple(
        Region(
            index=number,
            parent=parent,
            entry=first[openers[number - 1].entry] if number else -1,
            request=first[openers[number - 1].request] if number else -1,
            consumers=tuple(map(tuple, consumers[number])),
            imports=tuple(sorted(imports[number])),
            joins=tuple(
                op.index
                for op in ops
                if op.region == number and op.waits & EAGER_MASK > 1 and op.index not in may_miss
            ),
        )
        for number, parent in enumerate(parents)
    )


def _behind_when(ops: Sequence[OpSpec]) -> set[int]:
    """The ops that depend on a `When`: one that does not fire starves nobody."""
    found: set[int] = set()
    sites: set[int] = set()
    for op in ops:
        if not sites.isdisjoint((*op.inputs, *op.controls)) or (
            op.op_type == "When" and op.domain == keys.SYSCALL_DOMAIN
        ):
            found.add(op.index)
            sites.update(site for site in op.outputs if site >= 0)
    return found


def _has_body(node: NodeProto) -> bool:
    return node.domain == keys.SYSCALL_DOMAIN and node.op_type in BODY_ATTRS


def _types(
    function: Function,
) -> tuple[dict[str, ValueType], dict[int, ValueType], dict[str, tuple[ValueType | None, ...]]]:
    """The types of the function's inputs, of results by site, and of requests' batches.

    Results are what components' ops, loops and branches write. None for a batch that the artifact says
    nothing about.
    """
    declared = {info.name: info.type for info in function.proto.value_info}
    known: dict[bytes, ValueType] = {}  # most values are of a few types

    def type_of(name: str, where: str) -> ValueType | None:
        if name not in declared:
            return None
        content = declared[name].SerializeToString()
        if content not in known:
            try:
                known[content] = from_type_proto(declared[name])
            except TypeProtoError as error:
                raise LoadError(error.what, where=where) from error
        return known[content]

    inputs, outputs, stacks = {}, {}, {}
    for name in function.proto.input:
        found = type_of(name, function.where)
        inputs[name] = ValueType(types.ANY) if found is None else found
    for node in function.nodes:
        for name in node.proto.output if keys.SLOT_KEY in node.meta or _has_body(node.proto) else ():
            if name and (found := type_of(name, function.where)) is not None:
                outputs[function.site_of[name]] = found
        batches = node.proto.output[2:]
        if node.proto.domain == keys.WIRE_DOMAIN and node.proto.op_type == OP_RECV_RESP_BATCHED and batches:
            where = function.where_of(node.proto)
            stacks[node.meta.get(keys.WIRE_REQUEST_KEY, "")] = tuple(type_of(n, where) for n in batches)
    return inputs, outputs, stacks
