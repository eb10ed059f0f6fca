"""Types and shapes of the values of an ONNX function, by ONNX's own shape inference."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx
import onnx.shape_inference

from bb_edge.ir.types import ValueType
from bb_host.errors import LearnError
from bb_host.ir.program import Function, Op, Subgraph
from bb_host.ir.proto import read_graph, write_attribute
from bb_host.ir.queries import is_onnx

Shape = tuple[int | str | None, ...]


def infer_types(function: Function) -> dict[str, ValueType]:
    """The types of all values that inference finds, those that the function declares included.

    The function holds ONNX ops alone. LearnError where its ops contradict each other.
    """
    ops = tuple(_with_inference(op) for op in function.ops)
    graph = Subgraph(function.name, function.inputs, function.outputs, ops, function.types)
    written = write_attribute("g", graph).g.SerializeToString(deterministic=True)
    model = onnx.ModelProto(ir_version=10)
    model.graph.ParseFromString(written)
    for domain, version in function.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    # A value info without a type is how an unknown output is written; inference wants none at all.
    known = [info for info in model.graph.output if info.HasField("type")]
    untyped = [info.name for info in model.graph.output if not info.HasField("type")]
    del model.graph.output[:]
    model.graph.output.extend(known)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in untyped)
    types = read_graph(_inferred(model, f"function {function.name}").graph).types
    declared = {v: _filled(known, types.get(v)) for v, known in function.types.items()}
    return {**types, **declared}


def _filled(declared: ValueType, inferred: ValueType | None) -> ValueType:
    """A declared type, its open dims as inference finds them."""
    if inferred is None or declared.shape is None or inferred.shape is None or None not in declared.shape:
        return declared
    if len(declared.shape) != len(inferred.shape):
        return declared
    pairs = zip(declared.shape, inferred.shape, strict=True)
    return declared._replace(shape=tuple(found if known is None else known for known, found in pairs))


def _with_inference(op: Op) -> Op:
    """An op that ONNX infers no types for (or fails to, by its default axes), as one with the same types."""
    if op.op_type in ("GroupNormalization", "MeanVarianceNormalization") and is_onnx(op):
        return dataclasses.replace(op, op_type="Identity", inputs=op.inputs[:1], attrs={})
    return op


def _inferred(model: onnx.ModelProto, where: str) -> Any:
    # Following the contents of shape tensors knows more, but takes ordinary vectors for shapes at times.
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        pass
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        detail = str(error).strip().splitlines()[-1]
        hint = "export the model again; onnx.shape_inference names the op"
        raise LearnError(f"its ops do not fit together: {detail}", where, hint) from error


def with_types(function: Function) -> Function:
    """The function with the types of all its values."""
    types = infer_types(function)
    order = [*function.inputs, *(v for op in function.ops for v in op.outputs if v)]
    return dataclasses.replace(function, types={v: types[v] for v in order if v in types})
