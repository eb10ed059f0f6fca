"""What an ONNX file declares as its outputs, held against what its graph gives.

ONNX's own checker compares the two only where it is asked to infer types as well, and many tools never ask.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx
import onnx.shape_inference

from bb_edge.ir.type_protos import TypeProtoError, from_type_proto

_SMALL = 1024
"""Entries of an initializer up to which inference reads it: as a shape, as axes, as bounds of a slice."""


class OutputFault(NamedTuple):
    """A fault of a model's outputs. `where` names the output; it is empty if the model has no output."""

    where: str
    what: str
    hint: str


def fault_of_outputs(model: onnx.ModelProto) -> OutputFault | None:
    """The first output whose declared element type, rank or sizes cannot be those that the graph gives it,
    or that there is no output.

    What the graph gives is what ONNX infers from inputs and initializers alone. What is open or symbolic on
    one side contradicts nothing, and neither does what inference does not find.
    """
    if not model.graph.output:
        hint = "export it with its outputs, or append to model.graph.output what it is to give"
        return OutputFault("", "it declares no output: nothing comes of it", hint)
    given = _given(model)
    for info in model.graph.output:
        if info.type.WhichOneof("value") == "tensor_type" and _differ(info.type, given.get(info.name)):
            what = f"the file declares {_text(info.type)}, and its graph gives {_text(given[info.name])}"
            hint = (
                "export it again, or declare in model.graph.output what the graph gives;"
                " onnx.checker.check_model(model, full_check=True) passes then"
            )
            return OutputFault(f"output {info.name!r}", what, hint)
    return None


def _given(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of the outputs as the graph gives them, where ONNX finds them."""
    # Following the contents of shape tensors (data_prop) would know more, but takes ordinary vectors for
    # shapes at times: a wrong size would refuse a good model.
    try:
        inferred = onnx.shape_inference.infer_shapes(_bare(model)).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return {}
    return {value.name: value.type for value in (*inferred.output, *inferred.input)}


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without declared types of inner values and outputs, its large weights as inputs."""
    bare = onnx.ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = model.graph.name
    bare.graph.node.extend(model.graph.node)
    bare.graph.input.extend(model.graph.input)
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            bare.graph.input.append(info)
    bare.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    return bare


def _differ(declared: onnx.TypeProto, given: onnx.TypeProto | None) -> bool:
    """Whether two types cannot be those of one tensor."""
    if given is None or given.WhichOneof("value") is None:
        return False
    if given.WhichOneof("value") != "tensor_type":
        return True
    said, computed = declared.tensor_type, given.tensor_type
    if said.elem_type and computed.elem_type and said.elem_type != computed.elem_type:
        return True
    if not (said.HasField("shape") and computed.HasField("shape")):
        return False
    if len(said.shape.dim) != len(computed.shape.dim):
        return True
    pairs = zip(said.shape.dim, computed.shape.dim, strict=True)
    sizes = [
        (a.dim_value, b.dim_value) for a, b in pairs if a.HasField("dim_value") and b.HasField("dim_value")
    ]
    return any(a != b for a, b in sizes if a >= 0 and b >= 0)  # exporters write -1 for what is open


def _text(declared: onnx.TypeProto) -> str:
    """A type as `bb-host inspect` writes it, without the symbols that ONNX makes up (`unk__0`).

    By ONNX's own name where no value here has such a type.
    """
    try:
        known = from_type_proto(declared)
        made_up = tuple(None if str(size).startswith("unk__") else size for size in known.shape or ())
        return str(known if known.shape is None else known._replace(shape=made_up))
    except TypeProtoError:
        kind = declared.WhichOneof("value")
        if kind != "tensor_type":
            return f"a {kind}"
        return f"tensor({onnx.TensorProto.DataType.Name(declared.tensor_type.elem_type).lower()})"
