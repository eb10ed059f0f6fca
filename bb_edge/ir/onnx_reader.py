"""Reads serialized ONNX models without protobuf, as far as a device needs them to compute.

`read_model(data)` gives objects with the attributes of the generated messages (`onnx_pb2`). Fields that no
runtime reads (documentation, the model's own graph, training) are left out. Loading protobuf costs a fresh
process some 12 ms and 3 MB, and where it is in pure Python, as on 32-bit ARM, this reader is the faster one.

Bytes are not trusted: whatever they hold, nothing but `ModelReadError` is raised. A message field that comes
twice, which protobuf would merge, is refused: no writer does that.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from bb_edge.ir.errors import BBError

__all__ = ["Message", "ModelReadError", "read_model"]

MAX_DEPTH = 100
"""How deep messages may nest: protobuf's own limit."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ModelReadError(BBError):
    """Bytes that are not an ONNX model."""


class Message:
    """The base of all messages; `FIELDS` maps tags to (attribute, kind, element).

    Defaults are class attributes.
    """

    FIELDS: ClassVar[dict[int, tuple[str, str, Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        """Returns an empty message for an unset message field, as protobuf does. AttributeError otherwise."""
        for found, kind, element in type(self).FIELDS.values():
            if found == name and kind == "message":
                return element()
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def HasField(self, name: str) -> bool:
        """Returns whether a field was set."""
        return name in self.__dict__

    def WhichOneof(self, name: str) -> str | None:
        """Returns which field of the one oneof here was set: `value` of a dimension or a type."""
        return next(iter(self.__dict__), None)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("an overlong number")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _packed(kind: str, data: memoryview) -> list[Any]:
    if kind == "ints":
        found, at, end = [], 0, len(data)
        while at < end:
            value, at = _varint(data, at)
            found.append(_signed(value))
        return found
    code = {"floats": "f", "doubles": "d", "uints": ""}[kind]
    if not code:
        return [value % (1 << 64) for value in _packed("ints", data)]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def _parse(kind_of: type[Message], data: memoryview, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise ValueError(f"messages nest deeper than {MAX_DEPTH}")
    message = kind_of()
    values = message.__dict__
    fields = kind_of.FIELDS
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(data, at)
            stop = at + size
            if stop > end:
                raise ValueError("truncated")
            found: Any = data[at:stop]
            at = stop
        elif wire == _VARINT:
            found, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
            if at + size > end:
                raise ValueError("truncated")
            found = data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")
        field = fields.get(tag >> 3)
        if field is None:
            continue
        name, kind, element = field
        if kind in ("message", "messages"):
            if wire != _BYTES:
                raise ValueError(f"field {name} is not a message")
            inner = _parse(element, found, depth + 1)
            if kind == "message":
                if name in values:
                    raise ValueError(f"field {name} comes twice")
                values[name] = inner
            else:
                values.setdefault(name, []).append(inner)
        elif kind in ("text", "texts"):
            text = str(found, "utf-8") if wire == _BYTES else _refuse(name)
            if kind == "text":
                values[name] = text
            else:
                values.setdefault(name, []).append(text)
        elif kind in ("bytes", "byteses"):
            raw = bytes(found) if wire == _BYTES else _refuse(name)
            if kind == "bytes":
                values[name] = raw
            else:
                values.setdefault(name, []).append(raw)
        elif kind == "int":
            values[name] = _signed(found) if wire == _VARINT else _refuse(name)
        elif kind == "float":
            values[name] = struct.unpack("<f", found)[0] if wire == _FIXED32 else _refuse(name)
        else:  # repeated numbers, packed or one by one
            several = values.setdefault(name, [])
            if wire == _BYTES:
                several.extend(_packed(kind, found))
            elif wire == _VARINT and kind in ("ints", "uints"):
                several.append(_signed(found) if kind == "ints" else found)
            elif wire in (_FIXED32, _FIXED64) and kind in ("floats", "doubles"):
                several.extend(_packed(kind, found))
            else:
                _refuse(name)
    return message


def _refuse(name: str) -> Any:
    raise ValueError(f"field {name} is of another type")


def read_model(data: bytes | memoryview) -> Message:
    """Returns the ModelProto in the bytes, without references to them. ModelReadError for anything else."""
    try:
        return _parse(ModelProto, memoryview(data), 0)
    except (ValueError, IndexError, struct.error, RecursionError) as error:
        what = "it ends too early" if isinstance(error, IndexError) else str(error)
        raise ModelReadError(f"not a serialized ONNX model: {what}", "artifact") from error


# --- the messages, by onnx.proto ------------------------------------------------------------------


class StringStringEntryProto(Message):
    key = value = ""
    FIELDS: ClassVar = {1: ("key", "text", None), 2: ("value", "text", None)}


class OperatorSetIdProto(Message):
    domain, version = "", 0
    FIELDS: ClassVar = {1: ("domain", "text", None), 2: ("version", "int", None)}


class TensorProto(Message):
    dims = float_data = int32_data = int64_data = double_data = uint64_data = string_data = ()
    metadata_props = external_data = ()
    data_type = data_location = 0
    name, raw_data = "", b""
    FIELDS: ClassVar = {
        1: ("dims", "ints", None),
        2: ("data_type", "int", None),
        3: ("segment", "bytes", None),
        4: ("float_data", "floats", None),
        5: ("int32_data", "ints", None),
        6: ("string_data", "byteses", None),
        7: ("int64_data", "ints", None),
        8: ("name", "text", None),
        9: ("raw_data", "bytes", None),
        10: ("double_data", "doubles", None),
        11: ("uint64_data", "uints", None),
        13: ("external_data", "messages", StringStringEntryProto),
        14: ("data_location", "int", None),
        16: ("metadata_props", "messages", StringStringEntryProto),
    }


class Dimension(Message):
    dim_value, dim_param = 0, ""
    FIELDS: ClassVar = {1: ("dim_value", "int", None), 2: ("dim_param", "text", None)}


class TensorShapeProto(Message):
    dim = ()
    FIELDS: ClassVar = {1: ("dim", "messages", Dimension)}


class TensorType(Message):
    elem_type = 0
    FIELDS: ClassVar = {1: ("elem_type", "int", None), 2: ("shape", "message", TensorShapeProto)}


class OpaqueType(Message):
    domain = name = ""
    FIELDS: ClassVar = {1: ("domain", "text", None), 2: ("name", "text", None)}


class TypeProto(Message):
    denotation = ""


class SequenceType(Message):
    FIELDS: ClassVar = {1: ("elem_type", "message", TypeProto)}


TypeProto.FIELDS = {
    1: ("tensor_type", "message", TensorType),
    4: ("sequence_type", "message", SequenceType),
    6: ("denotation", "text", None),
    7: ("opaque_type", "message", OpaqueType),
}


class ValueInfoProto(Message):
    name = ""
    metadata_props = ()
    FIELDS: ClassVar = {
        1: ("name", "text", None),
        2: ("type", "message", TypeProto),
        4: ("metadata_props", "messages", StringStringEntryProto),
    }


class AttributeProto(Message):
    name = ref_attr_name = ""
    f, i, s, type = 0.0, 0, b"", 0
    floats = ints = strings = tensors = graphs = ()


class NodeProto(Message):
    input = output = attribute = metadata_props = ()
    name = op_type = domain = overload = ""
    FIELDS: ClassVar = {
        1: ("input", "texts", None),
        2: ("output", "texts", None),
        3: ("name", "text", None),
        4: ("op_type", "text", None),
        5: ("attribute", "messages", AttributeProto),
        7: ("domain", "text", None),
        8: ("overload", "text", None),
        9: ("metadata_props", "messages", StringStringEntryProto),
    }


class GraphProto(Message):
    node = initializer = sparse_initializer = input = output = value_info = metadata_props = ()
    name = ""
    FIELDS: ClassVar = {
        1: ("node", "messages", NodeProto),
        2: ("name", "text", None),
        5: ("initializer", "messages", TensorProto),
        11: ("input", "messages", ValueInfoProto),
        12: ("output", "messages", ValueInfoProto),
        13: ("value_info", "messages", ValueInfoProto),
        15: ("sparse_initializer", "byteses", None),
        16: ("metadata_props", "messages", StringStringEntryProto),
    }


AttributeProto.FIELDS = {
    1: ("name", "text", None),
    2: ("f", "float", None),
    3: ("i", "int", None),
    4: ("s", "bytes", None),
    5: ("t", "message", TensorProto),
    6: ("g", "message", GraphProto),
    7: ("floats", "floats", None),
    8: ("ints", "ints", None),
    9: ("strings", "byteses", None),
    10: ("tensors", "messages", TensorProto),
    11: ("graphs", "messages", GraphProto),
    14: ("tp", "message", TypeProto),
    20: ("type", "int", None),
    21: ("ref_attr_name", "text", None),
}


class FunctionProto(Message):
    input = output = attribute = attribute_proto = node = opset_import = value_info = metadata_props = ()
    name = domain = overload = ""
    FIELDS: ClassVar = {
        1: ("name", "text", None),
        4: ("input", "texts", None),
        5: ("output", "texts", None),
        6: ("attribute", "texts", None),
        7: ("node", "messages", NodeProto),
        9: ("opset_import", "messages", OperatorSetIdProto),
        10: ("domain", "text", None),
        11: ("attribute_proto", "messages", AttributeProto),
        12: ("value_info", "messages", ValueInfoProto),
        13: ("overload", "text", None),
        14: ("metadata_props", "messages", StringStringEntryProto),
    }


class ModelProto(Message):
    functions = opset_import = metadata_props = ()
    FIELDS: ClassVar = {
        8: ("opset_import", "messages", OperatorSetIdProto),
        14: ("metadata_props", "messages", StringStringEntryProto),
        25: ("functions", "messages", FunctionProto),
    }
