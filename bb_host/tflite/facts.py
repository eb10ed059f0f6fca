"""What is known of every value of a body: shape, dtype, and its contents where they follow from constants.

The device's own kernels say it, fitted to one concrete batch; where the first dimension is open, to two
batches: what differs between them is dynamic. A value that is dynamic elsewhere than in its first dimension,
or whose shape depends on data, is left unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.tflite.graph import DYNAMIC, Quantization
from bb_kernels import KernelError, TensorSpec, evaluate, prepare

_BATCHES = (3, 5)
_FOLD_BYTES = 16 * 1024 * 1024


class Fact(NamedTuple):
    """`shape` has DYNAMIC in its first place at most; `value` is a constant's contents, `grid` what it is on
    where it is integers behind a DequantizeLinear (as int8, for uint8 too).
    """

    shape: tuple[int, ...]
    dtype: str
    value: Array | None = None
    grid: Quantization | None = None


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
        grid = _grid(op, found) if op.outputs and op.outputs[0] in found else None
        if grid is not None and found[op.outputs[0]].value is not None:
            found[op.outputs[0]] = found[op.outputs[0]]._replace(grid=grid)
    return found


_MOVING = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _grid(op: Op, found: Mapping[str, Fact]) -> Quantization | None:
    """The grid of a constant that an op gives: its own, or that of what it only moves."""
    source = found.get(op.inputs[0]) if op.inputs else None
    if source is None or not is_onnx(op):
        return None
    if op.op_type == "DequantizeLinear":
        scale = found.get(op.inputs[1])
        zero = found.get(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else None
        if scale is None or scale.value is None or (zero is not None and zero.value is None):
            return None
        scales = scale.value.reshape(-1).astype(np.float32)
        zeros = np.zeros(len(scales), np.int64)
        if scale.value.ndim > 1:
            return None
        if zero is not None and zero.value is not None:
            zeros = np.broadcast_to(zero.value.reshape(-1), scales.shape).astype(np.int64)
        if source.dtype == "uint8":
            zeros = zeros - 128
        axis = op.integer("axis", 1)
        return Quantization(scales, zeros, axis % max(1, len(source.shape)))
    known = source.grid
    if known is None or op.op_type not in _MOVING:
        return None
    if known.scale.size == 1 or op.op_type == "Identity":
        return known
    if op.op_type == "Transpose":
        rank = len(source.shape)
        perm = op.integers("perm", range(rank)[::-1])
        return Quantization(known.scale, known.zero_point, list(perm).index(known.axis))
    return None


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
        if not is_onnx(op) or any(op.subgraphs()):
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
                with np.errstate(all="ignore"):  # ONNX computes inf and nan without warnings
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
