"""Tensors on disk and on the wire, as ONNX TensorProtos.

`to_tensor_proto` and `from_tensor_proto` go through protobuf and know every data field. `encode_tensor` and
`decode_tensor` are the wire's: they write and read `dims`, `data_type` and `raw_data` by hand, because a
protobuf parse would copy the payload, and is slow where protobuf is pure Python.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir import onnx_pb2, types, varint
from bb_edge.ir.annotated import annotate
from bb_edge.ir.errors import BBError
from bb_edge.ir.varint import encoded as _v

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import TensorProto

Array = np.ndarray[Any, np.dtype[Any]]

MAX_ARRAY_RANK = 32
"""Highest rank of a tensor in an artifact: that of NumPy 1, whatever NumPy is here."""

MAX_RANK = 8
"""Highest rank on the wire, in both directions: models have at most 5 or 6 axes, and each costs bytes."""

Pieces = tuple[int, list[bytes | memoryview]]
"""What is to be written: how many bytes they are, and the bytes in pieces, none of them copied yet.

Of a tensor the second piece is its numbers."""

MAX_METADATA = 64
"""Metadata entries of a tensor that are taken from the wire; our own tensors have two."""
_MAX_ELEMENTS = (
    1 << 48
)  # below what NumPy's sizes can count, whatever the element; far above any cap on bytes

_LITTLE = sys.byteorder == "little"


class TensorError(BBError):
    """Bytes that are not a tensor that we take, or an array whose dtype has no tensor type."""


# --- through protobuf --------------------------------------------------------------------------------------


def _elem(dtype: np.dtype[Any], elem_type: int | None) -> int:
    if elem_type is not None:
        if types.dtype_of_elem(elem_type) != dtype:
            raise TensorError(f"element type {elem_type} is not held as {dtype}", "tensor")
        return elem_type
    elem = types.elem_of_dtype(dtype)
    if elem is None:
        hint = "convert it to a number or bool dtype of native byte order"
        raise TensorError(f"no tensor type for dtype {dtype}", "tensor", hint)
    return elem


def _little(array: Array) -> Array:
    array = np.ascontiguousarray(array) if array.ndim else array
    return array if _LITTLE else array.astype(array.dtype.newbyteorder("<"))


def to_tensor_proto(array: Array) -> TensorProto:
    """Returns a TensorProto with `raw_data` of an array. TensorError for a dtype without a tensor type."""
    elem = _elem(array.dtype, None)
    return onnx_pb2.TensorProto(dims=array.shape, data_type=elem, raw_data=_little(array).tobytes())


# TensorProto.DataType and DataLocation, in numbers: the message classes are not loaded for them.
_FLOAT, _UINT8, _INT8, _UINT16, _INT16, _INT32, _INT64 = 1, 2, 3, 4, 5, 6, 7
_BOOL, _FLOAT16, _DOUBLE, _UINT32, _UINT64, _BFLOAT16 = 9, 10, 11, 12, 13, 16
_EXTERNAL = 1

_TYPED_FIELDS: dict[int, tuple[str, type[np.generic]]] = {  # element type -> (field, how it is stored)
    _FLOAT: ("float_data", np.float32),
    _DOUBLE: ("double_data", np.float64),
    _INT64: ("int64_data", np.int64),
    _UINT64: ("uint64_data", np.uint64),
    _UINT32: ("uint64_data", np.uint64),
    **dict.fromkeys(
        (_INT32, _INT16, _INT8, _UINT16, _UINT8, _BOOL, _FLOAT16, _BFLOAT16), ("int32_data", np.int32)
    ),
}


def from_tensor_proto(proto: TensorProto) -> Array:
    """Returns the read-only array of a TensorProto.

    Raises TensorError where sizes disagree, or where the data is in another file.
    """
    where = f"tensor {str(proto.name)[:80]!r}" if proto.name else "tensor"
    dtype = types.dtype_of_elem(proto.data_type)
    if dtype is None:
        raise TensorError(f"element type {proto.data_type} has no array form", where)
    if proto.data_location == _EXTERNAL or proto.HasField("segment"):
        raise TensorError("its data lies outside the file", where, "save the model with its data inside")
    shape = tuple(proto.dims)
    if len(shape) > MAX_ARRAY_RANK:
        raise TensorError(f"rank {len(shape)}, an array has {MAX_ARRAY_RANK} at most", where)
    count = _count(shape, where)
    if proto.HasField("raw_data"):
        if len(proto.raw_data) != count * dtype.itemsize:
            raise TensorError(f"{len(proto.raw_data)} bytes for {count} elements of {dtype}", where)
        return _view(proto.raw_data, 0, dtype, shape, count, where)
    field, storage = _TYPED_FIELDS[proto.data_type]
    data = getattr(proto, field)
    if len(data) != count:
        raise TensorError(f"{len(data)} values for {count} elements", where)
    stored: Array = np.fromiter(data, dtype=storage, count=count)
    narrow = np.dtype(np.uint16) if dtype == np.float16 else dtype
    if narrow == np.bool_:
        _check_range(stored, 0, 1, where)
    elif narrow != stored.dtype:
        limits = np.iinfo(narrow)
        _check_range(stored, limits.min, limits.max, where)
    array = stored.astype(narrow).view(dtype).reshape(shape)
    array.setflags(write=False)
    return array


def _check_range(stored: Array, low: int, high: int, where: str) -> None:
    if stored.size and not (stored.min() >= low and stored.max() <= high):
        raise TensorError(f"stored values beyond {low}..{high}", where)


def _count(shape: tuple[int, ...], where: str) -> int:
    """Returns the number of elements.

    NumPy refuses large dimensions even beside a zero, so the product of the others is bounded too.
    """
    count = extent = 1
    for dim in shape:
        if dim < 0:
            raise TensorError(f"dimension {dim} is negative", where)
        count *= dim
        extent *= dim or 1
        if extent > _MAX_ELEMENTS:
            raise TensorError(f"dimensions {shape[:MAX_RANK]} multiply to more than 2^48", where)
    return count


def _view(
    data: bytes | memoryview,
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    count: int,
    where: str,
) -> Array:
    """Returns a read-only array over the bytes where they are aligned, else over a copy.

    `count` is what `_count` says of the shape.
    """
    stored = dtype if _LITTLE else dtype.newbyteorder("<")
    flat: Array = np.frombuffer(data, stored, count, offset)
    if dtype == np.bool_:  # other bytes would be true to one kernel and false to the next
        _check_range(flat.view(np.uint8), 0, 1, where)
    if not _LITTLE:
        flat = flat.astype(dtype)
    elif not flat.flags.aligned:
        flat = flat.copy()
    array = flat.reshape(shape)
    # Not `flags.writeable = False`: NumPy makes a string each time, which CPython's method cache keeps.
    array.setflags(write=False)
    return array


# --- the wire ----------------------------------------------------------------------------------------------

# Tags, field number << 3 | wire type: dims = 1, data_type = 2, raw_data = 9, metadata_props = 16 (two bytes).
_DIMS, _DIMS_PACKED, _DATA_TYPE, _RAW = 0x08, 0x0A, 0x10, 0x4A
_METADATA_TAG = varint.encode(16 << 3 | 2)
_METADATA, _METADATA_2 = _METADATA_TAG


@lru_cache(maxsize=256)
def _head(dtype: np.dtype[Any], elem_type: int | None, shape: tuple[int, ...], size: int) -> bytes:
    elem = _elem(dtype, elem_type)
    dims = b"".join(b"\x08" + varint.encode(dim) for dim in shape)
    return dims + b"\x10" + varint.encode(elem) + b"\x4a" + varint.encode(size)


def encode_tensor(array: Array) -> bytes:
    """Returns the bytes that `tensor_pieces` gives in pieces."""
    return b"".join(tensor_pieces(array)[1])


def tensor_pieces(
    array: Array, metadata: Mapping[str, str] | None = None, elem_type: int | None = None
) -> Pieces:
    """Returns a serialized TensorProto: `dims`, `data_type`, `raw_data`, and the metadata if there are any.

    One of the pieces is the array itself, so that its only copy is where they are joined.

    `elem_type` says BFLOAT16 for an array that holds its bits as uint16. Raises TensorError for a dtype
    without a tensor type, and for a rank above `MAX_RANK`.
    """
    if array.ndim > MAX_RANK:
        raise TensorError(f"rank {array.ndim}, {MAX_RANK} at most on the wire", "tensor", "reshape it")
    size = array.nbytes
    head = _head(array.dtype, elem_type, array.shape, size)
    size += len(head)
    as_it_is = _LITTLE and array.flags.c_contiguous
    pieces: list[bytes | memoryview] = [head, array.data if as_it_is else _little(array).data]
    if metadata:
        for key, value in metadata.items():
            k, v = key.encode(), value.encode()
            entry = b"\x0a" + _v(len(k)) + k + b"\x12" + _v(len(v)) + v
            pieces.append(_METADATA_TAG + _v(len(entry)) + entry)
            size += len(pieces[-1])
    return size, pieces


def _number(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """Returns the varint at `offset`, which is one byte most of the time, and the offset after it."""
    if offset < len(buffer) and buffer[offset] < 0x80:
        return buffer[offset], offset + 1
    return varint.decode(buffer, offset)


def numbers_at(encoded: bytes | memoryview) -> int:
    """Returns where `raw_data` begins in what `encode_tensor` gave, in bytes; 0 in other bytes."""
    offset = 0
    try:
        while offset < len(encoded) and encoded[offset] in (_DIMS, _DATA_TYPE):
            _, offset = _number(encoded, offset + 1)
        return _number(encoded, offset + 1)[1] if encoded[offset] == _RAW else 0
    except (varint.VarintError, IndexError):
        return 0


_MAX_FORMS = 128
_FORMS: dict[int, tuple[bytes, np.dtype[Any], tuple[int, ...], int]] = {}
"""What stood before the numbers of tensors that were decoded, and what it says: dtype, shape, elements.

By the bytes of the whole tensor and the lowest byte of its first dimension: those of a program come again and
again, and so do not collide as a rule.
"""


def decode_tensor(buffer: bytes | bytearray | memoryview) -> Array:
    """Returns the read-only array of a serialized TensorProto, over the buffer itself where it is aligned.

    Raises TensorError for anything but a whole tensor of rank `MAX_RANK` at most; sizes are compared before
    anything is allocated. An array whose tensor has metadata carries them
    (`bb_edge.ir.annotated.metadata_of`).
    """
    end = len(buffer)
    form = _FORMS.get(end << 8 | buffer[1]) if end > 1 else None
    if form is not None:
        head, known_dtype, known_shape, known_count = form
        if buffer[: len(head)] == head:
            view = memoryview(buffer)
            return _view(view, len(head), known_dtype, known_shape, known_count, "tensor")
    dims: list[int] = []
    entries: list[tuple[int, int]] = []
    elem = 0
    raw_at = raw_size = -1
    offset = 0
    try:
        while offset < end:
            tag = buffer[offset]
            offset += 1
            if tag == _DIMS:
                dim, offset = _number(buffer, offset)
                dims.append(dim)
                if len(dims) > MAX_RANK:
                    raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
            elif tag == _DATA_TYPE:
                elem, offset = _number(buffer, offset)
            elif tag == _RAW:
                raw_size, offset = _number(buffer, offset)
                raw_at = offset
                offset += raw_size
            elif tag == _METADATA and offset < end and buffer[offset] == _METADATA_2:
                size, offset = _number(buffer, offset + 1)
                entries.append((offset, offset + size))
                offset += size
                if len(entries) > MAX_METADATA:
                    raise TensorError(f"more than {MAX_METADATA} metadata entries", "tensor")
            elif tag == _DIMS_PACKED:
                size, offset = _number(buffer, offset)
                stop = offset + size
                while offset < stop <= end:
                    dim, offset = _number(buffer, offset)
                    dims.append(dim)
                    if len(dims) > MAX_RANK:
                        raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
                if offset != stop:
                    raise TensorError("truncated", "tensor")
            else:
                return _decode_by_protobuf(buffer)
    except varint.VarintError:  # protobuf takes overlong ones, and knows what else is wrong
        return _decode_by_protobuf(buffer)
    if offset != end:
        raise TensorError("truncated", "tensor")
    dtype = types.dtype_of_elem(elem)
    if dtype is None:
        raise TensorError(f"element type {elem} has no array form", "tensor")
    if raw_at < 0:
        return _decode_by_protobuf(buffer)
    shape = tuple(dims)
    count = _count(shape, "tensor")
    if raw_size != count * dtype.itemsize:
        raise TensorError(f"{raw_size} bytes for {count} elements of {dtype}", "tensor")
    array = _view(memoryview(buffer), raw_at, dtype, shape, count, "tensor")
    if not entries:
        if raw_at + raw_size == end:
            if len(_FORMS) >= _MAX_FORMS:
                _FORMS.clear()
            _FORMS[end << 8 | buffer[1]] = bytes(buffer[:raw_at]), dtype, shape, count
        return array
    return annotate(array, dict(_entry(bytes(buffer[start:stop])) for start, stop in entries))


def _entry(data: bytes) -> tuple[str, str]:
    from google.protobuf.message import DecodeError

    try:
        entry = onnx_pb2.StringStringEntryProto.FromString(data)
        key, value = entry.key, entry.value
    except (DecodeError, RuntimeError, UnicodeDecodeError) as error:  # the last two: protobuf in pure Python
        raise TensorError("its metadata is damaged", "tensor") from error
    if not isinstance(key, str) or not isinstance(value, str):
        raise TensorError("metadata is not UTF-8", "tensor")
    return key, value


def _decode_by_protobuf(buffer: bytes | bytearray | memoryview) -> Array:
    """Decodes tensors of other writers: typed data fields, unknown fields, other orders."""
    proto = _parse(buffer)
    if len(proto.dims) > MAX_RANK:
        raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
    array = from_tensor_proto(proto)
    return annotate(array, tensor_metadata(buffer)) if proto.metadata_props else array


def _parse(buffer: bytes | bytearray | memoryview) -> TensorProto:
    from google.protobuf.message import DecodeError  # as the messages: not before one is wanted

    try:
        return onnx_pb2.TensorProto.FromString(bytes(buffer))
    # SystemError: protobuf 3.20; the last two: protobuf in pure Python
    except (DecodeError, SystemError, RuntimeError, UnicodeDecodeError) as error:
        raise TensorError("not a TensorProto", "tensor") from error


def tensor_metadata(buffer: bytes | bytearray | memoryview) -> dict[str, str]:
    """Returns the metadata of a serialized TensorProto. TensorError for other bytes."""
    found = {entry.key: entry.value for entry in _parse(buffer).metadata_props}
    # Some protobufs give a string that is not UTF-8 back as bytes.
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise TensorError("metadata is not UTF-8", "tensor")
    return found
