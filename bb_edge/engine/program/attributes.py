"""What stands in a node, as Python values: attributes, metadata, constants, names that subgraphs capture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bb_edge.engine.errors import LoadError
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, NodeProto
from bb_edge.ir.tensors import from_tensor_proto


def attribute_value(attr: AttributeProto) -> object:
    """The Python value of an attribute: numbers, bytes, arrays, lists of them; graphs stay protos."""
    kind = attr.type
    if kind == AttributeProto.INT:
        return attr.i
    if kind == AttributeProto.FLOAT:
        return attr.f
    if kind == AttributeProto.STRING:
        return attr.s
    if kind == AttributeProto.TENSOR:
        return from_tensor_proto(attr.t)
    if kind == AttributeProto.GRAPH:
        return attr.g
    if kind == AttributeProto.INTS:
        return list(attr.ints)
    if kind == AttributeProto.FLOATS:
        return list(attr.floats)
    if kind == AttributeProto.STRINGS:
        return list(attr.strings)
    if kind == AttributeProto.TYPE_PROTO:
        return attr.tp
    raise LoadError(f"attribute {attr.name} has kind {kind}, which this runtime does not take")


def captured_names(node: NodeProto) -> tuple[str, ...]:
    """Names that a node's subgraphs (If, Loop) read from the scope around them, in order of first use."""
    found: dict[str, None] = {}
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            graph = attr.g
            known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                for name in (*inner.input, *captured_names(inner)):
                    if name and name not in known:
                        found[name] = None
                known.update(inner.output)
            found.update((v.name, None) for v in graph.output if v.name not in known)
    return tuple(name for name in found if name not in node.input)


def metadata(proto: FunctionProto | NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def constant_value(attrs: Mapping[str, object], where: str) -> object:
    """What a `Constant` node yields (ONNX Constant, all `value*` attributes but sparse ones).

    Arrays are read-only: every execution and the host see the same one.
    """
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in attrs:
            return _fixed(attrs[name], dtype)
    if "value_string" in attrs:
        return attrs["value_string"]
    value = attrs.get("value")
    if isinstance(value, bool) or value is None:
        raise LoadError(
            "a Constant needs a value", where=where, hint="give it value, value_float(s) or value_int(s)"
        )
    if isinstance(value, int):
        return _fixed(value, np.int64)
    if isinstance(value, float):
        return _fixed(value, np.float32)
    return value


def _fixed(value: object, dtype: type[np.generic]) -> object:
    array = np.array(value, dtype=dtype)
    array.setflags(write=False)
    return array
