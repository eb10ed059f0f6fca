"""Ports: the payloads that ops receive, as the compiler has written them into the ops' metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import ReplyPort
from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_SEND_RESP
from bb_edge.ir.stamped_parts import StampedPart, misfits, read_parts
from bb_edge.ir.stamped_shapes import StampedShape, fits, read_shapes, shape_text
from bb_edge.roles import Backend, Composite
from bb_edge.wire.codecs import WireReceiveError, WireReceiveErrorKind, tensor_dtype


@dataclass(frozen=True, slots=True)
class Port:
    """A payload of a Recv-flavored op: where an inbound fill goes. `index` counts the payloads of its op.

    `dtype` is that of the arrays where the site expects a tensor that the node itself reads.
    `shape` is what arrays must have, `parts` what a bundle must hold, as far as the compiler knows it.
    `behind` are the op's outputs behind the payloads: sender, request id (where the op `asks`), trigger.
    `reply` is the op that answers what it asks. `sender_class` is the class of its senders, where the program
    names it, of which one peer should ask where it is `sole`.
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
    sole: bool = False
    parts: tuple[StampedPart, ...] | None = None

    @property
    def name(self) -> str:
        """Which payload it is, by the author's name of the wire op."""
        port = self.op.spec.meta.get(keys.PORT_KEY, self.op.spec.name)
        return f"payload {self.index} of {port!r}"

    def held(self, value: object) -> object:
        """A value as it came, held to the shape or the parts. WireReceiveError for another one.

        An empty vector stands for nothing, whatever the shape; only answers that are stacked must have it.
        """
        shape = self.shape
        if shape is not None and isinstance(value, np.ndarray):
            if value.shape == shape or fits(value.shape, shape):
                return value
            if value.shape == (0,) and shape and self.op.spec.op_type != OP_RECV_RESP_BATCHED:
                return value
            came, wanted = shape_text(value.shape), shape_text(shape)
            raise WireReceiveError(
                WireReceiveErrorKind.ShapeMismatch, f"{came} for {self.name}, {wanted} is expected"
            )
        if self.parts is not None and isinstance(value, Composite):
            misfit = misfits(value, self.parts)
            if misfit is not None:
                what, of_type = misfit
                kind = WireReceiveErrorKind.TypeMismatch if of_type else WireReceiveErrorKind.ShapeMismatch
                raise WireReceiveError(kind, f"{what}, of the bundle that is {self.name}")
        return value


def ports_of(graph: BoundGraph, op: BoundOp, backend: Backend | None) -> list[tuple[int, Port]]:
    """(travelling site id, port) of each payload that a Recv-flavored op declares.

    ValueError where its metadata are not what a compiler writes.
    """
    meta = op.spec.meta
    sites = meta.get(keys.SITE_IDS_KEY, "")
    if not sites:
        return []
    hashes = meta.get(keys.WIRE_TYPES_KEY, "")
    expected = [int(h, 16) for h in hashes.split(",")] if hashes else []
    shapes = read_shapes(meta.get(keys.SHAPES_KEY, ""))
    parts = read_parts(meta.get(keys.PARTS_KEY, ""))
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
            meta.get(keys.SOLE_SENDER_KEY) == "1",
            parts[index] if index < len(parts) else None,
        )
        ports.append((int(text, 16), port))
    return ports


def _reply_to(graph: BoundGraph, op: BoundOp) -> ReplyPort | None:
    """The op that replies to what this one receives; None for what is not a request, or has no reply here."""
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
