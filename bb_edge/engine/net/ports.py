"""Ports: the payloads that ops receive, as the compiler has written them into the ops' metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import ReplyPort
from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_SEND_RESP
from bb_edge.ir.stamped_shapes import StampedShape, read_shapes
from bb_edge.roles import Backend
from bb_edge.wire.codecs import tensor_dtype


@dataclass(frozen=True, slots=True)
class Port:
    """A payload of a Recv-flavored op: where an inbound fill goes. `index` counts the payloads of its op.

    `dtype` is that of the arrays where the site expects a tensor that the node itself reads.
    `shape` is what arrays must have, as far as the compiler knows it.
    `behind` are the op's outputs behind the payloads: sender, request id (where the op `asks`), trigger.
    `reply` is the op that answers what it asks. `sender_class` is the class of its senders, where the program
    names it.
    """

    graph: BoundGraph
    op: BoundOp
    index: int
    count: int
    site: int
    expected: int
    trigger_only: bool
    backend: Backend | None
    behind: tuple[int, ...] = ()
    asks: bool = False
    reply: ReplyPort | None = None
    dtype: np.dtype[Any] | None = None
    shape: StampedShape | None = None
    sender_class: str = ""

    @property
    def name(self) -> str:
        """Which payload it is, by the author's name of the wire op."""
        port = self.op.spec.meta.get(keys.PORT_KEY, self.op.spec.name)
        return f"payload {self.index} of {port!r}"


def ports_of(graph: BoundGraph, op: BoundOp, backend: Backend | None) -> list[tuple[int, Port]]:
    """(travelling site id, port) of each payload that a Recv-flavored op declares.

    ValueError where its metadata are no numbers.
    """
    meta = op.spec.meta
    sites = meta.get(keys.SITE_IDS_KEY, "")
    if not sites:
        return []
    hashes = meta.get(keys.WIRE_TYPES_KEY, "")
    expected = [int(h, 16) for h in hashes.split(",")] if hashes else []
    shapes = read_shapes(meta.get(keys.SHAPES_KEY, ""))
    trigger = meta.get(keys.WIRE_TRANSPORT_KEY) == keys.WIRE_TRANSPORT_TRIGGER_ONLY
    ports = []
    texts = sites.split(",")
    for index, text in enumerate(texts):
        first = 2 if op.spec.op_type == OP_RECV_RESP_BATCHED else 0
        type_hash = expected[index] if index < len(expected) else 0
        port = Port(
            graph,
            op,
            index,
            len(texts),
            op.outs[first + index] if first + index < len(op.outs) else -1,
            type_hash,
            trigger,
            backend,
            op.outs[len(texts) :],
            op.spec.op_type == OP_RECV_REQ,
            _reply_to(graph, op),
            tensor_dtype(type_hash) if backend is None else None,
            shapes[index] if index < len(shapes) else None,
            meta.get(keys.SENDER_CLASS_KEY, ""),
        )
        ports.append((int(text, 16), port))
    return ports


def _reply_to(graph: BoundGraph, op: BoundOp) -> ReplyPort | None:
    """The op that replies to what this one receives; None for what is no request, or has no reply here."""
    wire_id = op.spec.meta.get(keys.WIRE_ID_KEY)
    if op.spec.op_type != OP_RECV_REQ or wire_id is None:
        return None
    for other in graph.ops:
        if other.spec.op_type == OP_SEND_RESP and other.spec.meta.get(keys.WIRE_REQUEST_KEY) == wire_id:
            text = other.spec.meta.get(keys.WIRE_ID_KEY, "")
            defers = not _comes_from(graph, other.spec.inputs[-1], op)
            return ReplyPort(other, int(text) if text.isdigit() else 0, defers)
    return None


def _comes_from(graph: BoundGraph, site: int, op: BoundOp) -> bool:
    """Whether nothing but gates of the wire stands between an op and a site, so that no other execution
    can have brought what is there.
    """
    while site not in op.outs:
        maker = next((other for other in graph.ops if site in other.outs), None)
        if maker is None or maker.spec.domain != keys.GATE_DOMAIN:
            return False
        site = maker.spec.inputs[maker.outs.index(site)]
    return True
