"""From the light form to ONNX protos, `onnx.ModelProto` or bytes of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import EncodeError

from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
)
from bb_edge.ir.tensors import to_tensor_proto
from bb_edge.ir.types import ValueType
from bb_host.errors import ProgramProtoError
from bb_host.ir import artifact_size
from bb_host.ir.program import AttrValue, Function, Op, Program, RawAttribute, RawTensor, Subgraph
from bb_host.ir.proto.reader import rest_of, type_bytes, type_of
from bb_host.ir.spelling import written

if TYPE_CHECKING:
    import onnx

_A = AttributeProto


def to_proto(program: Program) -> onnx.ModelProto:
    """The ModelProto of a program. Raises ProgramProtoError for a value that has no spelling in ONNX."""
    import onnx  # here alone: reading, writing and the text notation work where the package is not to be had

    return onnx.ModelProto.FromString(to_bytes(program))


def to_bytes(program: Program) -> bytes:
    """The serialized ModelProto, deterministic: equal programs give equal bytes."""
    graph_name = program.graph_name or program.name
    model = ModelProto.FromString(rest_of(program))
    model.graph.name = graph_name
    for function in program.functions:
        _write_function(function, model.functions.add())
    _write_meta(written(program.facts), model)
    _write_opsets(program.opsets, model)
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError, MemoryError) as error:
        if artifact_size.of_tensors(program) < artifact_size.MAX_BYTES:
            raise
        raise artifact_size.too_large(program) from error
    if len(data) > artifact_size.MAX_BYTES:
        raise artifact_size.too_large(program)
    return data


def function_to_proto(function: Function) -> FunctionProto:
    """One function alone, in the runtime's classes."""
    target = FunctionProto()
    _write_function(function, target)
    return target


def op_to_proto(op: Op) -> NodeProto:
    """One op alone, in the runtime's classes."""
    target = NodeProto()
    _write_op(op, target, str(op))
    return target


def _write_meta(meta: Mapping[str, str], target: Any) -> None:
    for key, value in meta.items():
        target.metadata_props.add(key=key, value=value)


def _write_opsets(opsets: Mapping[str, int], target: Any) -> None:
    for domain, version in opsets.items():
        target.opset_import.add(domain=domain, version=version)


def _write_function(function: Function, target: Any) -> None:
    if function.extra:
        target.MergeFromString(function.extra)
    target.name, target.domain = function.name, function.domain
    target.input.extend(function.inputs)
    target.output.extend(function.outputs)
    where = f"function {function.name}"
    for op in function.ops:
        _write_op(op, target.node.add(), where)
    slot_meta: dict[str, str] = {}
    for concrete in (False, True):  # the order in which they are read again
        for name, slot in function.slots.items():
            if slot.is_concrete is not concrete:
                continue
            if slot.state is None:
                target.attribute.append(name)
            else:
                _write_attribute(name, slot.state, target.attribute_proto.add(), where)
            for prefix, text in (
                (keys.SLOT_ROLE_PREFIX, slot.role),
                (keys.SLOT_PEER_CLASS_PREFIX, slot.peer_class),
                (keys.SLOT_AT_PREFIX, slot.at),
                (keys.CONCRETE_TYPE_PREFIX, slot.concrete_type),
            ):
                if text:
                    slot_meta[prefix + name] = text
    _write_meta({**slot_meta, **written(function.facts)}, target)
    _write_opsets(function.opsets, target)
    for name, value in function.types.items():
        _write_info(name, value, function.foreign_types, target.value_info.add())


def _write_info(name: str, value: ValueType | None, foreign: Mapping[str, bytes], target: Any) -> None:
    """A value info; a foreign one as it came, while its type is still the one it came with."""
    if name in foreign:
        known = ValueInfoProto.FromString(foreign[name])
        if value == type_of(known.type.SerializeToString(deterministic=True))[0]:
            target.CopyFrom(known)
            return
    target.name = name
    if value is not None:
        target.type.MergeFromString(type_bytes(value))


def _write_op(op: Op, target: Any, where: str) -> None:
    if op.extra:
        target.MergeFromString(op.extra)
    target.op_type = op.op_type
    if op.domain:
        target.domain = op.domain
    if op.name:
        target.name = op.name
    target.input.extend(op.inputs)
    target.output.extend(op.outputs)
    for name, value in op.attrs.items():
        _write_attribute(name, value, target.attribute.add(), where)
    _write_meta(written(op.facts), target)


def write_attribute(name: str, value: AttrValue) -> AttributeProto:
    """The AttributeProto of a value, in the runtime's classes."""
    target = AttributeProto()
    _write_attribute(name, value, target, "")
    return target


def _write_attribute(name: str, value: AttrValue, target: Any, where: str) -> None:
    if isinstance(value, RawAttribute):
        target.MergeFromString(value.data)
        target.name = name
        return
    target.name = name
    if isinstance(value, (bool, int, np.integer)):
        target.type, target.i = _A.INT, int(value)
    elif isinstance(value, (float, np.floating)):
        target.type, target.f = _A.FLOAT, float(value)
    elif isinstance(value, bytes):
        target.type, target.s = _A.STRING, value
    elif isinstance(value, np.ndarray):
        target.type = _A.TENSOR
        _write_tensor("", value, target.t)
    elif isinstance(value, RawTensor):
        target.type = _A.TENSOR
        target.t.MergeFromString(value.data)
    elif isinstance(value, Subgraph):
        target.type = _A.GRAPH
        _write_graph(value, target.g, where)
    elif isinstance(value, ValueType):
        target.type = _A.TYPE_PROTO
        target.tp.MergeFromString(type_bytes(value))
    elif isinstance(value, list) and all(isinstance(v, int) for v in value):
        target.type = _A.INTS
        target.ints.extend(value)
    elif isinstance(value, list) and all(isinstance(v, bytes) for v in value):
        target.type = _A.STRINGS
        target.strings.extend(value)
    elif isinstance(value, list) and all(isinstance(v, (int, float)) for v in value):
        target.type = _A.FLOATS
        target.floats.extend(value)
    else:
        raise ProgramProtoError(f"attribute {name}: no ONNX spelling of {value!r}", where)


def _write_tensor(name: str, value: np.ndarray[Any, np.dtype[Any]] | RawTensor, target: Any) -> None:
    if isinstance(value, RawTensor):
        target.MergeFromString(value.data)
    else:
        target.MergeFrom(to_tensor_proto(value))
        target.ClearField("name")
    if name:
        target.name = name


def _write_graph(graph: Subgraph, target: Any, where: str) -> None:
    if graph.extra:
        target.MergeFromString(graph.extra)
    target.name = graph.name
    for name in graph.inputs:
        _write_info(name, graph.types.get(name), graph.foreign_types, target.input.add())
    for name in graph.outputs:
        _write_info(name, graph.types.get(name), graph.foreign_types, target.output.add())
    for op in graph.ops:
        _write_op(op, target.node.add(), where)
    ends = {*graph.inputs, *graph.outputs}
    for name, value in graph.types.items():
        if name not in ends:
            _write_info(name, value, graph.foreign_types, target.value_info.add())
    for name, tensor in graph.initializers.items():
        _write_tensor(name, tensor, target.initializer.add())
    _write_meta(graph.config, target)
