"""What is known of every value of a body: shape, dtype, and its contents where they follow from constants.

The device's own kernels say it, fitted to one concrete batch; where the first dimension is open, to two
batches: what differs between them is dynamic. A value that is dynamic elsewhere than in its first dimension,
or whose shape depends on data, is left unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_host.edge.tflite.graph import DYNAMIC
from bb_host.program import Function
from bb_kernels import KernelError, TensorSpec, evaluate, prepare

__all__ = ["Fact", "facts_of"]

Array = np.ndarray[Any, np.dtype[Any]]

_BATCHES = (3, 5)
_FOLD_BYTES = 16 * 1024 * 1024


class Fact(NamedTuple):
    """`shape` has DYNAMIC in its first place at most; `value` is a constant's contents, `scale` its grid
    where it is int8 numbers behind a DequantizeLinear: one scale, or one per output channel.
    """

    shape: tuple[int, ...]
    dtype: str
    value: Array | None = None
    scale: Array | None = None


def facts_of(function: Function, types: Mapping[str, ValueType], version: int) -> dict[str, Fact]:
    """By value name; what is not in it is unknown. `types` are those of the inputs."""
    probes = [_probe(function, types, version, batch) for batch in _BATCHES]
    found = {}
    for name, (spec, value) in probes[0].items():
        if name not in probes[1]:
            continue
        other, again = probes[1][name]
        shape = _merged(spec.shape, other.shape)
        if shape is None or spec.dtype != other.dtype:
            continue
        same = value is not None and again is not None and np.array_equal(value, again, equal_nan=False)
        found[name] = Fact(shape, spec.dtype.name, value if same else None)
    for op in function.ops:
        if op.op_type != "DequantizeLinear" or op.outputs[0] not in found:
            continue
        fact, source = found[op.outputs[0]], found.get(op.inputs[0])
        scale = found.get(op.inputs[1])
        zero = found.get(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else None
        centred = zero is None or (zero.value is not None and not np.any(zero.value))
        if fact.value is not None and source and source.dtype == "int8" and scale and centred:
            found[op.outputs[0]] = fact._replace(scale=scale.value)
    return found


def _merged(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    if len(first) != len(second) or first[1:] != second[1:]:
        return None
    if not first or first[0] == second[0]:
        return first
    return (DYNAMIC, *first[1:])


def _input_spec(known: ValueType | None, batch: int) -> TensorSpec | None:
    if known is None or known.shape is None:
        return None
    dtype = dtype_of_elem(known.node.elem_type or 0)
    if dtype is None or not all(isinstance(dim, int) for dim in known.shape[1:]):
        return None
    dims = tuple(dim if isinstance(dim, int) else batch for dim in known.shape)
    return TensorSpec(np.dtype(dtype), dims)


def _probe(
    function: Function, types: Mapping[str, ValueType], version: int, batch: int
) -> dict[str, tuple[TensorSpec, Array | None]]:
    known: dict[str, tuple[TensorSpec, Array | None]] = {}
    for name in function.inputs:
        spec = _input_spec(types.get(name), batch)
        if spec is not None:
            known[name] = (spec, None)
    for op in function.ops:
        if op.domain not in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS) or any(op.subgraphs()):
            continue
        if any(name and name not in known for name in op.inputs):
            continue
        given = [known[name] if name else None for name in op.inputs]
        arrays = [None if g is None else g[1] for g in given]
        try:
            prepared = prepare(
                op.op_type,
                version,
                op.attrs,
                [None if g is None else g[0] for g in given],
                arrays,
                max(1, len(op.outputs)),
            )
            if prepared.dynamic:
                continue
            values: tuple[Array, ...] = tuple(prepared.values or ())
            small = sum(spec.nbytes for spec in prepared.outputs) <= _FOLD_BYTES
            if not values and small and all(g is None or g[1] is not None for g in given):
                values = evaluate(prepared, arrays)
        except KernelError:
            continue
        for position, name in enumerate(op.outputs):
            if name and values and position < len(values):
                value = values[position]
                known[name] = (TensorSpec(value.dtype, value.shape), value)
            elif name and position < len(prepared.outputs):
                known[name] = (prepared.outputs[position], None)
    return known
