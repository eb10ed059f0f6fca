"""What a host may hand in as a target's inputs, and how it is taken (semantics §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bb_edge.engine.run.bound import BoundGraph
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.tensors import TensorError, decode_tensor
from bb_edge.syscalls.results import described, taker

_HINTS = {
    types.PEER_ID_VEC.id: "give a tuple of PeerId",
    types.MULTIADDRESS.id: "give an Address, or its bytes",
    types.ADDRESS_VEC.id: "give a tuple of Address",
    types.TRIGGER.id: "give bb_edge.extend.TRIGGER",
    types.BYTES.id: "give bytes",
}


class InvokeError(BBError):
    """An invoke or event that cannot be taken: unknown target or input, too many or too large values."""


def decode_input(graph: BoundGraph, name: str, value: object) -> object:
    """A host's value for a function input: arrays pass, bytes for a tensor input are decoded.

    Raises InvokeError where the value is not what the input declares.
    """
    declared = graph.slot.input_types[name]
    where = f"{graph.target}, input {name!r}"
    if isinstance(value, np.ma.MaskedArray):
        raise InvokeError("a masked array, whose mask would be lost", where, "fill it: array.filled(value)")
    if not types.is_subtype(declared.node, types.TENSOR):
        taken = None if value is None else _taken(declared.node, value)
        if taken is None:
            hint = _HINTS.get(declared.node.id, "give a value of that type")
            raise InvokeError(f"{described(value)}, {declared.node} is expected", where, hint)
        return taken
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            value = decode_tensor(value)
        except TensorError as error:
            raise InvokeError(error.what, where) from error
    if type(value) is not np.ndarray:
        try:
            value = np.asarray(value)  # of a subclass: its base, whose operators are those of the ops
        except ValueError as error:
            raise InvokeError(f"no array of numbers: {error}", where, "give rows of one length") from error
    if value.dtype == object:
        raise InvokeError(f"{described(value)}, {declared} is expected", where, "give an array of numbers")
    elem = declared.node.elem_type
    if elem is not None and types.elem_of_dtype(value.dtype) != elem:
        expected = types.dtype_of_elem(elem)
        raise InvokeError(
            f"dtype {value.dtype}, {expected} is expected", where, f"convert it: array.astype('{expected}')"
        )
    if declared.shape is not None:
        fits = len(declared.shape) == value.ndim and all(
            not isinstance(d, int) or d == n
            for d, n in zip(declared.shape, value.shape)  # noqa: B905 (checked)
        )
        if not fits:
            raise InvokeError(f"shape {value.shape}, {tuple(declared.shape)} is expected", where)
    return value


def _taken(node: types.TypeNode, value: object) -> object:
    """The value as the engine holds it, addresses also in their bytes; None where it is of another type."""
    if node == types.MULTIADDRESS and isinstance(value, bytes):
        return value
    if node == types.ADDRESS_VEC and isinstance(value, tuple | list):
        return tuple(value) if all(isinstance(one, Address | bytes) for one in value) else None
    return taker(node)(value)


def expected_inputs(graph: BoundGraph) -> dict[str, tuple[int, np.dtype[Any], tuple[int, ...] | None]]:
    """(site, dtype, shape) of the inputs that one comparison can accept: tensors of one dtype.

    The shape is None where any will do; inputs with symbolic dimensions take the long way.
    """
    found = {}
    for name, site in graph.slot.inputs.items():
        declared = graph.slot.input_types[name]
        elem = declared.node.elem_type
        dtype = None if elem is None else types.dtype_of_elem(elem)
        fixed = declared.shape is None or all(isinstance(d, int) for d in declared.shape)
        if dtype is not None and fixed and elem == types.elem_of_dtype(dtype):
            shape = None if declared.shape is None else tuple(d for d in declared.shape if isinstance(d, int))
            found[name] = (site, dtype, shape)
    return found


def check_shared(graph: BoundGraph, shared: types.SharedDims, values: Mapping[int, object]) -> None:
    """Free sizes of one name are equal. InvokeError where they are not."""
    sites = graph.slot.inputs.items()
    given = ((name, values[site]) for name, site in sites if site in values)
    shapes = {name: value.shape for name, value in given if isinstance(value, np.ndarray)}
    if differing := types.differing_dim(shared, shapes):
        raise InvokeError(differing, graph.target, "sizes of one name are equal: give arrays of such shapes")
