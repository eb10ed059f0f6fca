"""Sparse tensors of ONNX models, written out: whatever computes here computes on dense ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.onnx_pb2 import AttributeProto, TensorProto
from bb_edge.ir.tensors import TensorError, from_tensor_proto
from bb_host.errors import SparseTensorError

MAX_DENSE_BYTES = (1 << 31) - 1
"""Of all sparse tensors of a model together, written out: a protobuf message holds no more."""


def densified(model: Any) -> Any:
    """The ModelProto with its sparse initializers and constants written out; itself where it has none.

    Takes any class of the ONNX schema, and gives the same. Raises SparseTensorError.
    """
    if not any(_sparse_tensors(scope) for scope in _scopes(model)):
        return model
    dense = type(model)()
    dense.CopyFrom(model)
    left = MAX_DENSE_BYTES
    for scope in _scopes(dense):
        for constant, sparse in _sparse_tensors(scope):
            tensor = _written_out(sparse, left)
            left -= len(tensor.raw_data)
            if constant is None:
                scope.initializer.add().MergeFromString(tensor.SerializeToString())
                continue
            tensor.ClearField("name")  # an attribute's tensor has none
            constant.ClearField("attribute")
            attribute = constant.attribute.add(name="value", type=AttributeProto.TENSOR)
            attribute.t.MergeFromString(tensor.SerializeToString())
        if hasattr(scope, "sparse_initializer"):
            scope.ClearField("sparse_initializer")
    return dense


def _scopes(model: Any) -> Iterator[Any]:
    """Whatever holds nodes: the graph, functions, their graphs, and all subgraphs."""
    pending = [model.graph, *model.functions]
    for function in model.functions:
        pending += [a.g for a in function.attribute_proto if a.type == AttributeProto.GRAPH]
    while pending:
        scope = pending.pop()
        yield scope
        for node in scope.node:
            if node.attribute:
                pending += [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def _sparse_tensors(scope: Any) -> list[tuple[Any, Any]]:
    """The sparse tensors of a scope, each with the Constant that holds it; None for an initializer."""
    found = [(None, sparse) for sparse in getattr(scope, "sparse_initializer", ())]
    for node in scope.node:
        if node.op_type == "Constant":
            found += [(node, a.sparse_tensor) for a in node.attribute if a.name == "sparse_value"]
    return found


def _written_out(sparse: Any, limit: int) -> TensorProto:
    """The dense tensor; what `indices` do not name is 0."""
    values = sparse.values
    where = f"sparse tensor {values.name!r}" if values.name else "a sparse Constant"
    dtype = types.dtype_of_elem(values.data_type)
    if dtype is None:
        raise SparseTensorError(
            f"element type {values.data_type} has no array form", where, "store it as numbers"
        )
    shape = tuple(sparse.dims)
    size = math.prod(shape) * dtype.itemsize
    if size > limit or any(d < 0 for d in shape):
        raise SparseTensorError(
            f"{list(shape)} of {dtype} takes {size} bytes written out, {limit} at most",
            where,
            "leave it out of the model, or cut it into smaller ones",
        )
    array = np.zeros(shape, dtype)
    try:
        entries = from_tensor_proto(TensorProto.FromString(values.SerializeToString()))
        at = from_tensor_proto(TensorProto.FromString(sparse.indices.SerializeToString()))
        if at.ndim == 2 and at.size:
            at = np.ravel_multi_index(tuple(at.T), shape)
        if at.size != entries.size or (at.size and at.min() < 0):
            raise ValueError(f"{at.size} indices for {entries.size} values")
        if at.size:
            array.reshape(-1)[at.reshape(-1)] = entries.reshape(-1)
    except (TensorError, IndexError, ValueError, TypeError) as error:
        raise SparseTensorError(
            f"indices and values do not fit: {error}", where, "export it again"
        ) from error
    found = TensorProto(name=values.name, data_type=values.data_type, dims=shape)
    found.raw_data = array.tobytes()
    return found
