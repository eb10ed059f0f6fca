"""The domains around the wire: `wire`, `gate`, `composite`, `address_book`, all of version 1.

Before the pass `synthesize_wire_recvs`, the outputs of a Send-flavored op are the values as its receiver sees
them; after it, the receiver has an op of its own (docs/design/host.md).
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import OpKind, Table

OP_SEND = "Send"
OP_RECV = "Recv"
OP_SEND_REQ = "SendReqBatched"
OP_RECV_REQ = "RecvReq"
OP_SEND_RESP = "SendResp"
OP_RECV_RESP_BATCHED = "RecvRespBatched"
OP_RECV_RESP = "RecvResp"

SEND_FLAVORED = frozenset({OP_SEND, OP_SEND_REQ, OP_SEND_RESP})
RECV_FLAVORED = frozenset({OP_RECV, OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_RECV_RESP})

ONNX_OPS_OVER_PEERS = frozenset({"Identity", "Slice", "Gather", "Concat", "Squeeze", "Unsqueeze"})
"""ONNX operators that also work on lists of peers, which the framework then computes itself."""

_ENTRY = OpKind.ENTRY

_w = Table(keys.WIRE_DOMAIN)
_w.op(
    OP_SEND,
    "payload:Any*, peers:PeerIdVec",
    "handle:Trigger?",
    "deadline_ns:int?",
    "Sends one envelope with all payloads to each peer, one way.",
    relation="send",
)
_w.op(
    OP_RECV,
    "",
    "payload:Any*, sender:PeerIdVec, trigger:Trigger?",
    "payload_type:type?",
    "Starts an execution with the payloads of an inbound envelope.",
    kind=_ENTRY,
    relation="recv",
)
_w.op(
    OP_SEND_REQ,
    "payload:Any*, gated:PeerIdVec, asked:PeerIdVec",
    "req_id:WireReqId",
    "deadline_ns:int?",
    "Asks each peer that passed the gates; the others that were asked count as missing.",
    may_suspend=True,
    relation="send",
)
_w.op(
    OP_RECV_REQ,
    "",
    "payload:Any*, sender:PeerIdVec, req_id:WireReqId, trigger:Trigger?",
    "payload_type:type?",
    "Starts an execution with the payloads of an inbound request.",
    kind=_ENTRY,
    relation="recv",
)
_w.op(
    OP_SEND_RESP,
    "payload:Any*, sender:PeerIdVec, req_id:WireReqId",
    "handle:Trigger?",
    "deadline_ns:int?",
    "Sends the reply to an inbound request.",
    relation="send",
)
_w.op(
    OP_RECV_RESP_BATCHED,
    "req_id:WireReqId",
    "closed:Trigger, missing:PeerIdVec, responses:Tensor*?",
    "",
    "Fires once, in the asking execution, when the request is closed.",
    may_suspend=True,
    relation="recv",
)
_w.op(
    OP_RECV_RESP,
    "",
    "payload:Any*, sender:PeerIdVec, trigger:Trigger?",
    "",
    "Starts a child execution with the payloads of one answer.",
    kind=_ENTRY,
    relation="recv",
)

_g = Table(keys.GATE_DOMAIN)
for _name, _doc in (
    ("DedupGateRx", "Marks values as new: an envelope delivered before is dropped on arrival."),
    ("PeerHealthGateRx", "Drops values from a peer that is below the health threshold."),
    ("BackoffGateRx", "Drops values from a peer that was told to back off and sends on."),
):
    _g.op(_name, "values:Any*", "values:Any*", "", _doc, inserted=True, relation="same_each")
_g.op(
    "PeerHealthGateTx",
    "peers:PeerIdVec",
    "peers:PeerIdVec",
    "",
    "Passes the peers that are up.",
    inserted=True,
)
_g.op(
    "BackoffGateTx",
    "peers:PeerIdVec",
    "peers:PeerIdVec",
    "",
    "Passes the peers that need not be waited for.",
    inserted=True,
)

_c = Table(keys.COMPOSITE_DOMAIN)
_CHILDREN = f"{keys.CHILD_COUNT_ATTR}:int, {keys.CHILD_TYPES_ATTR}:string"
_c.op("Bundle", "parts:Any*", "composite:Composite", _CHILDREN, "Packs values into one.", relation="bundle")
_c.op("Unbundle", "composite:Composite", "parts:Any*", _CHILDREN, "Unpacks a bundle.", relation="unbundle")

_a = Table(keys.ADDRESS_BOOK_DOMAIN)
_a.op(
    "Insert",
    "peer:PeerId, address:Multiaddress",
    "done:Trigger?",
    "",
    "Adds a peer with an address, or an address to a known peer.",
)
_a.op(
    "InsertMany",
    "peer:PeerId, addresses:AddressVec",
    "done:Trigger?",
    "",
    "Adds a peer with several addresses, or these to a known peer.",
)
_a.op(
    "Lookup",
    "peer:PeerId",
    "addresses:AddressVec",
    "",
    "Returns all addresses of a peer, in order. Fails without.",
)
_a.op(
    "Drop",
    "peer:PeerId",
    "done:Trigger?",
    "",
    "Takes back a reference to a peer; without references the peer is forgotten.",
)
_a.op("OwnPeer", "", "peer:PeerId", "", "Returns this node's id.", kind=OpKind.SOURCE)
_a.op(
    "OwnAddresses",
    "",
    "addresses:AddressVec",
    "",
    "Returns the addresses of this node; never none.",
    kind=OpKind.SOURCE,
)
_a.op(
    "AddressOf", "peer:PeerId", "address:Multiaddress", "", "Returns `/p2p/<peer>`, by which brokers route."
)
_a.op(
    "AddressAt",
    "addresses:AddressVec, index:Tensor<I64>",
    "address:Multiaddress",
    "",
    "Returns one address of a list, counted from 0, or from the end below 0. Fails where there is none.",
)
_a.op(
    "AddressList",
    "addresses:Multiaddress*",
    "list:AddressVec",
    "",
    "Returns single addresses as a list.",
)

OPSETS = {t.domain: t for t in (_w.opset(), _g.opset(), _c.opset(), _a.opset())}
