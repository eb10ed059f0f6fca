"""A model of several inputs as one of a single input, whose rows hold the rows of all of them.

Roles train on one tensor per batch. What comes in is cut along its rows and reshaped; parameters and their
names stay, so that what was learned goes back into the file that the model is from.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bb_host.errors import LearnError
from bb_host.ir.rename import fresh_name
from bb_host.learn.onnx_import import load_source
from bb_host.onnx_io.newer_operators import opset_of

_SPLIT_BY_INPUT = 13
"""Since this opset the sizes of a Split are an input of it."""

_PLAIN = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32,
          TensorProto.INT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL)  # fmt: skip


def join_inputs(model: onnx.ModelProto | str | Path | bytes) -> onnx.ModelProto:
    """The model with one input `inputs`, f32 [N, total], in place of several.

    A row is the rows of the inputs behind each other, in the order of the file, each flattened:
    `np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1, dtype=np.float32)`. Integers and bools
    are cast back; f32 has whole numbers up to 16,777,216.

    Raises ModelImportError for an unreadable model, LearnError for an input whose first dimension is not a
    batch that all share, or whose others are not numbers.
    """
    where, source = load_source(model)
    joined = onnx.ModelProto()
    joined.CopyFrom(source)
    graph = joined.graph
    own = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in own]
    if len(inputs) < 2:
        what = f"it has {'one input' if inputs else 'no inputs'}: there is nothing to join"
        raise LearnError(what, where, "give the model to trainable as it is")
    shapes = [_rows(value, where) for value in inputs]
    batch = inputs[0].type.tensor_type.shape.dim[0]
    for value in inputs[1:]:
        other = value.type.tensor_type.shape.dim[0]
        if (other.dim_value or 0) != (batch.dim_value or 0):
            both = f"its inputs {inputs[0].name!r} and {value.name!r}"
            what = f"{both} have batches of {_say(batch)}, {_say(other)}"
            raise LearnError(what, where, "export it with one batch for all")
    taken = {v for node in graph.node for v in (*node.input, *node.output)} | own
    taken |= {value.name for value in (*graph.input, *graph.output)}
    name = fresh_name("inputs", taken)
    sizes = [math.prod(shape) for shape in shapes]
    parts = [fresh_name(f"{value.name}_rows", taken) for value in inputs]
    constants = {}

    def constant(text: str, values: list[int]) -> str:
        given = fresh_name(text, taken)
        constants[given] = np.array(values, np.int64)
        return given

    if opset_of(joined) >= _SPLIT_BY_INPUT:
        nodes = [helper.make_node("Split", [name, constant("inputs_sizes", sizes)], parts, axis=1)]
    else:
        nodes = [helper.make_node("Split", [name], parts, axis=1, split=sizes)]
    for value, shape, part in zip(inputs, shapes, parts, strict=True):
        element = value.type.tensor_type.elem_type
        cast = element != TensorProto.FLOAT
        shaped = fresh_name(f"{value.name}_shaped", taken) if cast else value.name
        to = constant(f"{value.name}_shape", [-1, *shape])
        nodes.append(helper.make_node("Reshape", [part, to], [shaped]))
        if cast:
            nodes.append(helper.make_node("Cast", [shaped], [value.name], to=element))
    kept = [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(kept)
    for value in inputs:
        graph.input.remove(value)
    first = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, sum(sizes)])
    first.type.tensor_type.shape.dim[0].CopyFrom(batch)
    graph.input.insert(0, first)
    graph.initializer.extend(numpy_helper.from_array(array, given) for given, array in constants.items())
    return joined


def _rows(value: onnx.ValueInfoProto, where: str) -> tuple[int, ...]:
    """The shape of one row. LearnError where it is not known."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or tensor.elem_type not in _PLAIN:
        raise LearnError(f"its input {value.name!r} is not a tensor of numbers", where, "make it a constant")
    dims = tensor.shape.dim
    if not tensor.HasField("shape") or not dims or any(dim.dim_value < 1 for dim in dims[1:]):
        said = f"[{', '.join(map(_say, dims))}]" if dims else "no shape"
        what = f"its input {value.name!r} has {said}"
        raise LearnError(what, where, "export it with a batch first, and all other dimensions as numbers")
    return tuple(dim.dim_value for dim in dims[1:])


def _say(dim: onnx.TensorShapeProto.Dimension) -> str:
    return str(dim.dim_value or dim.dim_param or "?")
