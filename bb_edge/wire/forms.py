"""The wire forms of the catalog's values other than tensors and composites: canonical CBOR, or nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.types import TypeNode
from bb_edge.ir.values import TRIGGER
from bb_edge.wire import cbor
from bb_edge.wire.cbor import Buffer, CborError

Encode = Callable[[Any], bytes]
Decode = Callable[[Buffer], object]

MAX_VECTOR = 65_536
"""Peer ids or addresses in one value; at 34 bytes each they fill half of a host's largest fill."""


def hash_of(node: TypeNode) -> int:
    """The wire hash of a type that travels."""
    assert node.wire_hash is not None, node
    return node.wire_hash


def byte_string(value: Buffer) -> bytes:
    """Bytes as a byte string of CBOR."""
    return cbor.head(2, len(value)) + value


# --- out -----------------------------------------------------------------------------------------------


def _peer_vector(value: tuple[PeerId, ...]) -> bytes:
    return cbor.head(4, len(value)) + b"".join([byte_string(peer.to_bytes()) for peer in value])


def _address_vector(value: tuple[Address, ...]) -> bytes:
    return cbor.head(4, len(value)) + b"".join([byte_string(address.to_bytes()) for address in value])


def _req_id(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"{value} is negative")
    return cbor.head(0, int(value))


def _no_bytes(value: object) -> bytes:
    if value is not TRIGGER:
        raise TypeError("not the trigger")
    return b""


def _encode_int(low: int, high: int, value: int) -> bytes:
    number = int(value)
    if not low <= number <= high or number != value:
        raise ValueError(f"{value} is not in {low} … {high}")
    return cbor.dumps(number)


def _encode_float(form: str, value: float) -> bytes:
    return cbor.dumps(struct.unpack(form, struct.pack(form, float(value)))[0])


# --- in ------------------------------------------------------------------------------------------------


def _decode_trigger(payload: Buffer) -> object:
    if len(payload):
        raise CborError(f"{len(payload)} bytes in a trigger")
    return TRIGGER


def _decode_bytes(payload: Buffer) -> bytes:
    reader = cbor.Reader(payload, 1)
    value = reader.byte_string()
    reader.done()
    return value


def _decode_req_id(payload: Buffer) -> int:
    reader = cbor.Reader(payload, 1)
    value = reader.uint()
    reader.done()
    return value


def _decode_peer_vector(payload: Buffer) -> tuple[PeerId, ...]:
    return tuple([PeerId.from_bytes(item) for item in _byte_strings(payload)])


def _decode_address_vector(payload: Buffer) -> tuple[Address, ...]:
    return tuple([Address.from_bytes(item) for item in _byte_strings(payload)])


def _byte_strings(payload: Buffer) -> list[bytes]:
    reader = cbor.Reader(payload, 1 + MAX_VECTOR)
    strings = [reader.byte_string() for _ in range(reader.array())]
    reader.done()
    return strings


def _decode_float(form: str, payload: Buffer) -> float:
    value = cbor.loads(payload, 1, 0)
    if not isinstance(value, float):
        raise CborError(f"expected a float, got {value!r}")
    packed = struct.pack(form, value)  # OverflowError where it is too large
    rounded: float = struct.unpack(form, packed)[0]
    return rounded


def _decode_int(low: int, high: int, payload: Buffer) -> int:
    value = cbor.loads(payload, 1, 0)
    if type(value) is not int or not low <= value <= high:
        raise CborError(f"expected an integer of {low} … {high}, got {value!r}")
    return value


_I32 = (-(1 << 31), (1 << 31) - 1)
FORMS: Final[dict[int, tuple[Encode, Decode]]] = {
    hash_of(types.TRIGGER): (_no_bytes, _decode_trigger),
    hash_of(types.BYTES): (byte_string, _decode_bytes),
    hash_of(types.PEER_ID): (
        lambda peer: byte_string(peer.to_bytes()),
        lambda data: PeerId.from_bytes(_decode_bytes(data)),
    ),
    hash_of(types.WIRE_REQ_ID): (_req_id, _decode_req_id),
    hash_of(types.PEER_ID_VEC): (_peer_vector, _decode_peer_vector),
    hash_of(types.MULTIADDRESS): (
        lambda a: byte_string(a.to_bytes()),
        lambda data: Address.from_bytes(_decode_bytes(data)),
    ),
    hash_of(types.ADDRESS_VEC): (_address_vector, _decode_address_vector),
    hash_of(types.SCALAR_F32): (partial(_encode_float, "<f"), partial(_decode_float, "<f")),
    hash_of(types.SCALAR_F64): (partial(_encode_float, "<d"), partial(_decode_float, "<d")),
    hash_of(types.SCALAR_F16): (partial(_encode_float, "<e"), partial(_decode_float, "<e")),
    hash_of(types.SCALAR_U8): (partial(_encode_int, 0, 255), partial(_decode_int, 0, 255)),
    hash_of(types.SCALAR_I32): (partial(_encode_int, *_I32), partial(_decode_int, *_I32)),
}
"""How a value of a type becomes bytes, and bytes become a value."""
