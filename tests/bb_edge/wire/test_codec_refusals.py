"""What codecs say of values and bytes that they refuse, and where exactly their bounds lie."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import NoReturn

import cbor2
import numpy as np
import pytest

from bb_edge.ir import types
from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.types import TypeNode, register_type
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire import codecs
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import (
    MAX_CHILDREN,
    NotWireEligibleError,
    WireReceiveError,
    WireReceiveErrorKind,
    decode_value,
    encode_value,
    forget_codec,
    register_codec,
    wire_type_hash,
)
from bb_edge.wire.forms import MAX_VECTOR, hash_of

PEER = PeerId.from_name("a")
Kind = WireReceiveErrorKind


class Celsius:
    """A user's value."""

    def __init__(self, degrees: int) -> None:
        self.degrees = degrees


class Kelvin(Celsius):
    """Another."""


@pytest.fixture
def celsius() -> Iterator[TypeNode]:
    node = register_type("test.Celsius")
    yield node
    forget_codec(node)


def write(value: Celsius) -> bytes:
    return bytes((value.degrees,))


def read(data: bytes | bytearray | memoryview) -> Celsius:
    return Celsius(data[0])


# --- out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "wire: a object (register a codec for its type)"),
        (np.zeros(2, "c8"), "wire: an array of complex64 (convert it to a number or bool dtype)"),
        (
            np.zeros((1,) * 9, np.float32),
            "wire: rank 9, 8 at most on the wire (reshape it)",
        ),
    ],
)
def test_a_value_that_does_not_travel_is_named(value: object, said: str) -> None:
    with pytest.raises(NotWireEligibleError) as caught:
        encode_value(value)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("value", "node", "said"),
    [
        (np.zeros(2, np.float64), types.TENSOR_F32, "expected Tensor<F32>, got an array of float64"),
        (256, types.SCALAR_U8, "expected Scalar<U8>, got int: 256 is not in 0 … 255"),
        (-1, types.SCALAR_U8, "expected Scalar<U8>, got int: -1 is not in 0 … 255"),
        (1.5, types.SCALAR_U8, "expected Scalar<U8>, got float: 1.5 is not in 0 … 255"),
        (
            2**31,
            types.SCALAR_I32,
            "expected Scalar<I32>, got int: 2147483648 is not in -2147483648 … 2147483647",
        ),
        (
            -(2**31) - 1,
            types.SCALAR_I32,
            "expected Scalar<I32>, got int: -2147483649 is not in -2147483648 … 2147483647",
        ),
        (-1, types.WIRE_REQ_ID, f"expected {types.WIRE_REQ_ID}, got int: -1 is negative"),
        (b"x", types.TRIGGER, f"expected {types.TRIGGER}, got bytes: not the trigger"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named(value: object, node: TypeNode, said: str) -> None:
    with pytest.raises(NotWireEligibleError) as caught:
        encode_value(value, hash_of(node))
    assert str(caught.value) == f"wire: {said}"


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (0, types.SCALAR_U8),
        (255, types.SCALAR_U8),
        (-(2**31), types.SCALAR_I32),
        (2**31 - 1, types.SCALAR_I32),
        (0, types.WIRE_REQ_ID),
    ],
)
def test_the_first_and_last_number_of_a_type(value: int, node: TypeNode) -> None:
    assert encode_value(value, hash_of(node)) == (hash_of(node), cbor2.dumps(value))
    assert decode_value(hash_of(node), cbor2.dumps(value)) == value


def test_a_hash_without_a_codec_is_named() -> None:
    with pytest.raises(NotWireEligibleError) as caught:
        encode_value(b"x", 0xDEAD)
    assert str(caught.value) == "wire: no codec for type hash 0xdead (register one with register_codec)"


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_registered_codec_may_give_any_buffer(celsius: TypeNode, kind: type) -> None:
    register_codec(celsius, lambda value: kind(write(value)), read)
    _, data = encode_value(Celsius(7), hash_of(celsius))
    assert type(data) is bytes and data == b"\x07"


def test_a_registered_codec_that_refuses_a_value_is_quoted_and_not_wrapped(celsius: TypeNode) -> None:
    def refuse(value: Celsius) -> bytes:
        raise NotWireEligibleError("too cold to travel", "wire", "warm it up")

    register_codec(celsius, refuse, read)
    with pytest.raises(NotWireEligibleError) as caught:
        encode_value(Celsius(7), hash_of(celsius))
    assert str(caught.value) == "wire: too cold to travel (warm it up)"


def test_a_float_is_rounded_to_its_type_before_it_leaves() -> None:
    for node, value in ((types.SCALAR_F16, 0.1), (types.SCALAR_F32, 0.1)):
        dtype = np.float16 if node is types.SCALAR_F16 else np.float32
        assert cbor2.loads(encode_value(value, hash_of(node))[1]) == float(dtype(value))


def test_a_float_beyond_its_type_is_refused() -> None:
    with pytest.raises(WireReceiveError, match="OverflowError"):
        decode_value(hash_of(types.SCALAR_F16), cbor2.dumps(1e6))


def test_a_float_is_rounded_to_its_type_when_it_arrives() -> None:
    for node, dtype in ((types.SCALAR_F16, np.float16), (types.SCALAR_F32, np.float32)):
        assert decode_value(hash_of(node), cbor2.dumps(0.1)) == float(dtype(0.1)) != 0.1


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u8"])
def test_arrays_of_another_byte_order_travel_as_the_numbers_that_they_are(dtype: str) -> None:
    array = np.arange(5).astype(dtype)
    type_hash, payload = encode_value(array)
    assert (type_hash, payload) == encode_value(array.astype(array.dtype.newbyteorder("=")))
    assert np.array_equal(decode_value(type_hash, payload), array)  # type: ignore[arg-type]


def test_a_bfloat16_differs_from_its_bits_by_the_element_type_alone() -> None:
    array = np.frombuffer(b"\x10\x04\x4a\x10\x04\x4a", np.uint16)  # what the field before the data looks like
    found = encode_value(array, hash_of(types.TENSOR_BF16))
    proto = TensorProto.FromString(encode_value(array)[1])
    assert types.TENSOR_BF16.elem_type is not None
    proto.data_type = types.TENSOR_BF16.elem_type
    assert found == (hash_of(types.TENSOR_BF16), proto.SerializeToString())
    assert np.array_equal(decode_value(*found), array)  # type: ignore[arg-type]


def test_a_child_is_of_the_type_that_its_composite_names() -> None:
    type_hash, payload = encode_value(Composite(((hash_of(types.SCALAR_F32), 0.5),)))
    assert cbor2.loads(payload) == [[hash_of(types.SCALAR_F32), cbor2.dumps(0.5, canonical=True)]]
    assert decode_value(type_hash, payload) == Composite(((hash_of(types.SCALAR_F32), 0.5),))


def test_what_an_array_says_about_itself_travels() -> None:
    array = annotate(np.zeros(2, np.float32), {"quant": "7"})
    found = decode_value(*encode_value(array))
    assert dict(metadata_of(found)) == {"quant": "7"}


def test_a_type_hash_of_zero_is_worked_out() -> None:
    assert encode_value(b"x", 0) == encode_value(b"x")


# --- registration -------------------------------------------------------------------------------------


def test_a_type_without_a_class_travels_where_it_is_named(celsius: TypeNode) -> None:
    register_codec(celsius, write, read)
    assert encode_value(Celsius(7), hash_of(celsius)) == (hash_of(celsius), b"\x07")
    with pytest.raises(NotWireEligibleError):
        wire_type_hash(Celsius(7))


def test_a_class_stands_for_one_type(celsius: TypeNode) -> None:
    register_codec(celsius, write, read, Celsius)
    other = register_type("test.Kelvin")
    with pytest.raises(NotWireEligibleError) as caught:
        register_codec(other, write, read, Celsius)
    assert str(caught.value) == "register_codec: Celsius is the class of another type (give another class)"
    with pytest.raises(NotWireEligibleError):
        encode_value(Celsius(1), hash_of(other))  # nothing was kept
    register_codec(celsius, write, read, Kelvin)  # two classes may be of one type
    assert wire_type_hash(Kelvin(1)) == wire_type_hash(Celsius(1)) == hash_of(celsius)


@pytest.mark.parametrize("error", [struct.error("8 bytes"), KeyError("unit"), RuntimeError("odd")])
def test_whatever_a_registered_codec_raises_is_a_refusal(celsius: TypeNode, error: Exception) -> None:
    def raises(_: object) -> NoReturn:
        raise error

    register_codec(celsius, raises, raises)
    with pytest.raises(NotWireEligibleError, match="Celsius"):
        encode_value(Celsius(7), hash_of(celsius))
    with pytest.raises(WireReceiveError) as caught:
        decode_value(hash_of(celsius), b"\x07")
    assert caught.value.kind is WireReceiveErrorKind.DecodeFailed
    assert type(error).__name__ in str(caught.value)


def test_refused_codecs_say_why(celsius: TypeNode) -> None:
    register_codec(celsius, write, read)
    for node, said in (
        (types.TIMESTAMP, f"{types.TIMESTAMP} has no wire hash (register the type with register_type)"),
        (celsius, f"{celsius} has a codec already"),
        (types.TENSOR_F32, f"{types.TENSOR_F32} has a codec already"),
    ):
        with pytest.raises(NotWireEligibleError) as caught:
            register_codec(node, lambda value: b"", read)
        assert str(caught.value) == f"register_codec: {said}"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (MemoryError(), Kind.AllocationFailed, "fill: no memory for the value: 3 bytes"),
        (
            ValueError("two"),
            Kind.DecodeFailed,
            "fill: bytes that are not a value of the type: ValueError: two",
        ),
        (KeyError("k"), Kind.DecodeFailed, "fill: bytes that are not a value of the type: KeyError: 'k'"),
    ],
)
def test_what_a_codec_raises_is_told_as_the_senders_fault(
    celsius: TypeNode, error: Exception, kind: WireReceiveErrorKind, said: str
) -> None:
    def fail(data: bytes | bytearray | memoryview) -> object:
        raise error

    register_codec(celsius, write, fail)
    with pytest.raises(WireReceiveError) as caught:
        decode_value(hash_of(celsius), b"abc")
    assert (caught.value.kind, str(caught.value)) == (kind, said)


# --- in -----------------------------------------------------------------------------------------------

NO_VALUE = "bytes that are not a value of the type: "


@pytest.mark.parametrize(
    ("node", "data", "said"),
    [
        (types.TRIGGER, b"ab", f"{NO_VALUE}CBOR: 2 bytes in a trigger"),
        (types.BYTES, b"\x41a\x00", f"{NO_VALUE}CBOR: 1 bytes after the value"),
        (types.WIRE_REQ_ID, b"\x05\x00", f"{NO_VALUE}CBOR: 1 bytes after the value"),
        (types.PEER_ID_VEC, b"\x80\x00", f"{NO_VALUE}CBOR: 1 bytes after the value"),
        (types.COMPOSITE, b"\x80\x00", f"{NO_VALUE}CBOR: 1 bytes after the value"),
        (types.COMPOSITE, b"\x81\x81\x0b", f"{NO_VALUE}CBOR: a child is not a pair"),
        (types.COMPOSITE, b"\x81\x83\x0b\x41\x40\x00", f"{NO_VALUE}CBOR: a child is not a pair"),
        (types.SCALAR_F32, b"\x05", f"{NO_VALUE}CBOR: expected a float, got 5"),
        (types.SCALAR_F32, b"\xf9\x3c\x00\x00", f"{NO_VALUE}CBOR: 1 bytes after the value"),
        (types.SCALAR_F64, b"\x81\xf9\x00\x00", f"{NO_VALUE}CBOR: nested too deeply"),
        (types.SCALAR_U8, b"\x19\x01\x00", f"{NO_VALUE}CBOR: expected an integer of 0 … 255, got 256"),
        (types.SCALAR_U8, b"\x20", f"{NO_VALUE}CBOR: expected an integer of 0 … 255, got -1"),
        (types.SCALAR_U8, b"\xf5", f"{NO_VALUE}CBOR: expected an integer of 0 … 255, got True"),
        (types.SCALAR_U8, b"\x80", f"{NO_VALUE}CBOR: nested too deeply"),
        (
            types.TENSOR_F64,
            encode_value(np.zeros(1, np.float32))[1],
            "another type than the site takes: an array of float32 under the hash of Tensor<F64>",
        ),
    ],
)
def test_bytes_that_are_refused_are_named(node: TypeNode, data: bytes, said: str) -> None:
    with pytest.raises(WireReceiveError) as caught:
        decode_value(hash_of(node), data)
    assert str(caught.value) == f"fill: {said}"


def test_an_unknown_hash_and_too_many_bytes_are_named() -> None:
    with pytest.raises(WireReceiveError) as caught:
        decode_value(0xDEAD, b"x")
    assert str(caught.value) == "fill: a type that this node does not know: 0xdead"
    caps = dataclasses.replace(EDGE_CAPS, fill_bytes=4, site_fill_bytes={1: 6, 2: 5})
    for size, fits in ((4, True), (5, True), (6, True), (7, False)):
        data = bytes((0x40 | (size - 1),)) + bytes(size - 1)
        if fits:
            assert decode_value(hash_of(types.BYTES), data, caps) == bytes(size - 1)
            continue
        with pytest.raises(WireReceiveError) as caught:
            decode_value(hash_of(types.BYTES), data, caps)
        assert caught.value.kind is Kind.BudgetExceeded
        assert str(caught.value) == "fill: more bytes than the budget leaves: 7 bytes"


def test_composites_too_deep_and_too_wide_are_named() -> None:
    value = Composite(((hash_of(types.BYTES), b""),))
    for _ in range(codecs.MAX_COMPOSITE_DEPTH):
        value = Composite(((hash_of(types.COMPOSITE), value),))
    with pytest.raises(WireReceiveError, match=r": composites nested too deeply$"):
        decode_value(*encode_value(value))
    wide = Composite(((hash_of(types.TRIGGER), TRIGGER),) * (MAX_CHILDREN + 1))
    with pytest.raises(WireReceiveError, match="too many items"):
        decode_value(*encode_value(wide))


def test_vectors_at_their_bound() -> None:
    peers = (PEER,) * MAX_VECTOR
    assert decode_value(*encode_value(peers)) == peers
    with pytest.raises(WireReceiveError, match="too many items"):
        decode_value(*encode_value((*peers, PEER)))


def test_an_error_tells_its_kind_its_detail_and_its_place() -> None:
    error = WireReceiveError(Kind.DecodeFailed, "two bytes", "site 7")
    assert (error.kind, error.detail, error.where) == (Kind.DecodeFailed, "two bytes", "site 7")
    bare = WireReceiveError(Kind.DecodeFailed)
    assert (bare.detail, str(bare)) == ("", "fill: bytes that are not a value of the type")
