"""The wire ops that run: Send, SendReqBatched, SendResp, RecvRespBatched.

The entries (Recv, RecvReq, RecvResp) do not: the receiving side of the node writes their outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.failures import HAS_NOTHING
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.waiting import PENDING
from bb_edge.ir import keys
from bb_edge.ir.address import site_suffix
from bb_edge.ir.stamped_shapes import fits, read_shapes, shape_text
from bb_edge.ir.tensors import MAX_RANK, tensor_pieces
from bb_edge.roles import TRIGGER, Composite, PeerSelector
from bb_edge.wire import envelope
from bb_edge.wire.bodies import SHARED_FROM
from bb_edge.wire.body_bytes import shared_body
from bb_edge.wire.codecs import encode_pieces, tensor_dtype
from bb_edge.wire.envelope import Fill


class _Port:
    """What a Send-flavored op knows when it is bound."""

    __slots__ = (
        *("deadline_ns", "dtypes", "durable", "group", "name", "shapes", "suffixes", "trigger_only", "types"),
        "wire_id",
    )

    def __init__(self, op: BoundOp, outgoing: Outgoing) -> None:
        meta = op.spec.meta
        sites = meta.get(keys.SITE_IDS_KEY, "")
        try:
            self.suffixes = tuple(site_suffix(int(s, 16)) for s in sites.split(",")) if sites else ()
            hashes = meta.get(keys.WIRE_TYPES_KEY, "")
            self.types = tuple(int(h, 16) for h in hashes.split(",")) if hashes else (0,) * len(self.suffixes)
            self.dtypes = tuple(map(tensor_dtype, self.types))
            self.deadline_ns = int(meta.get(keys.DEADLINE_NS_KEY, "0"))
            self.shapes = read_shapes(meta.get(keys.SHAPES_KEY, ""))
        except ValueError as error:
            raise OpError(f"a wire stamp is damaged: {error}", where=op.spec.name) from error
        if not self.suffixes:
            raise OpError(
                "the op has no site ids", where=op.spec.name, hint="compile the program with its wire passes"
            )
        sizes = meta.get(keys.WIRE_MAX_BYTES_KEY, "")
        for suffix, size in zip(self.suffixes, sizes.split(",") if sizes else (), strict=False):
            outgoing.plan(suffix, int(size))
        self.trigger_only = meta.get(keys.WIRE_TRANSPORT_KEY) == keys.WIRE_TRANSPORT_TRIGGER_ONLY
        self.name = meta.get(keys.PORT_KEY, op.spec.name)
        self.group = meta.get(keys.BATCH_GROUP_ID_KEY)
        self.durable = meta.get(keys.DURABLE_KEY) == "1"
        wire_id = meta.get(keys.WIRE_ID_KEY, "")
        self.wire_id = int(wire_id) if wire_id.isdigit() else 0

    def fills(self, payloads: tuple[object, ...]) -> tuple[list[Fill], bytes]:
        """Encodes the payloads, once for all peers: fills, and the body of large ones."""
        if self.trigger_only:
            return [Fill(suffix, b"", True, 0) for suffix in self.suffixes], b""
        if self.shapes:
            self._check(payloads)
        fills, encoded, size = [], [], 0
        named = zip(self.suffixes, self.types, self.dtypes, payloads, strict=True)
        for suffix, type_hash, dtype, value in named:
            if (
                dtype is not None  # NumPy takes None for float64, so that one would equal the other
                and type(value) is np.ndarray
                and value.dtype == dtype
                and value.ndim <= MAX_RANK
            ):
                pieces = tensor_pieces(value)
            else:
                type_hash, pieces = encode_pieces(value, type_hash or None)
            length, parts = pieces
            payload = b"".join(parts) if length < SHARED_FROM else b""  # else a view, once there is a body
            fills.append(Fill(suffix, payload, False, type_hash))
            encoded.append(pieces)
            size += length
        return fills, shared_body(fills, encoded) if size >= SHARED_FROM else b""

    def _check(self, payloads: tuple[object, ...]) -> None:
        """OpError for an array that the receivers do not take; an empty vector stands for nothing."""
        for index, (shape, value) in enumerate(zip(self.shapes, payloads, strict=False)):
            if shape is None or not isinstance(value, np.ndarray):
                continue
            if not fits(value.shape, shape) and not (value.shape == (0,) and shape):
                came, wanted = shape_text(value.shape), shape_text(shape)
                raise OpError(
                    f"payload {index} of {self.name!r} is {came}, its receiver takes {wanted}; not sent",
                    hint="give it data of that shape",
                )


def _remaining(ctx: OpContext, own_ns: int) -> int:
    """Returns the absolute deadline of what is sent: the op's own, bounded by the execution's; 0 for none."""
    inherited: int = ctx.execution.deadline_ns
    own = ctx.now_ns + own_ns if own_ns else 0
    return min(own, inherited) if own and inherited else own or inherited


def _refuse_absent(op: BoundOp, env: BindEnv, remedy: str) -> None:
    """OpError where the peers come from a selector that has those in view that are away."""
    chosen = {
        index: component
        for index, component in enumerate(env.scheduler.components)
        if isinstance(component, PeerSelector) and component.sees_absent
    }
    makers = {site: other for other in env.graph.ops for site in other.outs} if chosen else {}
    maker = makers.get(op.inputs[-1]) if op.inputs else None
    while maker is not None and maker.spec.domain == keys.GATE_DOMAIN:
        maker = makers.get(maker.inputs[0])
    if maker is None or maker.spec.domain != keys.ROLE_PEER_SELECTOR_DOMAIN:
        return
    slot = maker.spec.meta.get(keys.SLOT_KEY, "")
    if env.scheduler.components.slots.get((env.graph.target, slot)) in chosen:
        raise OpError(f"the peers of slot {slot!r} may be away, and {remedy}", where=op.spec.name, hint=_UP)


_UP = "choose among those that are up: without known=true in the slot's configuration"


def _send(op: BoundOp, env: BindEnv) -> Run:
    port = _Port(op, env.outgoing)
    outgoing = env.outgoing
    group = None if port.group is None else (env.graph.index, port.group)
    name = op.spec.meta.get(keys.PORT_KEY, op.spec.name)
    if not port.durable:
        _refuse_absent(op, env, "this send does not wait for them")

    def run(ctx: OpContext, *inputs: Any) -> object:
        *payloads, peers = inputs
        fills, body = port.fills(tuple(payloads))
        deadline = _remaining(ctx, port.deadline_ns)
        key = None if group is None else (*group, ctx.execution.id)
        ctx.execution.tells(bool(peers))
        if port.durable and not peers:
            env.runtime.count("outbound.to_nobody")
            env.runtime.emit(steps.SentToNobody(env.graph.target, name))
        for peer in dict.fromkeys(peers):
            unit = Unit(
                peer,
                fills,
                body=body,
                deadline_ns=deadline,
                durable=port.durable,
                group=key,
                wire_id=port.wire_id,
            )
            outgoing.add(unit, ctx.execution, op)
        return TRIGGER

    return run


def _send_req(op: BoundOp, env: BindEnv) -> Run:
    port = _Port(op, env.outgoing)
    _refuse_absent(op, env, "a request asks those that are up")
    requests = env.requests
    wire_id = op.spec.meta.get(keys.WIRE_ID_KEY)
    region: BoundRegion | None = next(
        (r for r in env.graph.regions[1:] if r.region.request == op.index), None
    )
    if wire_id is None:
        raise OpError(
            "the op has no wire id", where=op.spec.name, hint="compile the program with its wire passes"
        )

    def run(ctx: OpContext, *inputs: Any) -> object:
        *payloads, gated, asked = inputs
        fills, body = port.fills(tuple(payloads))
        return requests.ask(
            ctx.frame,
            op,
            fills,
            gated,
            asked,
            body=body,
            deadline_ns=port.deadline_ns,
            wire_id=port.wire_id,
            region=region,
        )

    return run


def _send_resp(op: BoundOp, env: BindEnv) -> Run:
    port = _Port(op, env.outgoing)
    outgoing = env.outgoing

    def run(ctx: OpContext, *inputs: Any) -> object:
        *payloads, sender, req_id = inputs
        if len(sender) != 1:
            raise OpError(f"a reply goes to one peer, not {len(sender)}", where=ctx.op.spec.name)
        execution = ctx.execution
        unheard = execution.requests_made and execution.heard_nobody and any(map(_is_empty, payloads))
        if unheard and env.runtime.callbacks.get(HAS_NOTHING)(execution, req_id, sender[0]):
            return TRIGGER
        fills, body = port.fills(tuple(payloads))  # first: where it fails, whoever asked is still to be told
        if not execution.replies(req_id):
            env.runtime.count("requests.replied_twice")
            return TRIGGER
        deadline = _remaining(ctx, port.deadline_ns)
        unit = Unit(
            sender[0],
            fills,
            body=body,
            kind=envelope.RESPONSE,
            wire_req_id=req_id,
            deadline_ns=deadline,
            durable=port.durable,
            wire_id=port.wire_id,
        )
        outgoing.add(unit, execution, op)
        return TRIGGER

    return run


def _is_empty(value: object) -> bool:
    """Whether a value, or one in it, is an array without elements."""
    if isinstance(value, Composite):
        return any(map(_is_empty, value.values))
    return isinstance(value, np.ndarray) and not value.size


def _collect(op: BoundOp, env: BindEnv) -> Run:
    requests = env.requests
    stacks = max(0, len(op.outs) - 2)

    def run(ctx: OpContext, req_id: object) -> object:
        return requests.firing.collect(ctx, req_id, stacks)

    return run


def _missing_reasons(op: BoundOp, env: BindEnv) -> Run:
    requests, wire_id = env.requests, op.spec.meta.get(keys.WIRE_REQUEST_KEY, "")

    def run(ctx: OpContext, missing: Any) -> object:
        return np.asarray(requests.firing.reasons(ctx.execution, wire_id, missing), np.int64).reshape(-1)

    return run


def _entry(op: BoundOp, env: BindEnv) -> Run:
    """Binds an entry, which never runs: whatever starts it writes its outputs."""
    return lambda ctx: PENDING


REQUEST_BINDERS: dict[str, Bind] = {"MissingReasons": _missing_reasons}
"""The syscalls that tell of requests."""

BINDERS: dict[str, Bind] = {
    "Send": _send,
    "SendReqBatched": _send_req,
    "SendResp": _send_resp,
    "RecvRespBatched": _collect,
    "Recv": _entry,
    "RecvReq": _entry,
    "RecvResp": _entry,
}
