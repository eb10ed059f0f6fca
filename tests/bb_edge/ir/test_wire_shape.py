from __future__ import annotations

from collections.abc import Sequence

import pytest

from bb_edge.ir import keys
from bb_edge.ir.address import Address, site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, ModelProto, NodeProto
from bb_edge.ir.opsets.wire import RECV_FLAVORED, SEND_FLAVORED
from tests.aids.wire_shape import WireShapeViolation, payload_count, read_wire_id, verify_wire_shape

PEER = PeerId.from_name("sensor-07").to_bytes()
SITES = "00000000000000aa,00000000000000bb"

# The layouts of docs/design/artifact.md, with two payloads each.
LAYOUTS = {
    "Send": (["a", "b", "peers"], ["handle"]),
    "Recv": ([], ["a", "b", "sender"]),
    "SendReqBatched": (["a", "b", "gated", "asked"], ["req_id"]),
    "RecvReq": ([], ["a", "b", "sender", "req_id"]),
    "SendResp": (["a", "b", "sender", "req_id"], ["handle"]),
    "RecvRespBatched": (["req_id"], ["closed", "missing", "a", "b"]),
    "RecvResp": ([], ["a", "b", "sender"]),
}


def wire(op: str, *, wire_id: str | None = "7", domain: str = keys.WIRE_DOMAIN, **meta: str) -> NodeProto:
    inputs, outputs = LAYOUTS.get(op, ([], []))
    node = NodeProto(op_type=op, domain=domain, name=f"{op}_1", input=inputs, output=outputs)
    if wire_id is not None:
        node.metadata_props.add(key=keys.WIRE_ID_KEY, value=wire_id)
    for name, value in meta.items():
        node.metadata_props.add(key=getattr(keys, name), value=value)
    return node


def violations(nodes: Sequence[NodeProto] | NodeProto) -> list[str]:
    found = [nodes] if isinstance(nodes, NodeProto) else nodes
    return [v.detail for v in verify_wire_shape(FunctionProto(name="Client", node=found))]


def test_the_names_are_those_of_the_contract():
    assert keys.WIRE_DOMAIN == "ai.bytesandbrains.wire"
    assert keys.WIRE_ID_KEY == "ai.bytesandbrains.wire.wire_id"
    assert keys.WIRE_TRANSPORT_KEY == "ai.bytesandbrains.wire_transport"
    assert keys.DEST_SITE_NAME_PREFIX == "ai.bytesandbrains.dest_site_name."
    assert (keys.ATTR_PEER, keys.ATTR_DEADLINE_NS) == ("peer", "deadline_ns")
    assert (keys.WIRE_TRANSPORT_DATA, keys.WIRE_TRANSPORT_TRIGGER_ONLY) == (
        "data",
        "trigger_only",
    )


def test_flavors():
    assert {"Send", "SendReqBatched", "SendResp"} == SEND_FLAVORED
    assert set(LAYOUTS) == SEND_FLAVORED | RECV_FLAVORED
    assert not SEND_FLAVORED & RECV_FLAVORED


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", None),
        ("9" * 5000, None),
        ("-1", None),
        ("x", None),
        ("²", None),
        ("", None),
        (None, None),
    ],
)
def test_wire_ids(text, number):
    assert read_wire_id(wire("Send", wire_id=text)) == number


def test_suffixes_of_fills():
    node = wire("Send")
    node.attribute.add(name="dest_suffix.a", type=AttributeProto.STRING, s=site_suffix(17))
    assert violations(node) == []


@pytest.mark.parametrize("op", LAYOUTS)
def test_payloads_are_counted_from_the_layout(op):
    inputs, outputs = LAYOUTS[op]
    assert payload_count(op, len(inputs), len(outputs)) == 2
    if op in {"Recv", "RecvReq", "RecvResp"}:
        assert payload_count(op, 0, len(outputs) + 1, has_trigger=True) == 2


@pytest.mark.parametrize("op", LAYOUTS)
def test_the_layouts_of_the_contract_pass(op):
    marks = {"SITE_IDS_KEY": SITES, "WIRE_TYPES_KEY": "101,0", "WIRE_MAX_BYTES_KEY": "4096,0"}
    node = wire(op, WIRE_TRANSPORT_KEY="data", **marks)
    node.attribute.add(name="deadline_ns", type=AttributeProto.INT, i=0)
    assert violations(node) == []


def test_a_trigger_output_is_no_payload():
    node = wire("Recv", TRIGGER_OUTPUT_KEY="1", SITE_IDS_KEY=SITES)
    node.output.append("trigger")
    assert violations(node) == []


def test_an_answer_mode_without_batch_has_no_responses():
    node = wire("RecvRespBatched")
    del node.output[2:]
    assert violations(node) == []


def changed(op: str, **parts: object) -> NodeProto:
    node = wire(op)
    for name, value in parts.items():
        node.ClearField(name)  # type: ignore[arg-type]
        getattr(node, name).extend(value)
    return node


def with_attribute(**parts: object) -> NodeProto:
    node = wire("Send")
    node.attribute.add(**parts)
    return node


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (wire("Sned"), "Sned is not a wire op"),
        (wire("Send", wire_id=None), "no wire_id"),
        (wire("Send", wire_id="x"), "no wire_id"),
        (changed("Send", input=["peers"]), "leave no payload"),
        (changed("Send", output=["handle", "more"]), "a handle alone"),
        (changed("SendResp", output=["handle", "more"]), "a handle alone"),
        (changed("SendReqBatched", input=["gated", "asked"]), "leave no payload"),
        (changed("SendReqBatched", output=["req_id", "more"]), "request id alone"),
        (changed("RecvRespBatched", input=["req_id", "more"]), "request id alone"),
        (changed("RecvRespBatched", output=["closed"]), "leave no payload"),
        (changed("Recv", output=["sender"]), "leave no payload"),
        (changed("Recv", input=["x"]), "an entry has no inputs"),
        (changed("RecvReq", input=["x"]), "an entry has no inputs"),
        (changed("RecvResp", input=["x"]), "an entry has no inputs"),
        (wire("Send", WIRE_TRANSPORT_KEY="pigeon"), "wire_transport 'pigeon'"),
        (wire("Send", SITE_IDS_KEY="aa"), "1 site ids for 2 payloads"),
        (wire("Send", SITE_IDS_KEY="aa,zz"), "site ids are not all 64-bit numbers"),
        (wire("Send", SITE_IDS_KEY="aa,1" + "0" * 16), "site ids are not all 64-bit numbers"),
        (wire("Send", SITE_IDS_KEY="aa,-1"), "site ids are not all 64-bit numbers"),
        (wire("Send", WIRE_TYPES_KEY="1,2,3"), "3 type hashes for 2 payloads"),
        (wire("Send", WIRE_MAX_BYTES_KEY="1"), "1 sizes for 2 payloads"),
        (wire("Send", WIRE_MAX_BYTES_KEY="1,0x2"), "sizes are not all 64-bit numbers"),
        (with_attribute(name="peer", type=AttributeProto.STRING, s=b"x"), "attribute peer: "),
        (with_attribute(name="peer", type=AttributeProto.INT, i=5), "attribute peer: "),
        (with_attribute(name="deadline_ns", type=AttributeProto.INT, i=-1), "deadline_ns is not a duration"),
        (
            with_attribute(name="deadline_ns", type=AttributeProto.FLOAT, f=1.0),
            "deadline_ns is not a duration",
        ),
        (with_attribute(name="dest_suffix.a", s=b"x"), "attribute dest_suffix.a: "),
        (with_attribute(name="dest_suffix.a", s=Address(op="x").to_bytes()), "attribute dest_suffix.a: "),
    ],
)
def test_departures_from_the_contract(node, says):
    found = violations(node)
    assert len(found) == 1
    assert says in found[0]


def test_a_violation_names_function_and_node():
    model = ModelProto(functions=[FunctionProto(name="Server"), FunctionProto(name="Client")])
    model.functions[1].node.append(wire("Recv", wire_id=None))
    assert verify_wire_shape(model) == [WireShapeViolation("Client", "Recv_1", "no wire_id")]


def test_other_domains_are_left_alone():
    assert violations(wire("Sned", domain="org.example", wire_id=None)) == []


def test_wire_ops_in_subgraphs_are_found_at_any_depth():
    node = wire("Send")
    for _ in range(30):
        branch = NodeProto(op_type="If", input=["c"], output=["y"])
        attr = branch.attribute.add(name="then_branch", type=AttributeProto.GRAPH)
        attr.g.node.append(node)
        node = branch
    assert violations(node) == ["it is in a subgraph of If or Loop, which cannot send or receive"]


def test_both_halves_name_the_same_sites():
    def model(sites: str, wire_id: str = "7") -> ModelProto:
        halves = (wire("Send", SITE_IDS_KEY=SITES), wire("Recv", wire_id=wire_id, SITE_IDS_KEY=sites))
        named = zip(("Server", "Client"), halves, strict=True)
        return ModelProto(functions=[FunctionProto(name=name, node=[half]) for name, half in named])

    assert verify_wire_shape(model(SITES)) == []
    other = SITES.replace("bb", "cc")
    assert verify_wire_shape(model(other, "8")) == []  # another wire: a partner may be in another file
    (found,) = verify_wire_shape(model(other))
    assert found == WireShapeViolation(
        "Client", "Recv_1", "its site ids are not those of the other half (Server/Send_1)"
    )
