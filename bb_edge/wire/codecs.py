"""Typed values and their wire forms.

A tensor is a serialized TensorProto, a trigger is empty, everything else is canonical CBOR; a composite is a
CBOR array of `(type_hash, bytes)` children. The type hash travels beside the payload, in
`SlotFill.type_hash`.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.address import Address, AddressError
from bb_edge.ir.annotated import metadata_of
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.ir.tensors import Pieces, TensorError, decode_tensor, tensor_pieces
from bb_edge.ir.types import TypeNode
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire import cbor
from bb_edge.wire.caps import EnvelopeCaps
from bb_edge.wire.cbor import Buffer, CborError
from bb_edge.wire.forms import FORMS, Decode, Encode, byte_string, hash_of

MAX_COMPOSITE_DEPTH = 4
"""How deep composites may nest in composites: programs nest once or twice, and decoding recurses."""

MAX_CHILDREN = 256
"""Children of one composite: as many as an envelope of a host may have fills."""


class NotWireEligibleError(BBError):
    """A value that does not travel: its type has no wire hash, or it is not of the type that was named."""


class WireReceiveErrorKind(enum.Enum):
    """Why a fill could not be delivered; the other fills of its envelope still are."""

    TypeMismatch = "another type than the site takes"
    ShapeMismatch = "another shape than the site takes"
    UnknownTypeHash = "a type that this node does not know"
    DecodeFailed = "bytes that are not a value of the type"
    AllocationFailed = "no memory for the value"
    BudgetExceeded = "more bytes than the budget leaves"
    BackendMaterializeFailed = "a tensor that the backend cannot take"


class WireReceiveError(BBError):
    """A fill that failed: its sender is at fault, or the two sides have different types installed."""

    def __init__(self, kind: WireReceiveErrorKind, detail: str = "", where: str = "") -> None:
        super().__init__(f"{kind.value}: {detail}" if detail else kind.value, where or "fill")
        self.kind = kind
        self.detail = detail


# --- the registry --------------------------------------------------------------------------------------

_ENCODERS: dict[int, Encode] = {}
_DECODERS: dict[int, Decode] = {}
_HASH_OF_CLASS: dict[type, int] = {}


def register_codec(node: TypeNode, encode: Encode, decode: Decode, python_type: type | None = None) -> None:
    """Lets values of a registered type travel.

    `encode(value)` returns bytes. `decode(buffer)` returns the value; it may raise ValueError, TypeError,
    CborError or WireReceiveError on other bytes. Instances of `python_type`, where it is given, count as
    values of the type wherever no type is named. A module that is imported again gives its types their codecs
    again. Raises NotWireEligibleError for a type without wire hash, or one that has another codec already.
    """
    wire_hash = node.wire_hash
    if wire_hash is None:
        raise NotWireEligibleError(
            f"{node} has no wire hash", "register_codec", "register the type with register_type"
        )
    known = _ENCODERS.get(wire_hash, encode)
    if (known is not encode and not _same_place(known, encode)) or 0 < wire_hash < 0x1000:
        raise NotWireEligibleError(f"{node} has a codec already", "register_codec")
    for name, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise NotWireEligibleError(
                f"{name} of {node} is {function!r}, which cannot be called",
                "register_codec",
                "give a function",
            )
    if python_type is not None and not isinstance(python_type, type):
        raise NotWireEligibleError(
            f"python_type of {node} is {python_type!r}", "register_codec", "give a class"
        )
    if python_type is not None and _HASH_OF_CLASS.get(python_type, wire_hash) != wire_hash:
        raise NotWireEligibleError(
            f"{python_type.__name__} is the class of another type", "register_codec", "give another class"
        )
    if known is not encode:
        forget_codec(node)  # with the class that the module had before
    _ENCODERS[wire_hash] = encode
    _DECODERS[wire_hash] = decode
    if python_type is not None:
        _HASH_OF_CLASS[python_type] = wire_hash


def _same_place(known: Encode, encode: Encode) -> bool:
    """Whether both come from the same line of a file, which was then run twice."""
    first, second = getattr(known, "__code__", None), getattr(encode, "__code__", None)
    return (
        first is not None
        and second is not None
        and (first.co_filename, first.co_firstlineno) == (second.co_filename, second.co_firstlineno)
    )


def forget_codec(node: TypeNode) -> None:
    """Takes the codec of a registered type away, so that the type can get another one.

    For notebooks and tests that define a class again. A type without a codec is fine.
    """
    if node.wire_hash is None or node.wire_hash < 0x1000:
        return
    _ENCODERS.pop(node.wire_hash, None)
    _DECODERS.pop(node.wire_hash, None)
    for kind in [kind for kind, wire_hash in _HASH_OF_CLASS.items() if wire_hash == node.wire_hash]:
        del _HASH_OF_CLASS[kind]


def python_type_of(node: TypeNode) -> type | None:
    """Returns the class whose instances count as values of a type; None where there is none."""
    return next((kind for kind, wire_hash in _HASH_OF_CLASS.items() if wire_hash == node.wire_hash), None)


_TRIGGER = hash_of(types.TRIGGER)
BYTES_HASH = hash_of(types.BYTES)
_PEER_ID = hash_of(types.PEER_ID)
_PEER_ID_VEC = hash_of(types.PEER_ID_VEC)
_MULTIADDRESS = hash_of(types.MULTIADDRESS)
_ADDRESS_VEC = hash_of(types.ADDRESS_VEC)
_COMPOSITE = hash_of(types.COMPOSITE)
_SCALAR_F64 = hash_of(types.SCALAR_F64)
_SCALAR_I32 = hash_of(types.SCALAR_I32)
_BF16 = hash_of(types.TENSOR_BF16)

_HASH_OF_DTYPE: dict[np.dtype[Any], int] = {}
_DTYPE_OF_HASH: dict[int, np.dtype[Any]] = {}
for _node in types.REGISTRY:
    if _node.elem_type is not None and _node.wire_hash is not None:
        _dtype = types.dtype_of_elem(_node.elem_type)
        assert _dtype is not None, _node
        _DTYPE_OF_HASH[_node.wire_hash] = _dtype
        if (
            _node is not types.TENSOR_BF16
        ):  # NumPy has no bfloat16: a uint16 array is U16 unless its type is named
            _HASH_OF_DTYPE[_dtype] = _node.wire_hash


def tensor_dtype(type_hash: int) -> np.dtype[Any] | None:
    """Returns the dtype of arrays whose wire form is that of their tensor alone; None for other types.

    Whoever knows the type of many values beforehand can then call `tensor_pieces` and `decode_tensor`
    itself. Of BF16 the element type must be named, so it is not among them.
    """
    return None if type_hash == _BF16 else _DTYPE_OF_HASH.get(type_hash)


# --- out -----------------------------------------------------------------------------------------------


def wire_type_hash(value: object) -> int:
    """Returns the wire hash of a value whose type nobody named.

    A Python float counts as Scalar<F64>, an int as Scalar<I32>, an empty tuple as PeerIdVec, a uint16 array
    as U16. Name the type where that is wrong. Raises NotWireEligibleError for values that do not travel.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        wire_hash = _HASH_OF_DTYPE.get(value.dtype)
        if wire_hash is None:
            wire_hash = _HASH_OF_DTYPE.get(value.dtype.newbyteorder("="))
        if wire_hash is not None:
            return wire_hash
        raise NotWireEligibleError(
            f"an array of {value.dtype}", "wire", "convert it to a number or bool dtype"
        )
    wire_hash = _HASH_OF_CLASS.get(type(value))
    if wire_hash is not None:
        return wire_hash
    if isinstance(value, tuple):
        return _ADDRESS_VEC if value and isinstance(value[0], Address) else _PEER_ID_VEC
    raise NotWireEligibleError(f"a {type(value).__name__}", "wire", "register a codec for its type")


def encode_value(value: object, type_hash: int | None = None) -> tuple[int, bytes]:
    """Returns (wire hash, payload) of a value.

    `type_hash` names its type; without one, `wire_type_hash` finds it. Raises NotWireEligibleError for a
    value that does not travel, or that is not of the type named.
    """
    type_hash, (_, pieces) = encode_pieces(value, type_hash)
    return type_hash, b"".join(pieces)


def encode_pieces(value: object, type_hash: int | None = None) -> tuple[int, Pieces]:
    """Returns what `encode_value` does, with the payload in pieces: a tensor's numbers are not copied yet."""
    if type_hash is None or type_hash == 0:
        type_hash = wire_type_hash(value)
    if type_hash in types.TENSOR_HASHES:
        return type_hash, _tensor(value, type_hash)
    encode = _ENCODERS.get(type_hash)
    if encode is None:
        raise NotWireEligibleError(
            f"no codec for type hash {type_hash:#x}", "wire", "register one with register_codec"
        )
    try:
        data: object = encode(value)
    except NotWireEligibleError:
        raise
    # The border to registered codecs: whatever they raise on a value that they don't take.
    except Exception as error:
        kind = "" if type_hash < 0x1000 else f"{type(error).__name__}: "  # what ours say is enough
        what = f"expected {types.by_wire_hash(type_hash)}, got {type(value).__name__}: {kind}{error}"
        raise NotWireEligibleError(what, "wire") from error
    if isinstance(data, bytearray | memoryview):
        data = bytes(data)
    if type(data) is bytes:
        return type_hash, (len(data), [data])
    raise NotWireEligibleError(
        f"encode of {types.by_wire_hash(type_hash)} returned a {type(data).__name__}, expected bytes",
        "wire",
        "let the codec that register_codec was given return bytes",
    )


def _tensor(value: object, type_hash: int) -> Pieces:
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype != _DTYPE_OF_HASH[type_hash]:
        raise NotWireEligibleError(
            f"expected {types.by_wire_hash(type_hash)}, got an array of {array.dtype}", "wire"
        )
    try:
        metadata = None if type(value) is np.ndarray else metadata_of(value)
        return tensor_pieces(array, metadata, types.TENSOR_BF16.elem_type if type_hash == _BF16 else None)
    except TensorError as error:
        raise NotWireEligibleError(error.what, "wire", error.hint) from error


def _composite(value: Composite) -> bytes:
    parts = [cbor.head(4, len(value.children))]
    for type_hash, child in value.children:
        wire_hash, payload = encode_value(child, type_hash)
        parts += (b"\x82", cbor.head(0, wire_hash), byte_string(payload))
    return b"".join(parts)


# --- in ------------------------------------------------------------------------------------------------


def decode_value(type_hash: int, payload: Buffer, caps: EnvelopeCaps | None = None) -> object:
    """Returns the value of a fill; tensors are read-only, and views of the payload where that is aligned.

    Raises WireReceiveError and nothing else: `BudgetExceeded` for a payload above what `caps` let a fill be,
    `UnknownTypeHash`, `AllocationFailed`, or `DecodeFailed`.
    """
    if (
        caps is not None
        and len(payload) > caps.fill_bytes
        and len(payload) > max(caps.site_fill_bytes.values(), default=0)
    ):
        raise WireReceiveError(WireReceiveErrorKind.BudgetExceeded, f"{len(payload)} bytes")
    return _decode(type_hash, payload, MAX_COMPOSITE_DEPTH)


def _decode(type_hash: int, payload: Buffer, depth: int) -> object:
    try:
        if type_hash in types.TENSOR_HASHES:
            array = decode_tensor(payload)
            if array.dtype != _DTYPE_OF_HASH[type_hash]:
                raise WireReceiveError(
                    WireReceiveErrorKind.TypeMismatch,
                    f"an array of {array.dtype} under the hash of {types.by_wire_hash(type_hash)}",
                )
            return array
        if type_hash == _COMPOSITE:
            return _decode_composite(payload, depth)
        decode = _DECODERS.get(type_hash)
        if decode is None:
            raise WireReceiveError(WireReceiveErrorKind.UnknownTypeHash, f"{type_hash:#x}")
        value = decode(payload)
        if value is None:
            raise WireReceiveError(
                WireReceiveErrorKind.DecodeFailed, f"decode of {types.by_wire_hash(type_hash)} returned None"
            )
        return value
    except WireReceiveError:
        raise
    except MemoryError as error:
        raise WireReceiveError(WireReceiveErrorKind.AllocationFailed, f"{len(payload)} bytes") from error
    except (TensorError, CborError, PeerIdError, AddressError) as error:
        raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, str(error)) from error
    # The border to registered codecs: whatever they raise on bytes that they don't take.
    except Exception as error:
        raise WireReceiveError(
            WireReceiveErrorKind.DecodeFailed, f"{type(error).__name__}: {error}"
        ) from error


def _decode_composite(payload: Buffer, depth: int) -> Composite:
    if depth < 1:
        raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, "composites nested too deeply")
    reader = cbor.Reader(payload, 1 + 3 * MAX_CHILDREN)
    children = []
    for _ in range(reader.array()):
        if reader.array() != 2:
            raise CborError("a child is not a pair")
        child_hash = reader.uint()
        children.append((child_hash, _decode(child_hash, reader.byte_string(), depth - 1)))
    reader.done()
    return Composite(tuple(children))


for _type_hash, (_encode, _decode_one) in FORMS.items():
    _ENCODERS[_type_hash] = _encode
    _DECODERS[_type_hash] = _decode_one
_ENCODERS[_COMPOSITE] = _composite

_HASH_OF_CLASS.update(
    {
        type(TRIGGER): _TRIGGER,
        bytes: BYTES_HASH,
        bytearray: BYTES_HASH,
        memoryview: BYTES_HASH,
        PeerId: _PEER_ID,
        Address: _MULTIADDRESS,
        Composite: _COMPOSITE,
        float: _SCALAR_F64,
        int: _SCALAR_I32,
    }
)
