"""From ONNX protos to the light form: any class of the schema, the `onnx` package's or the runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
)
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto, to_type_proto
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_host.errors import ProgramProtoError, SparseTensorError
from bb_host.ir.facts import Facts, OpFacts
from bb_host.ir.program import AttrValue, Function, Op, Program, RawAttribute, RawTensor, Slot, Subgraph
from bb_host.ir.sparse_tensors import densified
from bb_host.ir.spelling import SpellingError, function_facts, op_facts, program_facts

IR_VERSION = 10
PRODUCER = "bytesandbrains-edge"

_F = TypeVar("_F", bound=Facts)
_A = AttributeProto
_BFLOAT16 = TensorProto.BFLOAT16
_NODE_REST = frozenset({"overload", "doc_string", "device_configurations"})
_FUNCTION_REST = frozenset({"overload", "doc_string"})
_GRAPH_REST = frozenset({"sparse_initializer", "quantization_annotation", "doc_string"})
_MODEL_TAKEN = frozenset({"functions", "metadata_props", "opset_import"})


def from_proto(model: Any) -> Program:
    """The light form of a ModelProto.

    Sparse tensors are written out. Raises ProgramProtoError for value types and attributes that have none,
    naming the value, for names that are not text, and for sparse tensors that cannot be written out.
    """
    try:
        try:
            return _read_program(model)
        except _HoldsSparseTensors:  # rare: nobody looks for them beforehand
            return _read_program(densified(model))
    except SparseTensorError as error:
        raise ProgramProtoError(error.what, error.where, error.hint) from error
    except UnicodeError as error:  # some protobuf runtimes decode at access, others hand out bytes
        raise ProgramProtoError(f"a name is not text: {error}", "model") from error


class _HoldsSparseTensors(Exception):
    """A model whose sparse tensors have to be written out before it is read."""


def _read_program(model: Any) -> Program:
    if model.graph.sparse_initializer:
        raise _HoldsSparseTensors
    facts = _facts(program_facts, _meta(model, "model"), "model")
    graph_name = model.graph.name
    name = facts.module or graph_name
    rest = ModelProto()
    for field, value in model.ListFields():
        if field.name not in _MODEL_TAKEN:
            _copy_field(field, value, rest)
    extra = rest.SerializeToString(deterministic=True)
    return Program(
        name,
        tuple(_read_function(f) for f in model.functions),
        facts,
        _opsets(model, "model"),
        "" if graph_name == name else graph_name,
        b"" if extra == _default_rest(graph_name) else extra,
    )


def _default_rest(graph_name: str) -> bytes:
    rest = ModelProto(ir_version=IR_VERSION, producer_name=PRODUCER)
    rest.graph.name = graph_name
    data: bytes = rest.SerializeToString(deterministic=True)
    return data


def rest_of(program: Program) -> bytes:
    """A serialized ModelProto of what `Program.extra` stands for, what we write ourselves included."""
    return program.extra or _default_rest(program.graph_name or program.name)


def _copy_field(field: Any, value: Any, target: Any) -> None:
    """Copies one set field between message classes, which may be of different pools."""
    if field.message_type is None:
        if isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)
    elif hasattr(value, "SerializeToString"):
        getattr(target, field.name).MergeFromString(value.SerializeToString())
    else:
        for item in value:
            getattr(target, field.name).add().MergeFromString(item.SerializeToString())


def _check_text(where: str, *texts: str) -> None:
    """Refuses names that are not UTF-8: protobuf hands them out as bytes."""
    try:
        "".join(texts)
    except TypeError:
        wrong = next(t for t in texts if not isinstance(t, str))
        raise ProgramProtoError(f"{wrong!r} is not text", where, "names are UTF-8") from None


def _meta(message: Any, where: str) -> dict[str, str]:
    found = {entry.key: entry.value for entry in message.metadata_props}
    _check_text(where, *found, *found.values())
    return found


def _facts(read: Callable[[Mapping[str, str]], _F], meta: Mapping[str, str], where: str, of: str = "") -> _F:
    try:
        return read(meta)
    except SpellingError as error:
        raise ProgramProtoError(f"{of}: {error}" if of else str(error), where) from None


def _opsets(message: Any, where: str) -> dict[str, int]:
    """The imports; of a domain that is imported twice the highest version holds."""
    found: dict[str, int] = {}
    for entry in message.opset_import:
        found[entry.domain] = max(entry.version, found.get(entry.domain, entry.version))
    _check_text(where, *found)
    return found


def _rest(message: Any, names: frozenset[str], kind: Any) -> bytes:
    rest = None
    for field, value in message.ListFields():
        if field.name in names:
            rest = kind() if rest is None else rest
            _copy_field(field, value, rest)
    if rest is None:
        return b""
    data: bytes = rest.SerializeToString(deterministic=True)
    return data


def _read_function(function: Any) -> Function:
    where = f"function {function.name}"
    _check_text(where, function.name, function.domain, *function.input, *function.output, *function.attribute)
    meta = _meta(function, where)
    slots: dict[str, Slot] = {}
    for name in function.attribute:
        slots[name] = _read_slot(name, meta, None)
    for attribute in function.attribute_proto:
        slots[attribute.name] = _read_slot(attribute.name, meta, read_attribute(attribute, where))
    types, foreign = _read_types(function.value_info, where)
    return Function(
        function.name,
        function.domain,
        tuple(function.input),
        tuple(function.output),
        _read_ops(function.node, where),
        types,
        slots,
        _facts(function_facts, meta, where),
        _opsets(function, where),
        _rest(function, _FUNCTION_REST, FunctionProto),
        foreign,
    )


def _read_slot(name: str, meta: dict[str, str], state: AttrValue | None) -> Slot:
    """Takes what the function's metadata says about the slot out of it."""
    return Slot(
        meta.pop(keys.SLOT_ROLE_PREFIX + name, ""),
        meta.pop(keys.CONCRETE_TYPE_PREFIX + name, ""),
        meta.pop(keys.SLOT_AT_PREFIX + name, ""),
        meta.pop(keys.SLOT_PEER_CLASS_PREFIX + name, ""),
        state,
    )


def _read_ops(nodes: Iterable[Any], where: str) -> tuple[Op, ...]:
    """Ops that say the same share one record of facts, which is read once."""
    said: dict[tuple[tuple[str, str], ...], OpFacts] = {}
    return tuple([_read_op(node, where, said) for node in nodes])


def _read_op(node: Any, where: str, said: dict[tuple[tuple[str, str], ...], OpFacts]) -> Op:
    attrs = {a.name: read_attribute(a, where) for a in node.attribute} if node.attribute else {}
    meta = {entry.key: entry.value for entry in node.metadata_props}
    inputs, outputs = tuple(node.input), tuple(node.output)
    op_type, domain, name = node.op_type, node.domain, node.name
    _check_text(where, op_type, domain, name, *inputs, *outputs, *attrs, *meta, *meta.values())
    if "sparse_value" in attrs and op_type == "Constant":
        raise _HoldsSparseTensors
    # Protos of the onnx package before 1.18 have no device configurations.
    more = node.overload or node.doc_string or getattr(node, "device_configurations", None)
    extra = _rest(node, _NODE_REST, NodeProto) if more else b""
    spelled = tuple(meta.items())
    facts = said.get(spelled)
    if facts is None:
        facts = said[spelled] = _facts(op_facts, meta, where, op_type)
    return Op(op_type, domain, inputs, outputs, attrs, facts, name, extra)


def _read_types(infos: Iterable[Any], where: str) -> tuple[dict[str, ValueType], dict[str, bytes]]:
    types: dict[str, ValueType] = {}
    foreign: dict[str, bytes] = {}
    for info in infos:
        if not info.HasField("type"):
            continue
        _check_text(where, info.name)
        serialized = info.type.SerializeToString(deterministic=True)
        try:
            types[info.name], exact = type_of(serialized)
        except TypeProtoError as error:
            raise ProgramProtoError(error.what, f"{where}, value {info.name}") from error
        if not exact or info.doc_string or info.metadata_props:
            foreign[info.name] = info.SerializeToString(deterministic=True)
    return types, foreign


@lru_cache(maxsize=1024)
def type_of(serialized: bytes) -> tuple[ValueType, bool]:
    """A type, and whether writing it gives the same bytes again."""
    value = from_type_proto(TypeProto.FromString(serialized))
    if value.shape is not None:
        _check_text("a shape", *(d for d in value.shape if d is not None and not isinstance(d, int)))
    return value, type_bytes(value) == serialized


@lru_cache(maxsize=1024)
def type_bytes(value: ValueType) -> bytes:
    data: bytes = to_type_proto(value).SerializeToString(deterministic=True)
    return data


def read_attribute(attribute: Any, where: str = "") -> AttrValue:
    """The value of an AttributeProto."""
    kind = attribute.type
    if attribute.ref_attr_name:
        pass
    elif kind == _A.INT:
        return int(attribute.i)
    elif kind == _A.FLOAT:
        return float(attribute.f)
    elif kind == _A.STRING:
        return bytes(attribute.s)
    elif kind == _A.INTS:
        return list(attribute.ints)
    elif kind == _A.FLOATS and attribute.floats:
        return list(attribute.floats)
    elif kind == _A.STRINGS and attribute.strings:
        return list(attribute.strings)
    elif kind == _A.TENSOR:
        return read_tensor(attribute.t) if not attribute.t.name else _raw_tensor(attribute.t)
    elif kind == _A.GRAPH:
        return read_graph(attribute.g, where)
    elif kind == _A.TYPE_PROTO:
        value, exact = type_of(attribute.tp.SerializeToString(deterministic=True))
        if exact:
            return value
    return RawAttribute(kind, attribute.SerializeToString(deterministic=True))


def read_tensor(tensor: Any) -> np.ndarray[Any, np.dtype[Any]] | RawTensor:
    """The array of a TensorProto, or a RawTensor where an array does not say it fully."""
    if (
        tensor.data_type == _BFLOAT16
        or dtype_of_elem(tensor.data_type) is None
        or tensor.data_location == TensorProto.EXTERNAL
        or tensor.doc_string
        or tensor.metadata_props
    ):
        return _raw_tensor(tensor)
    return from_tensor_proto(tensor)


def _raw_tensor(tensor: Any) -> RawTensor:
    return RawTensor(tensor.data_type, tuple(tensor.dims), tensor.SerializeToString(deterministic=True))


def array_of(value: np.ndarray[Any, np.dtype[Any]] | RawTensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of a tensor value; bfloat16 as its 16 bits. TensorError where it has none."""
    return value if isinstance(value, np.ndarray) else from_tensor_proto(TensorProto.FromString(value.data))


def read_graph(graph: Any, where: str = "") -> Subgraph:
    """The light form of a GraphProto, whose sparse tensors are written out by now (`densified`)."""
    if graph.sparse_initializer:
        raise _HoldsSparseTensors
    where = f"{where}, graph {graph.name}" if where else f"graph {graph.name}"
    types, foreign = _read_types([*graph.input, *graph.output, *graph.value_info], where)
    inputs, outputs = tuple(i.name for i in graph.input), tuple(o.name for o in graph.output)
    initializers = {t.name: read_tensor(t) for t in graph.initializer}
    _check_text(where, graph.name, *inputs, *outputs, *initializers)
    return Subgraph(
        graph.name,
        inputs,
        outputs,
        _read_ops(graph.node, where),
        types,
        initializers,
        _meta(graph, where),
        _rest(graph, _GRAPH_REST, GraphProto),
        foreign,
    )
