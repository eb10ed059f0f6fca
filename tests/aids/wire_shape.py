"""The shape of compiled wire ops, which the compiler writes and devices read.

| op               | inputs                               | outputs                          |
|------------------|--------------------------------------|----------------------------------|
| Send             | payload…, peers                      | handle                           |
| Recv             |                                      | payload…, sender, (trigger)      |
| SendReqBatched   | payload…, gated peers, asked peers   | req_id                           |
| RecvReq          |                                      | payload…, sender, req_id, (trigger) |
| SendResp         | payload…, sender, req_id             | handle                           |
| RecvRespBatched  | req_id                               | closed, missing, responses…      |
| RecvResp         |                                      | payload…, sender, (trigger)      |

Peer bytes are in `attribute.s`, as the canonical multihash and never as a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bb_edge.ir import keys
from bb_edge.ir.address import AddressError, parse_suffix
from bb_edge.ir.keys import (
    ATTR_DEADLINE_NS,
    ATTR_PEER,
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

# How many inputs of Send-flavored ops, and outputs of Recv-flavored ones, come after the payloads.
_TAIL_INPUTS = {OP_SEND: 1, OP_SEND_REQ: 2, OP_SEND_RESP: 2}
_TAIL_OUTPUTS = {OP_RECV: 1, OP_RECV_REQ: 2, OP_RECV_RESP: 1}


def _meta(node: NodeProto, key: str) -> str | None:
    return next((p.value for p in node.metadata_props if p.key == key), None)


def read_wire_id(node: NodeProto) -> int | None:
    """Returns the token that pairs the halves of a wire; None where it is absent or not a 64-bit number."""
    text = _meta(node, WIRE_ID_KEY)
    if text is None or len(text) > 20 or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number < 1 << 64 else None


def payload_count(op_type: str, inputs: int, outputs: int, has_trigger: bool = False) -> int:
    """Returns how many payloads a compiled wire op has, given its numbers of inputs and outputs."""
    if op_type in _TAIL_INPUTS:
        return inputs - _TAIL_INPUTS[op_type]
    if op_type == OP_RECV_RESP_BATCHED:
        return outputs - 2
    return outputs - _TAIL_OUTPUTS[op_type] - has_trigger


@dataclass(frozen=True, slots=True)
class WireShapeViolation:
    """One departure of a wire op from its required shape."""

    function: str
    node: str
    detail: str


def verify_wire_shape(program: ModelProto | FunctionProto) -> list[WireShapeViolation]:
    """Checks compiled wire ops against their required shapes; returns an empty list where all fit.

    Halves of one wire id in the same program must name the same sites; a half without its partner is an open
    port, or its partner is in another partition's file.
    """
    functions: Iterable[FunctionProto] = program.functions if isinstance(program, ModelProto) else (program,)
    violations: list[WireShapeViolation] = []
    sites: dict[int, tuple[str, str]] = {}  # wire id -> (site ids, where they were first seen)
    for function in functions:
        for node, nested in _walk(function.node):
            if node.domain != WIRE_DOMAIN:
                continue
            details = list(_violations(node))
            if nested:
                details.append("it is in a subgraph of If or Loop, which cannot send or receive")
            wire, text = read_wire_id(node), _meta(node, keys.SITE_IDS_KEY)
            if wire is not None and text:
                known, place = sites.setdefault(wire, (text, f"{function.name}/{node.name or node.op_type}"))
                if known != text:
                    details.append(f"its site ids are not those of the other half ({place})")
            name = node.name or node.op_type
            violations += [WireShapeViolation(function.name, name, detail) for detail in details]
    return violations


def _walk(nodes: Iterable[NodeProto]) -> Iterator[tuple[NodeProto, bool]]:
    """Yields every node, and whether it is in a subgraph; iterative, because models come over a network."""
    stack = [(node, False) for node in nodes][::-1]
    while stack:
        node, nested = stack.pop()
        yield node, nested
        for attr in node.attribute:
            for graph in (*((attr.g,) if attr.HasField("g") else ()), *attr.graphs):
                stack.extend((inner, True) for inner in reversed(graph.node))


_PER_PAYLOAD = (  # comma-joined metadata with one entry per payload, hexadecimal or decimal
    (keys.SITE_IDS_KEY, "site ids", 16),
    (keys.WIRE_TYPES_KEY, "type hashes", 16),
    (keys.WIRE_MAX_BYTES_KEY, "sizes", 10),
)


def _violations(node: NodeProto) -> Iterator[str]:
    if node.op_type not in SEND_FLAVORED | RECV_FLAVORED:
        yield f"{node.op_type} is not a wire op"
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
    if node.op_type in (OP_SEND, OP_SEND_RESP) and len(node.output) > 1:
        yield "it yields a handle alone"
    if read_wire_id(node) is None:
        yield "no wire_id"
    transport = _meta(node, WIRE_TRANSPORT_KEY)
    if transport not in (None, WIRE_TRANSPORT_DATA, WIRE_TRANSPORT_TRIGGER_ONLY):
        yield f"wire_transport {transport!r}"
    for key, what, base in _PER_PAYLOAD:
        text = _meta(node, key)
        if not text:
            continue
        entries = text.split(",")
        if len(entries) != count:
            yield f"{len(entries)} {what} for {count} payloads"
        if not all(_is_number(entry, base) for entry in entries):
            yield f"{what} are not all 64-bit numbers"
    for attr in node.attribute:
        yield from _attribute_violations(attr)


def _is_number(text: str, base: int) -> bool:
    if not 0 < len(text) <= 20 or not text.isalnum():
        return False
    try:
        return int(text, base) < 1 << 64
    except ValueError:
        return False


def _attribute_violations(attr: AttributeProto) -> Iterator[str]:
    if attr.name == ATTR_PEER:
        yield "attribute peer: nothing reads it, its peers are an input"
    elif attr.name == ATTR_DEADLINE_NS:
        if attr.type != AttributeProto.INT or attr.i < 0:
            yield "attribute deadline_ns is not a duration (an INT from 0 on)"
    elif attr.name.startswith(DEST_SUFFIX_ATTR_PREFIX):
        try:
            parse_suffix(attr.s)
        except AddressError as error:
            yield f"attribute {attr.name}: {error.what}"
