"""Result types that come from a number: of AsTensor and AsScalar, and of a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bb_edge.ir import types
from bb_edge.ir.opsets import AttrKind
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.literals import as_attribute
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.errors import AttributeValueError, ValueTypeError

Relation: TypeAlias = "Callable[[Recorder, str, Sequence[Output | None], Mapping[str, Any]], ValueType]"


def number_type(graph: Recorder, source: Output) -> TypeNode:
    """The tensor that holds the number of a scalar, timestamp, …; ValueTypeError for other values."""
    found = types.NUMBERS.get(source.node)
    if found is None:
        hint = f"it takes: {', '.join(node.id for node in types.NUMBERS)}"
        if source.node is types.SCALAR:
            hint = "its element type is not known here: g.as_scalar(g.onnx.cast(x, to='F32'))"
        elif types.is_subtype(source.node, types.TENSOR):
            hint = "a tensor is a number already"
        raise graph.error(
            ValueTypeError, f"AsTensor: value expects a number that is not a tensor, got {source!r}", hint
        )
    return found


def _tensor_of_number(
    graph: Recorder, op: str, inputs: Sequence[Output | None], attrs: Mapping[str, Any]
) -> ValueType:
    source = inputs[0]
    assert source is not None
    wanted = number_type(graph, source)
    if attrs.get("to") != wanted.elem_type:
        raise graph.error(
            AttributeValueError,
            f"{op}: a {source.node} is a {wanted}, not to={attrs.get('to')!r}",
            "leave it to g.as_tensor(…)",
        )
    return ValueType(wanted, ())


def _scalar_of_tensor(
    graph: Recorder, op: str, inputs: Sequence[Output | None], attrs: Mapping[str, Any]
) -> ValueType:
    source = inputs[0]
    assert source is not None
    if source.shape is not None and any(isinstance(d, int) and d != 1 for d in source.shape):
        raise graph.error(
            ValueTypeError,
            f"{op}: value expects one element, got {source!r}",
            "pick or reduce first: x[0], g.onnx.reduce_mean(x, keepdims=0)",
        )
    if source.node.elem_type is None:
        return ValueType(types.SCALAR)
    scalar = next(
        (s for s, t in types.NUMBERS.items() if t is source.node and s.parent is types.SCALAR), None
    )
    if scalar is None:
        raise graph.error(
            ValueTypeError,
            f"{op}: there is no scalar of {source.node}",
            "cast it first: g.onnx.cast(x, to='F64'); scalars are F32, F64, F16, U8, I32",
        )
    return ValueType(scalar)


def _constant(
    graph: Recorder, op: str, inputs: Sequence[Output | None], attrs: Mapping[str, Any]
) -> ValueType:
    value = attrs["value"]
    if isinstance(value, bytes):
        return ValueType(types.BYTES)
    array = as_attribute(graph, op, "value", AttrKind.TENSOR, value)
    return ValueType(types.tensor_type(getattr(array, "dtype", None)), tuple(getattr(array, "shape", ())))


TYPED_BY_NUMBERS: dict[str, Relation] = {
    "as_tensor": _tensor_of_number,
    "as_scalar": _scalar_of_tensor,
    "constant": _constant,
}
