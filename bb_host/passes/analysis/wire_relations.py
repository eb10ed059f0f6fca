"""Type relations of wire ops, gates and composites: what arrives is what was sent."""

from __future__ import annotations

from bb_edge.ir import keys, types
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.opsets.wire import OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_SEND_REQ, OP_SEND_RESP
from bb_edge.ir.types import ValueType
from bb_host.ir.program import Op
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.type_terms import ANY, TENSOR, Terms, conflict

_PEERS = types.PEER_ID_VEC


def send(op: Op, row: OpDef, terms: Terms) -> None:
    """Recorded form: what the receiver sees has the payload's type; the rest is peers and request ids."""
    if len(op.inputs) < 2:
        raise conflict(op, "it sends nothing, or to nobody")
    terms.element(flow.peers_input(op), _PEERS, op)
    if op.op_type == OP_SEND_REQ:
        terms.element(op.inputs[-1], _PEERS, op)
        terms.element(op.outputs[0], types.WIRE_REQ_ID, op)
    elif op.op_type == OP_SEND_RESP:
        terms.element(op.inputs[-1], types.WIRE_REQ_ID, op)
    if not flow.is_recorded_form(op):
        if op.op_type != OP_SEND_REQ and op.outputs:
            terms.element(op.outputs[0], types.TRIGGER, op)
        return
    *received, sender = flow.received_outputs(op)
    payloads = flow.payload_inputs(op)
    if len(received) != len(payloads):
        raise conflict(op, f"{len(payloads)} payloads, and {len(received)} values on the receiving side")
    for source, result in zip(payloads, received, strict=True):
        known = terms.get(source)
        if known is not None:
            terms.put(result, known, op)
            if terms.is_open(source) and result in terms.types:
                terms.put(source, ValueType(terms.types[result].node), op)
    terms.element(sender, _PEERS, op)


def recv(op: Op, row: OpDef, terms: Terms) -> None:
    """What arrives is what the other half sends; a hand-made port says it itself."""
    if op.op_type != OP_RECV_RESP_BATCHED:
        tail = 2 if op.op_type == OP_RECV_REQ else 1
        end = len(op.outputs) - (op.facts.trigger_output)
        if end < tail:
            raise conflict(op, "it has no output for the sender")
        terms.element(op.outputs[end - tail], _PEERS, op)
        if tail == 2:
            terms.element(op.outputs[end - 1], types.WIRE_REQ_ID, op)
        if end < len(op.outputs):
            terms.element(op.outputs[end], types.TRIGGER, op)
        first = op.attrs.get(keys.ATTR_PAYLOAD_TYPE)
        if isinstance(first, ValueType) and end > tail and op.outputs[0] not in terms.types:
            terms.put(op.outputs[0], first, op)
        return
    if not op.inputs or len(op.outputs) < 2:
        raise conflict(op, "it needs a request, and the outputs closed and missing")
    terms.element(op.inputs[0], types.WIRE_REQ_ID, op)
    for name, node in zip(op.outputs, (types.TRIGGER, _PEERS), strict=False):
        if name:
            terms.element(name, node, op)
    reply = terms.replies.get(flow.wire_id(op))
    if reply is None:
        return
    for name, source in zip(op.outputs[2:], flow.payload_inputs(reply), strict=False):
        known = terms.get(source)
        if name and known is not None and known.node is not ANY:
            if not types.is_subtype(known.node, TENSOR):
                raise conflict(op, f"answers of type {known} cannot be stacked", "read r.answer instead")
            shape = None if known.shape is None else (None, *known.shape)
            terms.put(name, ValueType(known.node, shape), op)


def same_each(op: Op, row: OpDef, terms: Terms) -> None:
    """Gates hand on what they get."""
    for source, result in zip(op.inputs, op.outputs, strict=False):
        terms.put(result, terms.get(source), op)


def bundle(op: Op, row: OpDef, terms: Terms) -> None:
    terms.element(op.outputs[0], types.COMPOSITE, op)


def unbundle(op: Op, row: OpDef, terms: Terms) -> None:
    """Attribute `child_types` says what comes out."""
    terms.element(op.inputs[0], types.COMPOSITE, op)
    text = op.attrs.get(keys.CHILD_TYPES_ATTR, b"")
    names = text.decode("utf-8", "replace").split(",") if isinstance(text, bytes) and text else []
    if len(names) != len(op.outputs):
        raise conflict(op, f"{len(names)} types for {len(op.outputs)} parts")
    for name, denotation in zip(op.outputs, names, strict=True):
        node = types.by_denotation(denotation)
        if node is None:
            raise conflict(op, f"no type {denotation!r}")
        if name:
            terms.element(name, node, op)
