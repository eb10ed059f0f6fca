"""Types of ONNX operators that the catalog does not hold, by ONNX's own shape inference, one op at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import onnx

from bb_edge.ir import keys, types
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto, to_type_proto
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.ir.program import Op
from bb_host.ir.proto import op_to_proto
from bb_host.ir.queries import reads
from bb_host.passes.analysis.type_terms import Terms, conflict, described

_ERRORS = (
    *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError),
    *(RuntimeError, ValueError),
)


def infer(op: Op, terms: Terms, version: int) -> None:
    """Puts what ONNX infers for the op's outputs; inputs of unknown element type leave them abstract."""
    names = reads(op)
    known = [terms.get(n) if n else None for n in names]
    if any(n and (k is None or k.node.elem_type is None) for n, k in zip(names, known, strict=True)):
        _only_types(op, terms, version)
        _abstract(op, terms)
        return
    for name, value in zip(op.outputs, _infer(op, names, known, terms, version), strict=True):
        terms.put(name, value, op)


def _only_types(op: Op, terms: Terms, version: int) -> None:
    """Narrows open inputs that have to be of one element type, as BOOL of Not."""
    for name, node in zip(op.inputs, _only(op.op_type, version, len(op.inputs)), strict=True):
        if name and node is not None and terms.is_open(name):
            terms.element(name, node, op)


@lru_cache(maxsize=256)
def _only(op_type: str, version: int, count: int) -> tuple[TypeNode | None, ...]:
    """The element type of each input where the operator takes no other one; None where it takes several."""
    try:
        formals = onnx.defs.get_schema(op_type, version, keys.ONNX_DOMAIN).inputs
    except onnx.defs.SchemaError:
        return (None,) * count
    found = [_ONLY.get(next(iter(f.types))) if len(f.types) == 1 else None for f in formals]
    return tuple(found[min(place, len(found) - 1)] if found else None for place in range(count))


_ONLY = {
    "tensor(bool)": types.TENSOR_BOOL,
    "tensor(int64)": types.TENSOR_I64,
    "tensor(float)": types.TENSOR_F32,
}
"""How ONNX's schemas write the element types of which some operators take no other."""


def _abstract(op: Op, terms: Terms) -> None:
    for name in op.outputs:
        if name and name not in terms.types:
            terms.put(name, ValueType(types.TENSOR), op)


def _infer(
    op: Op, names: Sequence[str], known: Sequence[ValueType | None], terms: Terms, version: int
) -> tuple[ValueType | None, ...]:
    plain = Op(op.op_type, keys.ONNX_DOMAIN, op.inputs, op.outputs, op.attrs)
    # The runtime's classes serve as well as ONNX's own, which only serializes what it is given.
    node: Any = op_to_proto(plain)
    given: dict[str, Any] = {}
    for name, value in zip(names, known, strict=True):
        if name and value is not None:
            given[name] = to_type_proto(value)
            given[name].denotation = ""
    opset = onnx.OperatorSetIdProto(domain=keys.ONNX_DOMAIN, version=version)
    try:
        schema = onnx.defs.get_schema(op.op_type, version, keys.ONNX_DOMAIN)
        types_by_name = onnx.shape_inference.infer_node_outputs(schema, node, given, opset_imports=[opset])
    except _ERRORS as error:
        text = str(error).strip().splitlines()
        raise conflict(op, f"{text[-1] if text else error}: {described(terms, op.inputs)}") from error
    found: list[ValueType | None] = []
    for name in op.outputs:
        proto = types_by_name.get(name)
        try:
            value = None if proto is None else from_type_proto(proto)
        except TypeProtoError as error:
            raise conflict(op, f"{name!r}: {error.what}") from error
        if value is not None and value.node is types.ANY:
            value = None
        if value is not None and value.shape is not None:
            # Sizes that ONNX makes up names for are unknown ones.
            value = ValueType(value.node, tuple(d if isinstance(d, int) else None for d in value.shape))
        found.append(value)
    return tuple(found)
