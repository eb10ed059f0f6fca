"""The envelope against a schema that is written here, from the published field numbers alone.

Nothing of the package's own descriptor is used: a peer in another language has these numbers and no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.ir.tensors import decode_tensor, encode_tensor
from bb_edge.wire import envelope
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import Ack, Envelope, Fill, RttReport

_TYPES = descriptor_pb2.FieldDescriptorProto
BYTES, U64, U32, BOOL = _TYPES.TYPE_BYTES, _TYPES.TYPE_UINT64, _TYPES.TYPE_UINT32, _TYPES.TYPE_BOOL
ENUM, TEXT = _TYPES.TYPE_ENUM, _TYPES.TYPE_STRING
PACKAGE = "bb.core"

# message -> (number, name, type or message, repeated)
SCHEMA: dict[str, list[tuple[int, str, Any, bool]]] = {
    "WireEnvelope": [
        (1, "dest_peer_addresses", BYTES, True),
        (2, "fills", "SlotFill", True),
        (3, "correlation", "WireCorrelation", False),
        (4, "remaining_deadline_ns", U64, False),
        (5, "edge_rtt_reports", "EdgeRttReport", True),
        (6, "src_peer_bytes", BYTES, False),
        (7, "schema_version", U32, False),
        (8, "src_peer_addresses", BYTES, True),
        (101, "epoch", U64, False),
        (102, "seq", U64, False),
        (103, "acks", "Ack", True),
        (104, "base", U64, False),
    ],
    "SlotFill": [
        (1, "dest_suffix", BYTES, False),
        (2, "payload", BYTES, False),
        (3, "trigger_only", BOOL, False),
        (4, "type_hash", U64, False),
    ],
    "WireCorrelation": [(1, "kind", ENUM, False), (2, "wire_req_id", U64, False)],
    "EdgeRttReport": [
        (1, "next_hop_site_id", U64, False),
        (2, "chain_id", U64, False),
        (3, "hop_index", U32, False),
        (4, "srtt_ns", U64, False),
        (5, "rttvar_ns", U64, False),
        (6, "sample_count", U64, False),
    ],
    "Ack": [(1, "epoch", U64, False), (2, "up_to", U64, False), (3, "also", U64, True)],
}

NEWER = {
    "WireEnvelope": [(9, "trace", BYTES, False), (106, "note", TEXT, True), (5000, "other", "Ack", False)],
    "SlotFill": [(5, "checksum", U64, False), (6, "label", TEXT, False)],
    "WireCorrelation": [(3, "hint", U32, False)],
    "EdgeRttReport": [(7, "loss", U32, False)],
    "Ack": [(4, "since_ns", U64, False)],
}
"""What a later version might append."""


def envelope_class(schema: dict[str, list[tuple[int, str, Any, bool]]]) -> Any:
    """The class of `WireEnvelope` in a schema, in a pool of its own; proto3."""
    file = descriptor_pb2.FileDescriptorProto(name="foreign.proto", package=PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="CorrelationKind")
    for number, name in enumerate(("NONE", "REQUEST", "RESPONSE")):
        kinds.value.add(name=name, number=number)
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind, repeated in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = _TYPES.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                field.type = kind
                if kind == ENUM:
                    field.type_name = f".{PACKAGE}.CorrelationKind"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{PACKAGE}.WireEnvelope")
    if not hasattr(message_factory, "GetMessageClass"):  # protobuf before 4.22
        return message_factory.MessageFactory(pool).GetPrototype(found)
    return message_factory.GetMessageClass(found)


Theirs = envelope_class(SCHEMA)
Newer = envelope_class({name: [*fields, *NEWER[name]] for name, fields in SCHEMA.items()})

u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
u32 = st.integers(0, 2**32 - 1)
short = st.binary(max_size=20)
fills = st.fixed_dictionaries(
    {
        "dest_suffix": short,
        "payload": st.binary(max_size=300),
        "trigger_only": st.booleans(),
        "type_hash": u64,
    }
)
contents = st.fixed_dictionaries(
    {
        "dest_peer_addresses": st.lists(short, max_size=3),
        "fills": st.lists(fills, max_size=4),
        "correlation": st.fixed_dictionaries({"kind": st.integers(0, 2), "wire_req_id": u64}),
        "remaining_deadline_ns": u64,
        "edge_rtt_reports": st.lists(
            st.fixed_dictionaries(
                {name: u32 if kind == U32 else u64 for _, name, kind, _ in SCHEMA["EdgeRttReport"]}
            ),
            max_size=2,
        ),
        "src_peer_bytes": st.binary(max_size=40),
        "schema_version": st.integers(0, 1),
        "src_peer_addresses": st.lists(short, max_size=3),
        "epoch": u64,
        "seq": u64,
        "acks": st.lists(
            st.fixed_dictionaries({"epoch": u64, "up_to": u64, "also": st.lists(u64, max_size=5)}), max_size=3
        ),
    }
)


def ours(content: dict[str, Any]) -> Envelope:
    return Envelope(
        fills=[Fill(**fill) for fill in content["fills"]],
        kind=content["correlation"]["kind"],
        wire_req_id=content["correlation"]["wire_req_id"],
        remaining_deadline_ns=content["remaining_deadline_ns"],
        src_peer=content["src_peer_bytes"],
        src_addresses=tuple(content["src_peer_addresses"]),
        dest_addresses=tuple(content["dest_peer_addresses"]),
        epoch=content["epoch"],
        seq=content["seq"],
        acks=tuple(Ack(a["epoch"], a["up_to"], tuple(a["also"])) for a in content["acks"]),
        base=content.get("base", 0),
        schema_version=content["schema_version"],
        rtt_reports=tuple(RttReport(**r) for r in content["edge_rtt_reports"]),
    )


@settings(max_examples=300, deadline=None)
@given(contents, st.data())
def test_they_read_what_we_write(content, data):
    content["base"] = data.draw(st.integers(0, content["seq"]))
    found = Theirs.FromString(envelope.encode(ours(content)))
    found.correlation.SetInParent()  # one that says nothing does not travel
    assert found == Theirs(**content)
    before = found.ByteSize()
    found.DiscardUnknownFields()
    assert found.ByteSize() == before, "no field that is not in the schema"


@settings(max_examples=300, deadline=None)
@given(contents, st.data())
def test_we_read_what_they_write(content, data):
    content["base"] = data.draw(st.integers(0, content["seq"]))
    assert envelope.decode(Theirs(**content).SerializeToString(), HOST_CAPS) == ours(content)


@settings(max_examples=200, deadline=None)
@given(contents, st.data())
def test_what_later_versions_append_is_passed_over(content, data):
    message = Newer(**content, trace=b"abc", note=["", "two"], other={"epoch": 3})
    for fill in message.fills:
        fill.checksum, fill.label = data.draw(u64), "label"
    message.correlation.hint = 7
    for report in message.edge_rtt_reports:
        report.loss = 9
    for ack in message.acks:
        ack.since_ns = 2**63
    assert envelope.decode(message.SerializeToString(), HOST_CAPS) == ours({**content, "base": 0})


ASKED = """program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  x: F32[2], from: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  syscall.AppEmit<name="x">(x)
  q: F32[2], s: PeerIdVec, n: WireReqId = wire.RecvReq() {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101}
  r: F32[2] = Add(q, q)
  h: Trigger = wire.SendResp(r, s, n) {wire.wire_id=3, wire.site_ids=a3, wire.type_hashes=101}
"""  # noqa: E501
SITE = bytes.fromhex("e201")  # the code of /site/ as a varint; eight bytes follow


def suffix(site: int) -> bytes:
    return SITE + site.to_bytes(8, "big")


@pytest.mark.parametrize("schema", [Theirs, Newer], ids=["theirs", "newer"])
def test_a_foreign_peer_speaks_with_a_node(bench, schema):
    b = bench(ASKED)
    peer = PeerId.from_name("foreign")
    tensor = encode_tensor(np.array([1, 2], np.float32))

    def send(**content: Any) -> list[Any]:
        message = schema(schema_version=1, epoch=77, **content)
        if schema is Newer:
            message.trace, message.fills[0].label = b"t", "l"
        b.node.deliver_inbound(message.SerializeToString(), peer)
        before = len(b.said)
        b.settle(b.now_ns + 100_000_000)
        return [Theirs.FromString(s.payload) for s in b.said[before:] if isinstance(s, steps.SendEnvelope)]

    one_way = {"fills": [{"dest_suffix": suffix(0xA1), "payload": tensor, "type_hash": 0x0101}], "seq": 1}
    for _ in range(2):
        assert send(**one_way) == [], "nobody waits for an acknowledgement"
    assert [x.tolist() for x in b.events("x")] == [[1, 2]], "and it is delivered once"
    asked = {
        "fills": [{"dest_suffix": suffix(0xA2), "payload": tensor, "type_hash": 0x0101}],
        "seq": 2,
        "correlation": {"kind": 1, "wire_req_id": 2**63 + 5},
        "remaining_deadline_ns": 10**9,
        "src_peer_bytes": peer.to_bytes(),
        "src_peer_addresses": [b"\xa5\x03" + bytes([len(peer.to_bytes())]) + peer.to_bytes()],  # /p2p/ is 421
    }
    reply = next(e for e in send(**asked) if e.fills)
    assert (reply.correlation.kind, reply.correlation.wire_req_id) == (2, 2**63 + 5)
    assert (reply.schema_version, reply.seq, reply.base) == (1, 1, 0) and reply.epoch == b.node.epoch
    assert 0 < reply.remaining_deadline_ns <= 10**9
    (fill,) = reply.fills
    assert (fill.dest_suffix, fill.type_hash, fill.trigger_only) == (suffix(0xA3), 0x0101, False)
    assert decode_tensor(fill.payload).tolist() == [2, 4]
    (ack,) = reply.acks
    assert (ack.epoch, ack.up_to or 2, list(ack.also) or [2]) == (77, 2, [2])
