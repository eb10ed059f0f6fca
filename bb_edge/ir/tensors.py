"""Tensors on disk and on the wire: ONNX TensorProtos (semantics §1).

`to_tensor_proto` and `from_tensor_proto` go through protobuf and know every data field. `encode_tensor` and
`decode_tensor` are the wire's: they write and read `dims`, `data_type` and `raw_data` by hand, because a protobuf
parse would copy the payload, and costs a hundredfold where protobuf is pure Python.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bb_edge.ir import types, varint
from bb_edge.ir.errors import BBError
from bb_edge.ir.onnx_pb2 import TensorProto

Array = np.ndarray[Any, np.dtype[Any]]

MAX_RANK = 8
"""Highest rank that is taken from the wire."""

_LITTLE = sys.byteorder == "little"


class TensorError(BBError):
    """Bytes that are no tensor of ours, or an array that has no tensor type."""


# --- through protobuf --------------------------------------------------------------------------------------------


def _elem(array: Array) -> int:
    elem = types.elem_of_dtype(array.dtype)
    if elem is None:
        raise TensorError(f"no tensor type for dtype {array.dtype}", "tensor", "convert it to a number or bool dtype")
    return elem


def _little(array: Array) -> Array:
    array = np.ascontiguousarray(array) if array.ndim else array
    return array if _LITTLE else array.astype(array.dtype.newbyteorder("<"))


def to_tensor_proto(array: Array, name: str = "") -> TensorProto:
    """A TensorProto with `raw_data`. TensorError for a dtype that has no tensor type."""
    return TensorProto(name=name, dims=array.shape, data_type=_elem(array), raw_data=_little(array).tobytes())


_TYPED_FIELDS = {  # element type -> (field, how it is stored)
    TensorProto.FLOAT: ("float_data", np.float32),
    TensorProto.DOUBLE: ("double_data", np.float64),
    TensorProto.INT64: ("int64_data", np.int64),
    TensorProto.UINT64: ("uint64_data", np.uint64),
    TensorProto.UINT32: ("uint64_data", np.uint64),
    **dict.fromkeys(
        (
            TensorProto.INT32,
            TensorProto.INT16,
            TensorProto.INT8,
            TensorProto.UINT16,
            TensorProto.UINT8,
            TensorProto.BOOL,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
        ),
        ("int32_data", np.int32),
    ),
}


def from_tensor_proto(proto: TensorProto) -> Array:
    """The array of a TensorProto, read-only. TensorError where sizes disagree, or the data is not in it."""
    where = f"tensor {proto.name!r}" if proto.name else "tensor"
    dtype = types.dtype_of_elem(proto.data_type)
    if dtype is None:
        raise TensorError(f"element type {proto.data_type} has no array form", where)
    if proto.data_location == TensorProto.EXTERNAL or proto.HasField("segment"):
        raise TensorError("its data lies outside the file", where, "save the model with its data inside")
    shape = tuple(proto.dims)
    count = _count(shape, where)
    if proto.HasField("raw_data"):
        if len(proto.raw_data) != count * dtype.itemsize:
            raise TensorError(f"{len(proto.raw_data)} bytes for {count} elements of {dtype}", where)
        return _view(proto.raw_data, 0, dtype, shape)
    field, storage = _TYPED_FIELDS[proto.data_type]
    data = getattr(proto, field)
    if len(data) != count:
        raise TensorError(f"{len(data)} values for {count} elements", where)
    stored = np.fromiter(data, dtype=storage, count=count)
    if dtype == np.float16:
        array = stored.astype(np.uint16).view(np.float16)
    else:
        array = stored.astype(dtype)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _count(shape: tuple[int, ...], where: str) -> int:
    count = 1
    for dim in shape:
        if dim < 0:
            raise TensorError(f"dimension {dim} is negative", where)
        count *= dim
    if count > 1 << 48:
        raise TensorError(f"{count} elements", where)
    return count


def _view(data: bytes | memoryview, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """A read-only array over the bytes where they are aligned, else over a copy."""
    flat: Array = np.frombuffer(data, dtype if _LITTLE else dtype.newbyteorder("<"), _count(shape, "tensor"), offset)
    if not _LITTLE:
        flat = flat.astype(dtype)
    elif not flat.flags.aligned:
        flat = flat.copy()
    array = flat.reshape(shape)
    array.flags.writeable = False
    return array


# --- the wire ------------------------------------------------------------------------------------------------------

_DIMS, _DIMS_PACKED, _DATA_TYPE, _RAW, _METADATA = 0x08, 0x0A, 0x10, 0x4A, 0x82
_METADATA_TAG = varint.encode(16 << 3 | 2)


@lru_cache(maxsize=256)
def _head(elem: int, shape: tuple[int, ...], size: int) -> bytes:
    dims = b"".join(b"\x08" + varint.encode(dim) for dim in shape)
    return dims + b"\x10" + varint.encode(elem) + b"\x4a" + varint.encode(size)


def encode_tensor(array: Array, metadata: Mapping[str, str] | None = None) -> bytes:
    """A serialized TensorProto: `dims`, `data_type`, `raw_data`, and `metadata_props` where there are any.

    Raises TensorError for a dtype that has no tensor type.
    """
    raw = _little(array)
    parts = [_head(_elem(array), array.shape, array.nbytes), raw.tobytes()]
    for key, value in (metadata or {}).items():
        k, v = key.encode(), value.encode()
        entry = b"\x0a" + varint.encode(len(k)) + k + b"\x12" + varint.encode(len(v)) + v
        parts.append(_METADATA_TAG + varint.encode(len(entry)) + entry)
    return b"".join(parts)


def decode_tensor(buffer: bytes | bytearray | memoryview) -> Array:
    """The array of a serialized TensorProto, read-only, over the buffer itself where it is aligned.

    Raises TensorError for anything that is not a whole tensor of rank `MAX_RANK` at most; sizes are compared
    before anything is allocated.
    """
    dims: list[int] = []
    elem = 0
    raw_at = raw_size = -1
    offset, end = 0, len(buffer)
    try:
        while offset < end:
            tag = buffer[offset]
            offset += 1
            if tag == _DIMS:
                dim, offset = varint.decode(buffer, offset)
                dims.append(dim)
                if len(dims) > MAX_RANK:
                    raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
            elif tag == _DATA_TYPE:
                elem, offset = varint.decode(buffer, offset)
            elif tag == _RAW:
                raw_size, offset = varint.decode(buffer, offset)
                raw_at = offset
                offset += raw_size
            elif tag == _METADATA and offset < end and buffer[offset] == 0x01:
                size, offset = varint.decode(buffer, offset + 1)
                offset += size
            elif tag == _DIMS_PACKED:
                size, offset = varint.decode(buffer, offset)
                stop = offset + size
                while offset < stop <= end:
                    dim, offset = varint.decode(buffer, offset)
                    dims.append(dim)
                    if len(dims) > MAX_RANK:
                        raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
                if offset != stop:
                    raise TensorError("truncated", "tensor")
            else:
                return _decode_by_protobuf(buffer)
    except varint.VarintError as error:
        raise TensorError(error.what, "tensor") from error
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
    return _view(memoryview(buffer), raw_at, dtype, shape)


def _decode_by_protobuf(buffer: bytes | bytearray | memoryview) -> Array:
    """For tensors that other writers made: typed data fields, unknown fields, other orders."""
    proto = _parse(buffer)
    if len(proto.dims) > MAX_RANK:
        raise TensorError(f"a rank beyond {MAX_RANK}", "tensor")
    return from_tensor_proto(proto)


def _parse(buffer: bytes | bytearray | memoryview) -> TensorProto:
    from google.protobuf.message import DecodeError

    try:
        return TensorProto.FromString(bytes(buffer))
    except (DecodeError, RuntimeError) as error:  # RuntimeError: pure-Python protobuf on deep nesting
        raise TensorError("not a TensorProto", "tensor") from error


def tensor_metadata(buffer: bytes | bytearray | memoryview) -> dict[str, str]:
    """The metadata of a serialized TensorProto. TensorError where it is none."""
    return {entry.key: entry.value for entry in _parse(buffer).metadata_props}
