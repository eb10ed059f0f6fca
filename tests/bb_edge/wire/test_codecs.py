"""Typed values: round trips, agreement with cbor2 and protobuf, typed errors on anything else."""

from __future__ import annotations

import dataclasses
import math
import runpy
from collections.abc import Iterator
from pathlib import Path

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.types import TypeNode, register_type
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire import codecs
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import (
    NotWireEligibleError,
    WireReceiveError,
    WireReceiveErrorKind,
    decode_value,
    encode_value,
    forget_codec,
    python_type_of,
    register_codec,
    wire_type_hash,
)

PEERS = tuple(PeerId.from_name(name) for name in ("a", "b"))
ADDRESSES = (Address(PEERS[0]), Address(PEERS[1], site=7))

UNTYPED = [
    (TRIGGER, types.TRIGGER, b""),
    (b"abc", types.BYTES, cbor2.dumps(b"abc")),
    (PEERS[0], types.PEER_ID, cbor2.dumps(PEERS[0].to_bytes())),
    (PEERS, types.PEER_ID_VEC, cbor2.dumps([p.to_bytes() for p in PEERS])),
    ((), types.PEER_ID_VEC, cbor2.dumps([])),
    (ADDRESSES[0], types.MULTIADDRESS, cbor2.dumps(ADDRESSES[0].to_bytes())),
    (ADDRESSES, types.ADDRESS_VEC, cbor2.dumps([a.to_bytes() for a in ADDRESSES])),
    (1.5, types.SCALAR_F64, cbor2.dumps(1.5, canonical=True)),
    (-3, types.SCALAR_I32, cbor2.dumps(-3)),
]
TYPED = [
    (2**64 - 1, types.WIRE_REQ_ID, cbor2.dumps(2**64 - 1)),
    ((), types.ADDRESS_VEC, cbor2.dumps([])),
    (0.5, types.SCALAR_F32, cbor2.dumps(0.5, canonical=True)),
    (65504.0, types.SCALAR_F16, b"\xf9\x7b\xff"),  # cbor2 5.4 writes it wider
    (255, types.SCALAR_U8, cbor2.dumps(255)),
]


@pytest.mark.parametrize(("value", "node", "payload"), UNTYPED)
def test_values_that_say_their_type(value: object, node: TypeNode, payload: bytes) -> None:
    assert encode_value(value) == (node.wire_hash, payload)
    assert decode_value(wire_type_hash(value), payload) == value


@pytest.mark.parametrize(("value", "node", "payload"), UNTYPED + TYPED)
def test_values_whose_type_is_named(value: object, node: TypeNode, payload: bytes) -> None:
    assert node.wire_hash is not None
    assert encode_value(value, node.wire_hash) == (node.wire_hash, payload)
    found = decode_value(node.wire_hash, payload)
    assert found == value
    assert type(found) is type(value)


TENSOR_TYPES = [node for node in types.REGISTRY if node.elem_type is not None]


@pytest.mark.parametrize("node", TENSOR_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 1)])
def test_tensors(node: TypeNode, shape: tuple[int, ...]) -> None:
    assert node.elem_type is not None
    dtype = types.dtype_of_elem(node.elem_type)
    assert dtype is not None
    array = np.arange(math.prod(shape), dtype=np.int64).astype(dtype).reshape(shape)
    found_hash, payload = encode_value(array, node.wire_hash)
    assert found_hash == node.wire_hash
    assert TensorProto.FromString(payload).data_type == node.elem_type
    found = decode_value(found_hash, payload, EDGE_CAPS)
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype and found.shape == shape and np.array_equal(found, array)
    assert not found.flags.writeable
    if node is not types.TENSOR_BF16:
        assert encode_value(array) == (found_hash, payload)


def test_an_array_under_another_hash_is_refused_on_both_sides() -> None:
    array = np.zeros(3, np.float32)
    with pytest.raises(NotWireEligibleError):
        encode_value(array, types.TENSOR_F64.wire_hash)
    with pytest.raises(WireReceiveError) as caught:
        decode_value(types.TENSOR_F64.wire_hash or 0, encode_value(array)[1])
    assert caught.value.kind is WireReceiveErrorKind.TypeMismatch


def test_a_numpy_scalar_is_a_tensor_of_rank_zero() -> None:
    type_hash, payload = encode_value(np.float32(2.5))
    assert decode_value(type_hash, payload) == np.array(2.5, np.float32)


def test_composites_nest() -> None:
    inner = Composite(((0x0B, b"x"), (0x0A, TRIGGER)))
    value = Composite(((0x0302, inner), (0x12, PEERS), (0x0202, 2.0)))
    type_hash, payload = encode_value(value)
    rows = cbor2.loads(payload)
    assert [row[0] for row in rows] == [0x0302, 0x12, 0x0202]
    assert rows[1][1] == encode_value(PEERS)[1]
    assert decode_value(type_hash, payload) == value


def test_a_composite_carries_tensors() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    type_hash, payload = encode_value(Composite(((0x0101, array), (0x0203, 1.0))))
    found = decode_value(type_hash, payload)
    assert isinstance(found, Composite)
    assert np.array_equal(found.values[0], array)  # type: ignore[arg-type]
    assert found.values[1] == 1.0


def nested(depth: int) -> Composite:
    value = Composite(((0x0B, b""),))
    for _ in range(depth - 1):
        value = Composite(((0x0302, value),))
    return value


def test_composites_at_their_depth_and_width() -> None:
    for depth in (codecs.MAX_COMPOSITE_DEPTH - 1, codecs.MAX_COMPOSITE_DEPTH):
        assert decode_value(*encode_value(nested(depth))) == nested(depth)
    with pytest.raises(WireReceiveError):
        decode_value(*encode_value(nested(codecs.MAX_COMPOSITE_DEPTH + 1)))
    for width in (codecs.MAX_CHILDREN - 1, codecs.MAX_CHILDREN):
        value = Composite(((0x0A, TRIGGER),) * width)
        assert decode_value(*encode_value(value)) == value
    with pytest.raises(WireReceiveError):
        decode_value(*encode_value(Composite(((0x0A, TRIGGER),) * (codecs.MAX_CHILDREN + 1))))


@pytest.mark.parametrize("value", [None, True, "text", object(), [PEERS[0]], 1j, np.array(["x"])])
def test_what_does_not_travel(value: object) -> None:
    with pytest.raises(NotWireEligibleError):
        encode_value(value)


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (256, types.SCALAR_U8),
        (-1, types.SCALAR_U8),
        (1.5, types.SCALAR_U8),
        (2**31, types.SCALAR_I32),
        (1e300, types.SCALAR_F32),
        (1e6, types.SCALAR_F16),
        ("x", types.SCALAR_F64),
        (-1, types.WIRE_REQ_ID),
        (2**64, types.WIRE_REQ_ID),
        (b"x", types.PEER_ID),
        (b"x", types.TRIGGER),
        (7, types.BYTES),
        ((b"x",), types.ADDRESS_VEC),
        (PEERS, types.COMPOSITE),
    ],
)
def test_a_value_that_is_not_of_its_type(value: object, node: TypeNode) -> None:
    with pytest.raises(NotWireEligibleError):
        encode_value(value, node.wire_hash)


def test_an_unknown_hash() -> None:
    with pytest.raises(NotWireEligibleError):
        encode_value(b"x", 0xDEAD)
    with pytest.raises(WireReceiveError) as caught:
        decode_value(0xDEAD, b"x")
    assert caught.value.kind is WireReceiveErrorKind.UnknownTypeHash


def test_the_budget_of_a_fill() -> None:
    limit = EDGE_CAPS.fill_bytes
    for size in (limit - 1, limit):
        payload = encode_value(bytes(size - 3))[1]
        assert len(payload) == size
        assert decode_value(0x0B, payload, EDGE_CAPS) == bytes(size - 3)
    too_large = encode_value(bytes(limit - 2))[1]
    assert len(too_large) == limit + 1
    with pytest.raises(WireReceiveError) as caught:
        decode_value(0x0B, too_large, EDGE_CAPS)
    assert caught.value.kind is WireReceiveErrorKind.BudgetExceeded
    raised = dataclasses.replace(EDGE_CAPS, site_fill_bytes={1: limit + 1})
    assert decode_value(0x0B, too_large, raised) == bytes(limit - 2)


BUILT_IN = sorted({node.wire_hash for node in types.REGISTRY if node.wire_hash is not None})


@given(st.sampled_from(BUILT_IN), st.binary(max_size=60))
def test_noise_gives_a_value_or_a_typed_error(type_hash: int, payload: bytes) -> None:
    try:
        decode_value(type_hash, payload)
    except WireReceiveError as error:
        assert error.kind in (
            WireReceiveErrorKind.DecodeFailed,
            WireReceiveErrorKind.TypeMismatch,
            WireReceiveErrorKind.UnknownTypeHash,
        )


SAMPLES = [encode_value(value, node.wire_hash) for value, node, _ in UNTYPED + TYPED] + [
    encode_value(np.arange(6, dtype=np.float32)),
    encode_value(nested(3)),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_truncated_or_lengthened_anywhere(sample: tuple[int, bytes]) -> None:
    type_hash, payload = sample
    for cut in [*(payload[:end] for end in range(len(payload))), payload + b"\x00"]:
        with pytest.raises(WireReceiveError):
            decode_value(type_hash, cut)


@dataclasses.dataclass(frozen=True)
class Reading:
    celsius: int


@pytest.fixture
def reading() -> Iterator[TypeNode]:
    node = register_type("Reading")
    yield node
    forget_codec(node)


def test_a_registered_type_travels(reading: TypeNode) -> None:
    def encode(value: Reading) -> bytes:
        return value.celsius.to_bytes(2, "big")

    def decode(payload: bytes | bytearray | memoryview) -> Reading:
        if len(payload) != 2:
            raise ValueError("two bytes")
        return Reading(int.from_bytes(payload, "big"))

    register_codec(reading, encode, decode, Reading)
    register_codec(reading, encode, decode, Reading)  # once more is fine
    assert encode_value(Reading(21)) == (reading.wire_hash, b"\x00\x15")
    assert decode_value(reading.wire_hash or 0, b"\x00\x15") == Reading(21)
    with pytest.raises(WireReceiveError) as caught:
        decode_value(reading.wire_hash or 0, b"\x00")
    assert caught.value.kind is WireReceiveErrorKind.DecodeFailed
    with pytest.raises(NotWireEligibleError):
        register_codec(reading, lambda value: b"", decode)


def test_a_module_that_is_imported_again_gives_its_type_its_codec_again(tmp_path: Path) -> None:
    file = tmp_path / "points.py"
    file.write_text(
        "from bb_edge.extend import register_codec, register_type\n"
        "class Point:\n"
        "    pass\n"
        "register_codec(register_type('again.Point'), lambda p: b'1', lambda data: Point(), Point)\n"
    )
    first, second = runpy.run_path(str(file)), runpy.run_path(str(file))
    node = types.by_id("again.Point")
    assert node is not None
    try:
        assert python_type_of(node) is second["Point"]
        assert type(decode_value(node.wire_hash or 0, b"1")) is second["Point"]
        assert encode_value(second["Point"]()) == (node.wire_hash, b"1")
        with pytest.raises(NotWireEligibleError):  # its class is gone
            encode_value(first["Point"]())
    finally:
        forget_codec(node)


def test_a_type_whose_codec_is_forgotten_gets_another(reading: TypeNode) -> None:
    register_codec(reading, lambda value: b"1", lambda payload: Reading(1), Reading)
    forget_codec(types.BYTES)  # built-in ones stay
    forget_codec(reading)
    forget_codec(reading)  # once more is fine
    with pytest.raises(NotWireEligibleError):
        encode_value(Reading(1))
    register_codec(reading, lambda value: b"2", lambda payload: Reading(2))
    assert encode_value(Reading(7), reading.wire_hash) == (reading.wire_hash, b"2")
    assert python_type_of(reading) is None, "the class went with the first codec"
    assert encode_value(b"x", types.BYTES.wire_hash)[1]


def test_a_codec_needs_a_wire_hash_and_a_free_type() -> None:
    for node in (types.TIMESTAMP, types.TENSOR, types.TENSOR_F32, types.BYTES, types.COMPOSITE):
        with pytest.raises(NotWireEligibleError):
            register_codec(node, lambda value: b"", lambda payload: None)
