"""The shape of wire ops: the one contract between recorder, passes and runtime (wire_shape.txt, semantics §6).

| op               | inputs                               | outputs                          |
|------------------|--------------------------------------|----------------------------------|
| Send             | payload…, peers                      | handle                           |
| Recv             |                                      | payload…, sender, (trigger)      |
| SendReqBatched   | payload…, gated peers, asked peers   | req_id                           |
| RecvReq          |                                      | payload…, sender, req_id, (trigger) |
| SendResp         | payload…, sender, req_id             | handle                           |
| RecvRespBatched  | req_id                               | closed, missing, responses…      |
| RecvResp         |                                      | payload…, sender, (trigger)      |

Peer bytes stand in `attribute.s`: the canonical multihash, never a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.ir.keys import (
    ATTR_DEADLINE_NS,
    ATTR_PEER,
    DEST_SITE_NAME_PREFIX,
    DEST_SUFFIX_ATTR_PREFIX,
    WIRE_DOMAIN,
    WIRE_ID_KEY,
    WIRE_TRANSPORT_DATA,
    WIRE_TRANSPORT_KEY,
    WIRE_TRANSPORT_TRIGGER_ONLY,
)
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, ModelProto, NodeProto
from bb_edge.ir.opsets.wire import (
    OP_RECV,
    OP_RECV_REQ,
    OP_RECV_RESP,
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
    RECV_FLAVORED,
    SEND_FLAVORED,
)

__all__ = [
    "ATTR_DEADLINE_NS",
    "ATTR_PEER",
    "DEST_SITE_NAME_PREFIX",
    "DEST_SUFFIX_ATTR_PREFIX",
    "OP_RECV",
    "OP_RECV_REQ",
    "OP_RECV_RESP",
    "OP_RECV_RESP_BATCHED",
    "OP_SEND",
    "OP_SEND_REQ",
    "OP_SEND_RESP",
    "WIRE_DOMAIN",
    "WIRE_ID_KEY",
    "WIRE_TRANSPORT_KEY",
    "WireShapeViolation",
    "dest_suffix_attr",
    "dest_suffix_attribute",
    "is_recv",
    "is_recv_flavored",
    "is_send",
    "is_send_flavored",
    "payload_count",
    "read_peer_bytes",
    "read_wire_id",
    "stamp_peer_bytes",
    "stamp_wire_transport",
    "verify_wire_shape",
]

# Inputs of Send-flavored ops behind the payloads, and outputs of Recv-flavored ones behind them.
_TAIL_INPUTS = {OP_SEND: 1, OP_SEND_REQ: 2, OP_SEND_RESP: 2}
_TAIL_OUTPUTS = {OP_RECV: 1, OP_RECV_REQ: 2, OP_RECV_RESP: 1}


def is_send(node: NodeProto) -> bool:
    return node.op_type == OP_SEND and node.domain == WIRE_DOMAIN


def is_recv(node: NodeProto) -> bool:
    return node.op_type == OP_RECV and node.domain == WIRE_DOMAIN


def is_send_flavored(node: NodeProto) -> bool:
    """Send, SendReqBatched, SendResp: what leaves the partition."""
    return node.domain == WIRE_DOMAIN and node.op_type in SEND_FLAVORED


def is_recv_flavored(node: NodeProto) -> bool:
    """Recv, RecvReq, RecvResp, RecvRespBatched: what enters it."""
    return node.domain == WIRE_DOMAIN and node.op_type in RECV_FLAVORED


def _meta(node: NodeProto, key: str) -> str | None:
    return next((p.value for p in node.metadata_props if p.key == key), None)


def read_wire_id(node: NodeProto) -> int | None:
    """The pairing token; None where it is absent or no number."""
    text = _meta(node, WIRE_ID_KEY)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def read_peer_bytes(node: NodeProto) -> bytes | None:
    """The multihash of a static peer; None where there is none."""
    attr = next((a for a in node.attribute if a.name == ATTR_PEER), None)
    return attr.s if attr is not None and attr.s else None


def stamp_peer_bytes(node: NodeProto, peer: bytes) -> None:
    """Sets the static peer, in place of one that is there."""
    attr = next((a for a in node.attribute if a.name == ATTR_PEER), None)
    if attr is None:
        attr = node.attribute.add()
    attr.Clear()
    attr.name, attr.type, attr.s = ATTR_PEER, AttributeProto.STRING, peer


def stamp_wire_transport(node: NodeProto, transport: str) -> None:
    """Sets the classification, in place of one that is there."""
    for entry in node.metadata_props:
        if entry.key == WIRE_TRANSPORT_KEY:
            entry.value = transport
            return
    node.metadata_props.add(key=WIRE_TRANSPORT_KEY, value=transport)


def dest_suffix_attr(node: NodeProto, input_name: str) -> bytes | None:
    """The resolved address bytes of one fill; None where they are not there."""
    name = DEST_SUFFIX_ATTR_PREFIX + input_name
    return next((a.s for a in node.attribute if a.name == name), None)


def dest_suffix_attribute(input_name: str, suffix: bytes) -> AttributeProto:
    return AttributeProto(name=DEST_SUFFIX_ATTR_PREFIX + input_name, type=AttributeProto.STRING, s=suffix)


def payload_count(op_type: str, inputs: int, outputs: int, has_trigger: bool = False) -> int:
    """How many payloads a compiled wire op has, from the number of its inputs and outputs."""
    if op_type in _TAIL_INPUTS:
        return inputs - _TAIL_INPUTS[op_type]
    if op_type == OP_RECV_RESP_BATCHED:
        return outputs - 2
    return outputs - _TAIL_OUTPUTS[op_type] - has_trigger


@dataclass(frozen=True, slots=True)
class WireShapeViolation:
    """One departure from the contract."""

    function: str
    node: str
    detail: str


def verify_wire_shape(program: ModelProto | FunctionProto) -> list[WireShapeViolation]:
    """Checks compiled wire ops against the contract; an empty list is a pass."""
    functions: Iterable[FunctionProto] = program.functions if isinstance(program, ModelProto) else (program,)
    found: list[WireShapeViolation] = []
    for function in functions:
        for node in function.node:
            if node.domain == WIRE_DOMAIN:
                found += [WireShapeViolation(function.name, node.name or node.op_type, d) for d in _violations(node)]
    return found


def _violations(node: NodeProto) -> Iterable[str]:
    if node.op_type not in SEND_FLAVORED | RECV_FLAVORED:
        yield f"{node.op_type} is no wire op"
        return
    trigger = _meta(node, keys.TRIGGER_OUTPUT_KEY) == "1"
    count = payload_count(node.op_type, len(node.input), len(node.output), trigger)
    if count < (0 if node.op_type == OP_RECV_RESP_BATCHED else 1):
        yield f"{len(node.input)} inputs and {len(node.output)} outputs leave no payload"
    if node.op_type in RECV_FLAVORED - {OP_RECV_RESP_BATCHED} and node.input:
        yield "an entry has no inputs"
    if node.op_type == OP_RECV_RESP_BATCHED and len(node.input) != 1:
        yield "it reads the request id alone"
    if node.op_type == OP_SEND_REQ and len(node.output) != 1:
        yield "it yields the request id alone"
    if read_wire_id(node) is None:
        yield "no wire_id"
    transport = _meta(node, WIRE_TRANSPORT_KEY)
    if transport not in (None, WIRE_TRANSPORT_DATA, WIRE_TRANSPORT_TRIGGER_ONLY):
        yield f"wire_transport {transport!r}"
    for attr in node.attribute:
        if attr.name == ATTR_PEER:
            try:
                PeerId.from_bytes(attr.s)
            except PeerIdError as error:
                yield f"attribute peer: {error.what}"
    sites = _meta(node, keys.SITE_IDS_KEY)
    if sites is not None and sites and len(sites.split(",")) != count:
        yield f"{len(sites.split(','))} site ids for {count} payloads"
