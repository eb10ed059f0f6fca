"""An envelope that is made by docs/design/wire.md and protobuf alone is one that a node takes."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from arrays import f32
from kinds_of_steps import of

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir import bb_core_pb2, onnx_pb2
from bb_edge.ir.ids import PeerId

PAGE = Path(__file__).resolve().parents[3] / "docs" / "design" / "wire.md"


def fnv1a_64(text: str) -> int:
    found = 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found


def test_a_request_made_by_the_page_is_taken_and_answered(compile_text) -> None:
    site = fnv1a_64("FederatedDigits/global/ask/0")
    received = f"wire.wire_id=1, wire.site_ids={site:016x}, wire.type_hashes=101"
    sent = "wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1, dest_site_name.x=y"
    program = f"""
program Demo {{module=Demo}}
function program.Leaf() -> () {{entry=1, partition=Leaf}}
  x: F32[2], s: PeerIdVec, r: U64 = wire.RecvReq() {{{received}}}
  h: Trigger = wire.SendResp(x, s, r) {{{sent}}}
  syscall.AppEmit<name="x">(x)
"""
    own = PeerId.from_name("leaf")
    assert own.to_bytes() == b"\x12\x20" + hashlib.sha256(b"leaf").digest()
    node = install(own, (), compile_text(program), ["Leaf"], seed=1)

    asker = PeerId.from_name("asker")
    node.peer_presence(asker, True, (b"\xa5\x03\x22" + asker.to_bytes(),), {}, epoch=99, classes=("Hub",))
    tensor = onnx_pb2.TensorProto(dims=[2], data_type=1, raw_data=struct.pack("<2f", 3, 4))
    message = bb_core_pb2.WireEnvelope(
        fills=[
            bb_core_pb2.SlotFill(
                dest_suffix=b"\xe2\x01" + site.to_bytes(8, "big"),
                payload=tensor.SerializeToString(),
                type_hash=0x101,
            )
        ],
        correlation=bb_core_pb2.WireCorrelation(kind=bb_core_pb2.REQUEST, wire_req_id=7),
        remaining_deadline_ns=5_000_000_000,
        epoch=99,
        seq=1,
    )
    node.deliver_inbound(message.SerializeToString(), asker)
    found = [step for now_ns in (1, 2) for step in node.poll(now_ns)]
    (event,) = of(steps.AppEvent, found)
    assert (event.value == f32(3, 4)).all()
    (answer,) = of(steps.SendEnvelope, found)
    back = bb_core_pb2.WireEnvelope.FromString(answer.body + answer.payload)
    assert (back.correlation.kind, back.correlation.wire_req_id) == (bb_core_pb2.RESPONSE, 7)
    assert [(ack.epoch, ack.up_to) for ack in back.acks] == [(99, 1)]
    assert back.fills[0].dest_suffix == b"\xe2\x01" + 0xA2.to_bytes(8, "big")
    values = onnx_pb2.TensorProto.FromString(back.fills[0].payload)
    assert struct.unpack("<2f", values.raw_data) == (3, 4)


def test_the_page_has_the_numbers_of_the_types() -> None:
    from bb_edge.ir import types

    page = PAGE.read_text()
    names = (
        "float32, float64, float16, uint8, int32, bool, bfloat16, int8, int16, int64, uint16, uint32, uint64"
    )
    assert f"tensors of {names} | `0x101` to `0x10d`" in page
    hashes = [types.tensor_of_elem(elem) for elem in (1, 11, 10, 2, 6, 9, 16, 3, 5, 7, 4, 12, 13)]
    assert [node.wire_hash for node in hashes if node is not None] == [*range(0x101, 0x10E)]
    scalars = (types.SCALAR_F32, types.SCALAR_F64, types.SCALAR_F16, types.SCALAR_U8, types.SCALAR_I32)
    assert [node.wire_hash for node in scalars] == [*range(0x201, 0x206)]
