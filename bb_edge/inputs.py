"""Checks the values that a host gives as inputs of a target, and converts them to the engine's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from bb_edge.engine.plain import payload_bytes
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.host_arrays import ArrayMisfitError, host_array
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
    """An invoke or event is refused: its target or input is unknown, or its values do not fit."""


def decode_input(graph: BoundGraph, name: str, value: object) -> object:
    """Converts a host's value for an input: an array stays as it is, bytes for a tensor are decoded.

    Numbers and lists become arrays of the declared dtype where it holds them (`bb_edge.ir.host_arrays`).

    Raises InvokeError where there is no such input, or the value is not of its type, dtype or shape.
    """
    if name not in graph.slot.inputs:
        there_are = ", ".join(graph.slot.inputs) or "none"
        raise InvokeError(f"no input {name!r}", graph.target, f"inputs: {there_are}")
    declared = graph.slot.input_types[name]
    where = f"{graph.target}, input {name!r}"
    if not types.is_subtype(declared.node, types.TENSOR):
        taken = None if value is None else _taken(declared.node, value)
        if taken is None:
            hint = _HINTS.get(declared.node.id, "give a value of that type")
            raise InvokeError(f"expected {declared.node}, got {described(value)}", where, hint)
        return taken
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            value = decode_tensor(value)
        except TensorError as error:
            raise InvokeError(error.what, where) from error
    elem = declared.node.elem_type
    try:
        array = host_array(value, None if elem is None else types.dtype_of_elem(elem), declared.shape)
    except ArrayMisfitError as error:
        raise InvokeError(error.what, where, error.hint) from error
    if array.dtype == object:
        raise InvokeError(f"expected {declared}, got {described(value)}", where, "give an array of numbers")
    return array


def _taken(node: types.TypeNode, value: object) -> object:
    """The value as the engine holds it (an address may be its bytes); None if it is of another type."""
    if node == types.MULTIADDRESS and isinstance(value, bytes):
        return value
    if node == types.ADDRESS_VEC and isinstance(value, tuple | list):
        return tuple(value) if all(isinstance(item, Address | bytes) for item in value) else None
    return taker(node)(value)


Expected: TypeAlias = "dict[str, tuple[int, np.dtype[Any], tuple[int, ...] | None]]"
"""Site, dtype and shape of tensor inputs, by their names."""


def read_inputs(
    graph: BoundGraph, expected: Expected, shared: types.SharedDims, given: Mapping[str, object]
) -> tuple[dict[int, object], int]:
    """The values of a target's inputs by their sites, and how many bytes they have. InvokeError."""
    values: dict[int, object] = {}
    size = 0
    named = False  # only inputs that take the long way have sizes with names
    for name, value in given.items():
        known = expected.get(name)
        if known is not None and type(value) is np.ndarray:
            site, dtype, shape = known
            if value.dtype is dtype and (shape is None or value.shape == shape):
                values[site] = value
                size += value.nbytes
                continue
        value = decode_input(graph, name, value)
        values[graph.slot.inputs[name]] = value
        size += payload_bytes(value)
        named = bool(shared)
    if named:
        check_shared(graph, shared, values)
    return values, size


def expected_inputs(graph: BoundGraph) -> Expected:
    """Returns (site, dtype, shape) of the tensor inputs that a comparison can check without `decode_input`.

    The shape is None if any shape fits. Inputs with symbolic dimensions are left out.
    """
    expected = {}
    for name, site in graph.slot.inputs.items():
        declared = graph.slot.input_types[name]
        elem = declared.node.elem_type
        dtype = None if elem is None else types.dtype_of_elem(elem)
        fixed = declared.shape is None or all(isinstance(d, int) for d in declared.shape)
        if dtype is not None and fixed and elem == types.elem_of_dtype(dtype):
            shape = None if declared.shape is None else tuple(d for d in declared.shape if isinstance(d, int))
            expected[name] = (site, dtype, shape)
    return expected


def check_shared(graph: BoundGraph, shared: types.SharedDims, values: Mapping[int, object]) -> None:
    """Checks that symbolic dimensions of one name have one size. Raises InvokeError if not."""
    sites = graph.slot.inputs.items()
    present = ((name, values[site]) for name, site in sites if site in values)
    shapes = {name: value.shape for name, value in present if isinstance(value, np.ndarray)}
    if differing := types.differing_dim(shared, shapes):
        raise InvokeError(differing, graph.target, "dimensions of one name must be equal")
