"""Picks from a tensor before it is transposed: queries, keys and values that attention cuts from one.

1. A `Gather` of one index known now, a `Split` or a `Squeeze` of a `Transpose` works on what lies before it;
a `Transpose` of each result follows, with fewer dims where the op takes some away. 2. Only where such ops
alone read the transposed value, which then goes: what is moved is never more than it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bb_host.ir.program import Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values, constant


def run(function: Function) -> Function:
    """The function with its picks moved before transposes; itself where none can be."""
    values = Values(function)
    readers: dict[str, list[Op]] = {}
    for op in function.ops:
        for name in set(op.inputs):
            readers.setdefault(name, []).append(op)
    moved: dict[int, list[Op]] = {}
    for op in function.ops:
        perm = op.attrs.get("perm")
        if not is_onnx(op, "Transpose") or not isinstance(perm, list):
            continue
        order = [axis for axis in perm if isinstance(axis, int)]
        reading = readers.get(op.outputs[0], [])
        if not reading or values.uses[op.outputs[0]] != len(reading):
            continue  # an output, read twice by one op, or from inside of a body
        if all(_axes(reader, op.outputs[0], len(order), values) for reader in reading):
            moved.update((id(reader), _before(reader, op.inputs[0], order, values)) for reader in reading)
    return function.with_ops(new for op in function.ops for new in moved.get(id(op), (op,)))


def _axes(op: Op, value: str, rank: int, values: Values) -> list[int]:
    """The axes of a value that an op picks from; none where it does something else, or they are not known."""
    found: object = None
    if not is_onnx(op) or op.inputs[0] != value:
        return []
    if op.op_type == "Gather":
        index = values.constants.get(op.inputs[1])
        found = [op.attrs.get("axis", 0)] if index is not None and index.ndim == 0 else None
    elif op.op_type == "Split" and all(op.outputs):
        found = [op.attrs.get("axis", 0)]
    elif op.op_type == "Squeeze" and len(op.inputs) > 1:
        known = values.constants.get(op.inputs[1])
        found = None if known is None else known.reshape(-1).tolist()
    elif op.op_type == "Squeeze":
        found = op.attrs.get("axes")
    if not isinstance(found, list):
        return []
    axes = [axis % rank for axis in found if isinstance(axis, int) and -rank <= axis < rank]
    return axes if len(set(axes)) == len(found) else []


def _before(op: Op, source: str, perm: Sequence[int], values: Values) -> list[Op]:
    """The op on what lies before the transpose, and the transposes of its results."""
    axes = _axes(op, op.inputs[0], len(perm), values)
    places = sorted(perm[axis] for axis in axes)
    made: list[Op] = []
    inputs, attrs, rest = [source, *op.inputs[1:]], dict(op.attrs), list(perm)
    if op.op_type == "Squeeze" and len(op.inputs) > 1:
        inputs[1] = values.fresh(f"{op.inputs[1]}_before")
        made.append(constant(inputs[1], np.array(places, np.int64)))
    elif op.op_type == "Squeeze":
        attrs["axes"] = places
    else:
        attrs["axis"] = places[0]
    if op.op_type != "Split":
        left = [place for place in perm if place not in places]
        rest = [place - sum(gone < place for gone in places) for place in left]
    names = {result: values.fresh(f"{result}_before") for result in op.outputs}
    made.append(dataclasses.replace(op, inputs=tuple(inputs), outputs=tuple(names.values()), attrs=attrs))
    made += [Op("Transpose", "", (name,), (result,), {"perm": list(rest)}) for result, name in names.items()]
    return made
