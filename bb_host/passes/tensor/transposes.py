"""Merges transposes, and pushes them down to where they meet: the islands that converters from NHWC leave.

1. A `Transpose` of a `Transpose` is one; one that permutes nothing goes (`identities`). 2. An elementwise op
whose inputs are all transposed alike, or constants, works on what lies before the transposes; one
`Transpose` follows it. 3. So do `Concat` (its axis permuted) and reductions that keep their dims; a reduction
that drops them loses its transpose where the dims that remain are in order. 4. Only transposes that one op
alone reads are moved, so their number never grows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bb_edge.ir.types import ValueType
from bb_host.ir.operator_kinds import BROADCAST, REDUCTIONS, UNARY
from bb_host.ir.program import AttrValue, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values, constant

_ELEMENTWISE = UNARY | BROADCAST
_REDUCTIONS = REDUCTIONS - {"ReduceLogSum", "ReduceLogSumExp"}


def run(function: Function) -> Function:
    """The function with its transposes merged and moved; itself where nothing moves."""
    merged = _merge(function)
    while True:
        moved = _move_one_layer(merged)
        if moved is merged:
            return merged
        merged = _merge(moved)


def _perm(op: Op | None, values: Values) -> tuple[int, ...] | None:
    if op is None or not is_onnx(op, "Transpose"):
        return None
    perm = op.attrs.get("perm")
    if isinstance(perm, list):
        return tuple(int(axis) for axis in perm if isinstance(axis, int))
    rank = values.rank(op.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


def _merge(function: Function) -> Function:
    values = Values(function)
    ops = []
    for op in function.ops:
        outer = _perm(op, values)
        maker = values.maker.get(op.inputs[0]) if outer is not None else None
        inner = _perm(maker, values)
        if outer is not None and inner is not None and maker is not None:
            perm = [inner[axis] for axis in outer]
            op = dataclasses.replace(op, inputs=maker.inputs, attrs={**op.attrs, "perm": perm})
            values.maker[op.outputs[0]] = op
        ops.append(op)
    return function.with_ops(ops)


def _move_one_layer(function: Function) -> Function:
    """Moves the transposes before every op that can take it, each op once."""
    values = Values(function)
    ops: list[Op] = []
    types = dict(function.types)
    changed = False
    for op in function.ops:
        moved = _moved(op, values, types) if is_onnx(op) else None
        if moved is None:
            ops.append(op)
        else:
            ops.extend(moved)
            changed = True
            for new in moved:
                values.maker.update((name, new) for name in new.outputs)
    return dataclasses.replace(function, ops=tuple(ops), types=types) if changed else function


def _moved(op: Op, values: Values, types: dict[str, ValueType]) -> list[Op] | None:
    if op.op_type not in _ELEMENTWISE and op.op_type not in _REDUCTIONS and op.op_type != "Concat":
        return None
    if len(op.outputs) != 1 or any(True for _ in op.subgraphs()):
        return None
    data = op.inputs[:1] if op.op_type in _REDUCTIONS or op.op_type == "Clip" else op.inputs
    transposed = [name for name in data if name and name not in values.constants]
    perms = {_perm(values.maker.get(name), values) for name in transposed}
    if len(perms) != 1:
        return None
    (perm,) = perms
    if perm is None or any(values.uses[name] != op.inputs.count(name) for name in transposed):
        return None
    if any(name in values.function.outputs for name in transposed):
        return None
    before = {name: values.maker[name].inputs[0] for name in transposed}
    if op.op_type == "Concat":
        return _concat(op, values, types, perm, before)
    if op.op_type in _REDUCTIONS:
        return _reduction(op, values, types, perm, before)
    extra: list[Op] = []
    inputs = []
    for position, name in enumerate(op.inputs):
        if name in before:
            inputs.append(before[name])
        elif position < len(data) and name and values.constants[name].size != 1:
            array = values.constants[name]
            if array.ndim > len(perm):
                return None
            array = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            fresh = values.fresh(f"{name}_transposed")
            extra.append(constant(fresh, np.ascontiguousarray(np.transpose(array, np.argsort(perm)))))
            inputs.append(fresh)
        elif position < len(data) and name and values.constants[name].ndim > len(perm):
            return None
        else:
            inputs.append(name)
    return [*extra, *_followed(op, tuple(inputs), op.attrs, perm, values, types)]


def _followed(
    op: Op,
    inputs: tuple[str, ...],
    attrs: dict[str, AttrValue],
    perm: tuple[int, ...],
    values: Values,
    types: dict[str, ValueType],
) -> list[Op]:
    """The op on its new inputs, and the transpose that makes its old result."""
    result = op.outputs[0]
    inner = values.fresh(f"{result}_before")
    declared = types.get(result)
    if declared is not None and declared.shape is not None and len(declared.shape) == len(perm):
        back = [int(axis) for axis in np.argsort(perm)]
        types[inner] = ValueType(declared.node, tuple(declared.shape[axis] for axis in back))
    return [
        dataclasses.replace(op, inputs=inputs, outputs=(inner,), attrs=attrs),
        Op("Transpose", "", (inner,), (result,), {"perm": [int(axis) for axis in perm]}),
    ]


def _concat(
    op: Op, values: Values, types: dict[str, ValueType], perm: tuple[int, ...], before: dict[str, str]
) -> list[Op] | None:
    axis = op.attrs.get("axis")
    if not isinstance(axis, int) or not -len(perm) <= axis < len(perm):
        return None
    extra = []
    inputs = []
    for name in op.inputs:
        if name in before:
            inputs.append(before[name])
            continue
        array = values.constants[name]
        if array.ndim != len(perm):
            return None
        fresh = values.fresh(f"{name}_transposed")
        extra.append(constant(fresh, np.ascontiguousarray(np.transpose(array, np.argsort(perm)))))
        inputs.append(fresh)
    attrs = {**op.attrs, "axis": perm[axis % len(perm)]}
    return [*extra, *_followed(op, tuple(inputs), attrs, perm, values, types)]


def _reduction(
    op: Op, values: Values, types: dict[str, ValueType], perm: tuple[int, ...], before: dict[str, str]
) -> list[Op] | None:
    attrs = dict(op.attrs)
    inputs = [before[op.inputs[0]], *op.inputs[1:]]
    extra: list[Op] = []
    axes = attrs.get("axes")
    by_input = len(op.inputs) > 1 and bool(op.inputs[1])
    if by_input:
        known = values.constants.get(op.inputs[1])
        axes = None if known is None else [int(axis) for axis in known.reshape(-1)]
    if not isinstance(axes, list) or not axes:
        return None
    kept_axes = [int(axis) % len(perm) for axis in axes if isinstance(axis, int)]
    mapped = [perm[axis] for axis in kept_axes]
    if by_input:
        fresh = values.fresh(f"{op.inputs[1]}_transposed")
        extra.append(constant(fresh, np.asarray(mapped, np.int64)))
        inputs[1] = fresh
    else:
        attrs["axes"] = mapped
    if attrs.get("keepdims", 1) != 0:
        return [*extra, *_followed(op, tuple(inputs), attrs, perm, values, types)]
    rest = [perm[axis] for axis in range(len(perm)) if axis not in kept_axes]
    if rest != sorted(rest):
        return None
    return [*extra, dataclasses.replace(op, inputs=tuple(inputs), attrs=attrs)]
