"""Stamps wire ops with what they carry, where it arrives, and which sends share an envelope.

1. A wire op is `trigger_only` where every payload is a trigger, or is read on the other side by trigger ports
   and for order alone; else `data`. Both halves say the same. What arrives without data is a trigger there.
2. Both halves carry the wire hash of each payload's type (0 where the type is abstract: any) and the largest
   size that its shape allows (0 where it is unknown). Concrete types without a hash do not travel, neither
   alone nor in a bundle: `NotWireEligible`.
3. The receiving half carries the shapes of tensors as far as they are numbers, and what bundles hold, so that
   the device refuses others; a bundle of which all is known has a largest size. A size that the compiler does
   not know, or knows by a symbol alone, is open. Answers that are read as a batch and whose shape is open are
   warned about (`layout-unknown`). Where receivers take a narrower shape than their sender knows (a model's
   input, where the data come from a file), the sending half carries it: what does not fit is the sender's
   failure, before anything is sent.
4. Sends of one partition to the same list of peers have one `batch_group_id`; requests and replies have one
   each.
5. A Send-flavored op says under which name each payload arrives (`dest_site_name.<input>`).
6. An open port is stamped by itself. Needs partitions; changes no op but wire ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets.wire import OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_SEND
from bb_edge.ir.stamped_parts import StampedPart, write_parts
from bb_edge.ir.stamped_shapes import shape_text, write_shapes
from bb_edge.ir.types import ValueType
from bb_host.errors import NotWireEligible, named, source
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import captured, has_subgraph, is_after
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bundles import Bundles
from bb_host.passes.analysis.wire_edges import WireEdge, wire_edges
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

TENSOR_OVERHEAD = 1024
"""Bytes beyond the data that a serialized tensor may take: shape, and layout and hash of parameters."""

PART_OVERHEAD = 16
"""Bytes that a bundle takes, and each of its parts beyond its payload: heads, and the hash of a type."""

Layout = tuple[StampedPart, ...]

_SMALL = {
    types.PEER_ID: 128,
    types.WIRE_REQ_ID: 16,
    types.MULTIADDRESS: 256,
    types.TRIGGER: 0,
    **dict.fromkeys(
        (types.SCALAR_F32, types.SCALAR_F64, types.SCALAR_F16, types.SCALAR_U8, types.SCALAR_I32), 16
    ),
}
_ITEM_BYTES = {
    elem: dtype.itemsize for elem in range(1, 17) if (dtype := types.dtype_of_elem(elem)) is not None
}
Shape = tuple[int | str | None, ...] | None


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("wire_edges_data", 0)
    stats.count("wire_edges_trigger_only", 0)
    mains = [f for f in program.functions if flow.is_main(f) and flow.has_wire(f)]
    if not mains:
        return program
    analysis = _Analysis(mains, wire_edges(program), stats, Bundles(program))
    analysis.run()
    rewritten = {f.key: analysis.rewritten(f) for f in mains}
    return program.with_functions(rewritten.get(f.key, f) for f in program.functions)


class _Analysis:
    def __init__(
        self, mains: Sequence[Function], edges: Sequence[WireEdge], stats: Stats, bundles: Bundles
    ) -> None:
        self.bundles = bundles
        self.mains = mains
        self.by_name = {f.name: f for f in mains}
        self.edges = edges
        self.stats = stats
        self.readers: dict[str, dict[str, list[int]]] = {}
        self.stamps: dict[int, OpFacts] = {}  # id of an op → what to stamp
        self.arrives: dict[str, dict[str, ValueType]] = {f.name: {} for f in mains}
        self.came_as: dict[tuple[str, str], tuple[Function, str]] = {}
        self.taken: dict[int, list[list[Shape]]] = {}  # id of a sending op → what each receiver takes

    def run(self) -> None:
        paired: set[int] = set()
        for edge in self.edges:
            sender = self.by_name[edge.sender_target]
            for sent, arrived in zip(
                flow.payload_inputs(edge.send), _payload_outputs(edge.recv), strict=False
            ):
                self.came_as[edge.receiver_target, arrived] = sender, sent
        for edge in self.edges:
            sender, receiver = self.by_name[edge.sender_target], self.by_name[edge.receiver_target]
            self._edge(edge, sender, receiver)
            paired.update((id(edge.send), id(edge.recv)))
        for edge in self.edges:
            self._narrower(edge, self.by_name[edge.sender_target])
        groups: dict[tuple[str, str], int] = {}
        for function in self.mains:
            for op in flow.wire_ops(function):
                if id(op) not in paired:
                    self._open_port(op, function)
                if flow.is_send_flavored(op):
                    self._group(op, function, groups)

    # --- rule 1 and 2

    def _edge(self, edge: WireEdge, sender: Function, receiver: Function) -> None:
        payloads = flow.payload_inputs(edge.send)
        arrive = _payload_outputs(edge.recv)
        kinds = [sender.types.get(n) or ValueType(types.ANY) for n in payloads]
        self._bundled(edge.send, sender, payloads, kinds)
        trigger = all(
            self._as_trigger(name, kind, edge.recv, receiver)
            for name, kind in zip(arrive, kinds, strict=True)
        )
        if trigger:
            found = {n: ValueType(types.TRIGGER) for n in arrive if n}
            self.arrives[receiver.name].update(found)
        self.stats.count("wire_edges_trigger_only" if trigger else "wire_edges_data")
        layouts = self._layouts(sender, payloads, kinds)
        common = _stamp(edge.send, payloads, kinds, trigger, layouts)
        known = NO_FACTS if trigger else _shapes(kinds) | _parts(layouts)
        self._put(edge.recv, common | known)
        if edge.recv.op_type == OP_RECV_RESP_BATCHED:
            self._stacked(edge.recv, kinds)
        arrives: dict[str, str] = {}
        for name, site in zip(payloads, arrive, strict=True):
            if site:
                arrives.setdefault(name, site)
        if not trigger and edge.recv.op_type != OP_RECV_RESP_BATCHED:
            at_receiver = [receiver.types.get(n) for n in arrive]
            self.taken.setdefault(id(edge.send), []).append(
                [None if t is None else t.shape for t in at_receiver]
            )
        sent = common | OpFacts(arrives_as=arrives) if arrives else common
        if edge.send.facts.durable and not trigger:
            # What waits for a receiver may be adopted by another program, which sends it if it fits.
            sent |= _shapes(kinds)
        self._put(edge.send, sent)

    def _narrower(self, edge: WireEdge, sender: Function) -> None:
        """Rule 3 for the sending half: sizes that its receivers agree on, where it knows none."""
        known = [sender.types.get(n) for n in flow.payload_inputs(edge.send)]
        own = [None if t is None else t.shape for t in known]
        everywhere = self.taken.get(id(edge.send), [])
        shapes = [_agreed(shape, [taken[i] for taken in everywhere]) for i, shape in enumerate(own)]
        if shapes != own:
            self._put(edge.send, OpFacts(shapes=write_shapes(shapes)))

    def _layouts(
        self, sender: Function, names: Sequence[str], kinds: Sequence[ValueType]
    ) -> list[Layout | None]:
        """What bundles among the payloads hold; None for others, and where nothing is known."""
        return [
            self.bundles.layout(sender, name, self.came_as) if kind.node is types.COMPOSITE else None
            for name, kind in zip(names, kinds, strict=True)
        ]

    def _stacked(self, recv: Op, kinds: Sequence[ValueType]) -> None:
        """Rule 3 for answers that are read as a batch: those of several shapes make none."""
        for name, (_, shape) in zip(_payload_outputs(recv), kinds, strict=False):
            if name and not (shape is not None and all(isinstance(size, int) for size in shape)):
                known = f"only {shape_text(shape)}" if shape else "nothing"
                self.stats.warn(
                    "layout-unknown",
                    f"{known} is known of the answers' shape: where two differ, the round has no batch",
                    source(recv),
                    "reshape what is replied, or read r.answer, once per answer",
                )

    def _bundled(
        self, send: Op, function: Function, names: Sequence[str], kinds: Sequence[ValueType]
    ) -> None:
        """Rule 2 for what bundles hold."""
        for name, kind in zip(names, kinds, strict=True):
            if kind.node is not types.COMPOSITE:
                continue
            for part, bundle in self.bundles.parts(function, name):
                if not part.abstract and part.wire_hash is None:
                    raise NotWireEligible(
                        f"the bundle {name!r} holds a {part} ({named(bundle)}), which does not travel",
                        hint="leave it out of what is sent; g.app_emit may have it",
                        op=send,
                    )

    def _as_trigger(self, name: str, kind: ValueType, recv: Op, function: Function) -> bool:
        if kind.node is types.TRIGGER:
            return True
        if not name or recv.op_type == OP_RECV_RESP_BATCHED or name in function.outputs:
            return False
        if function.name not in self.readers:
            arriving = {n for op in flow.wire_ops(function) for n in op.outputs if n}
            self.readers[function.name] = flow.readers(function.ops, arriving)
        reading = self.readers[function.name].get(name, [])
        return bool(reading) and all(_reads_trigger(function.ops[i], name) for i in reading)

    def _open_port(self, op: Op, function: Function) -> None:
        """One half alone: the types are those of its own side."""
        if op.op_type == OP_RECV_RESP_BATCHED and not op.facts.sites:
            self._put(op, OpFacts(transport=keys.WIRE_TRANSPORT_DATA))
            return
        names = flow.payload_inputs(op) if flow.is_send_flavored(op) else _payload_outputs(op)
        kinds = [function.types.get(n) or ValueType(types.ANY) for n in names]
        if flow.is_send_flavored(op):
            self._bundled(op, function, names, kinds)
        if op.op_type == OP_RECV_RESP_BATCHED:
            kinds = [ValueType(k.node, None if k.shape is None else k.shape[1:]) for k in kinds]
        shapes = NO_FACTS if flow.is_send_flavored(op) else _shapes(kinds)
        self._put(op, _stamp(op, names, kinds, all(k.node is types.TRIGGER for k in kinds)) | shapes)

    def _put(self, op: Op, stamp: OpFacts) -> None:
        self.stamps[id(op)] = self.stamps.get(id(op), NO_FACTS) | stamp

    # --- rule 4

    def _group(self, op: Op, function: Function, groups: dict[tuple[str, str], int]) -> None:
        key = (
            function.name,
            flow.peers_input(op) if op.op_type == OP_SEND else f"{op.op_type} {flow.wire_id(op)}",
        )
        self._put(op, OpFacts(batch_group=groups.setdefault(key, len(groups) + 1)))

    # --- writing

    def rewritten(self, function: Function) -> Function:
        changed: dict[int, Op] = {}
        for index in flow.summary(function.ops).wire:
            op = function.ops[index]
            new = op.saying(self.stamps.get(id(op), NO_FACTS))
            if new is not op:
                changed[index] = new
        arrives = {n: t for n, t in self.arrives[function.name].items() if function.types.get(n) != t}
        stamped = flow.restamped(function, changed)
        return stamped.with_ops(stamped.ops, {**function.types, **arrives}) if arrives else stamped


def _payload_outputs(op: Op) -> tuple[str, ...]:
    """What arrives at a Recv-flavored op."""
    if op.op_type == OP_RECV_RESP_BATCHED:
        return op.outputs[2:]
    tail = 2 if op.op_type == OP_RECV_REQ else 1
    return op.outputs[: len(op.outputs) - tail - (op.facts.trigger_output)]


def _reads_trigger(op: Op, name: str) -> bool:
    """Whether an op only wants to know that a value is there."""
    data = flow.data_inputs(op)
    if name not in data:
        return not has_subgraph(op) or name not in captured(op)
    if op.domain not in flow.LEAF_DOMAINS or op.domain == keys.WIRE_DOMAIN:
        return False
    row = opsets.lookup(op.domain, op.op_type)
    if row is None:
        return False
    gate = is_after(op)
    for index, read in enumerate(data):
        if read == name and not (gate and index > 0):
            port = row.inputs[min(index, len(row.inputs) - 1)]
            if port.type != types.TRIGGER.id:
                return False
    return True


def _stamp(
    op: Op,
    names: Sequence[str],
    kinds: Sequence[ValueType],
    trigger: bool,
    layouts: Sequence[Layout | None] = (),
) -> OpFacts:
    """Transport, hashes and sizes of the payloads."""
    transport = keys.WIRE_TRANSPORT_TRIGGER_ONLY if trigger else keys.WIRE_TRANSPORT_DATA
    if trigger:
        kinds = [ValueType(types.TRIGGER)] * len(kinds)
    hashes = [_hash(op, name, kind) for name, kind in zip(names, kinds, strict=True)]
    sizes = [
        _largest(kind) if layout is None or trigger else _largest_bundle(layout) or 0
        for kind, layout in zip_longest(kinds, layouts)
    ]
    return OpFacts(transport=transport, type_hashes=tuple(hashes), max_bytes=tuple(sizes))


def _shapes(kinds: Sequence[ValueType]) -> OpFacts:
    """Rule 3: nothing where nothing is known."""
    stamp = write_shapes([kind.shape for kind in kinds])
    return OpFacts(shapes=stamp) if stamp else NO_FACTS


def _parts(layouts: Sequence[Layout | None]) -> OpFacts:
    """Rule 3 for bundles: nothing where nothing is known."""
    stamp = write_parts(layouts)
    return OpFacts(parts=stamp) if stamp else NO_FACTS


def _agreed(own: Shape, taken: Sequence[Shape]) -> Shape:
    """A sender's shape, with the sizes that all its receivers take where it knows none."""
    if own is None:
        own = (None,) * len(taken[0]) if taken and taken[0] is not None else None
    if own is None or any(shape is None or len(shape) != len(own) for shape in taken):
        return own
    found: list[int | str | None] = []
    for axis, size in enumerate(own):
        sizes = {shape[axis] for shape in taken if shape is not None}
        alike = next(iter(sizes)) if len(sizes) == 1 else None
        found.append(alike if not isinstance(size, int) and isinstance(alike, int) else size)
    return tuple(found)


def _hash(op: Op, name: str, kind: ValueType) -> int:
    if kind.node.abstract:
        return 0
    if kind.node.wire_hash is None:
        raise NotWireEligible(
            f"{name!r} is {kind.node}, which does not travel",
            hint="send a tensor, a trigger or a peer instead",
            op=op,
        )
    return kind.node.wire_hash


def _largest(kind: ValueType) -> int:
    """The most bytes that a value of a type takes on the wire; 0 where its shape leaves it open."""
    size = _ITEM_BYTES.get(kind.node.elem_type or 0)
    if size is None:
        return _SMALL.get(kind.node, 0)
    if kind.shape is None:
        return 0
    for dim in kind.shape:
        if not isinstance(dim, int):
            return 0
        size *= dim
    return size + TENSOR_OVERHEAD


def _largest_bundle(layout: Layout) -> int | None:
    """The most bytes that a bundle takes on the wire; None where a part of it leaves that open."""
    size = PART_OVERHEAD
    for type_hash, shape, inner in layout:
        node = types.by_wire_hash(type_hash)
        if node is types.COMPOSITE:
            part = None if inner is None else _largest_bundle(inner)
        elif node is None:
            part = None
        else:
            known = None if shape is None else tuple(n if n >= 0 else None for n in shape)
            part = _largest(ValueType(node, known)) or (0 if node is types.TRIGGER else None)
        if part is None:
            return None
        size += part + PART_OVERHEAD
    return size
