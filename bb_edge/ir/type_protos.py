"""Types as ONNX spells them: Tensor, Sequence of Opaque, Opaque.

The denotation says which type it is; where another tool dropped it, the structure does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir import keys, onnx_pb2, types
from bb_edge.ir.errors import BBError
from bb_edge.ir.types import ValueType

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import TypeProto, ValueInfoProto


class TypeProtoError(BBError):
    """A TypeProto with an element type that we have no tensor type for."""


def to_type_proto(value: ValueType) -> TypeProto:
    """Returns the TypeProto of a value's type, with its denotation.

    The abstract `Tensor` has element type 0.
    """
    node = value.node
    proto = onnx_pb2.TypeProto(denotation=node.denotation)
    if types.is_subtype(node, types.TENSOR):
        proto.tensor_type.elem_type = node.elem_type or 0
        if value.shape is not None:
            shape = proto.tensor_type.shape
            shape.SetInParent()  # rank 0 is a shape too
            for dim in value.shape:
                entry = shape.dim.add()
                if isinstance(dim, str):
                    entry.dim_param = dim
                elif dim is not None:
                    entry.dim_value = dim
    elif node is types.PEER_ID_VEC:
        element = proto.sequence_type.elem_type
        element.denotation = types.PEER_ID.denotation
        element.opaque_type.domain = keys.OPAQUE_DOMAIN
        element.opaque_type.name = types.PEER_ID.id
    else:
        proto.opaque_type.domain = keys.OPAQUE_DOMAIN
        proto.opaque_type.name = node.id
    return proto


def from_type_proto(proto: TypeProto) -> ValueType:
    """Returns the type that a TypeProto names, by denotation, else by structure; ANY where it names none.

    Raises TypeProtoError for element types that have no tensor type here.
    """
    node = types.by_denotation(proto.denotation) if proto.denotation else None
    if proto.HasField("tensor_type"):
        elem = proto.tensor_type.elem_type
        if node is None or node.elem_type != (elem or None):
            node = types.TENSOR if elem == 0 else types.tensor_of_elem(elem)
        if node is None:
            name = next((n for n, v in onnx_pb2.TensorProto.DataType.items() if v == elem), "unknown").lower()
            hint = "use float32, or another type of numbers that docs/design/artifact.md names"
            raise TypeProtoError(f"no tensor type for element type {elem} ({name})", "TypeProto", hint)
        if not proto.tensor_type.HasField("shape"):
            return ValueType(node)
        dims: list[int | str | None] = []
        for dim in proto.tensor_type.shape.dim:
            if dim.WhichOneof("value") == "dim_value":
                dims.append(dim.dim_value if dim.dim_value >= 0 else None)  # exporters write -1 for "unknown"
            else:
                dims.append(dim.dim_param or None)
        return ValueType(node, tuple(dims))
    if node is None and proto.HasField("sequence_type"):
        element = proto.sequence_type.elem_type.opaque_type
        if (element.domain, element.name) == (keys.OPAQUE_DOMAIN, types.PEER_ID.id):
            node = types.PEER_ID_VEC
    if node is None and proto.HasField("opaque_type") and proto.opaque_type.domain == keys.OPAQUE_DOMAIN:
        node = types.by_id(proto.opaque_type.name)
    return ValueType(node or types.ANY)


def value_info(name: str, value: ValueType) -> ValueInfoProto:
    """Returns the ValueInfoProto of a named value."""
    info = onnx_pb2.ValueInfoProto(name=name)
    info.type.CopyFrom(to_type_proto(value))
    return info
