"""Constants and shapes of a model, computed before it is differentiated.

Gradient rules ask for axes, sizes and ranks in numbers. Exporters compute them in the graph at times, from
constants or from shapes that the model's inputs fix: what does not depend on the batch is folded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bb_edge.ir.types import ValueType
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.rename import fresh_name
from bb_host.ir.values import constant, constant_array
from bb_host.learn.computed_shapes import computed_shapes, with_open_dim
from bb_host.learn.settled_branches import with_settled_branches
from bb_host.learn.shapes import infer_types
from bb_host.passes.tensor import constants

_NO_END = np.iinfo(np.int32).max
"""What exporters write for an end that is meant to be none, or more."""

MAX_ROUNDS = 8
"""Each round knows the shapes that the one before has made constant."""


def folded(function: Function) -> Function:
    """The function with its constant parts computed.

    Its declared types stay as they are; those of what is reshaped come to them, where they can be counted.
    """
    declared = dict(function.types)
    for _ in range(MAX_ROUNDS):
        function = _without_whole_slices(with_settled_branches(function))
        typed = dataclasses.replace(function, types=infer_types(function))
        found, contents = computed_shapes(typed)
        typed = _without_slices_to_shapes(typed, contents)
        counted = {**_counted(typed), **found}
        done = constants.run(_with_dims(typed, contents))
        if done is typed and not counted:
            break
        declared.update(counted)
        function = dataclasses.replace(done, types=declared)
    return function


def _without_whole_slices(function: Function) -> Function:
    """Slices without the axes of which they take everything, up to an end of 2³¹−1 or beyond.

    TensorFlow's exporter cuts the batch as well, whole: ONNX's inference takes its size for another one.
    """
    known = {op.outputs[0]: array for op in function.ops if (array := constant_array(op)) is not None}
    names = {*function.inputs, *(v for op in function.ops for v in op.outputs)}
    ops: list[Op] = []
    for op in function.ops:
        settings = [known.get(v) for v in op.inputs[1:]] if is_onnx(op, "Slice") else []
        if len(settings) < 3 or any(s is None for s in settings):
            ops.append(op)
            continue
        starts, ends, axes, *steps = (s.reshape(-1) for s in settings if s is not None)
        kept = (starts != 0) | (ends < _NO_END)
        if steps:
            kept |= steps[0] != 1
        if kept.all():
            ops.append(op)
        elif not kept.any():
            ops.append(Op("Identity", op.domain, op.inputs[:1], op.outputs, name=op.name))
        else:
            inputs = [op.inputs[0]]
            for setting in (starts, ends, axes, *steps):
                inputs.append(fresh_name(f"{op.outputs[0]}/setting", names))
                ops.append(constant(inputs[-1], setting[kept]))
            ops.append(dataclasses.replace(op, inputs=tuple(inputs)))
    return function.with_ops(ops)


def _without_slices_to_shapes(function: Function, contents: Mapping[str, Array]) -> Function:
    """Without slices up to the value's own shape: PyTorch's older exporter cuts what it scatters so."""
    ops: list[Op] = []
    whole = False
    for op in function.ops:
        settings = [contents.get(v) for v in op.inputs[1:]] if is_onnx(op, "Slice") else []
        known = function.types.get(op.inputs[0]) if settings else None
        if known is not None and known.shape and all(s is not None for s in settings):
            starts, ends, *rest = (s.reshape(-1).tolist() for s in settings if s is not None)
            if not any(starts) and not rest and tuple(ends) == known.shape:
                op = Op("Identity", op.domain, op.inputs[:1], op.outputs, name=op.name)
                whole = True
        ops.append(op)
    return function.with_ops(ops) if whole else function


def _counted(function: Function) -> dict[str, ValueType]:
    """Reshaped values of which one dim is open, and follows from how many elements they have.

    ONNX's inference gives up on a −1 beside an open batch: [N, 5, 8] as [N, 5, 2, −1] has 4 there. And it
    does not see that a −1 is the batch: [N, 1, 1, 8] as [−1, 8, 1, 1] has N there.
    """
    known = {
        d
        for name in function.inputs
        for d in (function.types[name].shape or () if name in function.types else ())
        if isinstance(d, str)
    }
    found: dict[str, ValueType] = {}
    for op in function.ops:
        if not is_onnx(op, "Reshape"):
            continue
        before, after = (function.types.get(v) for v in (op.inputs[0], op.outputs[0]))
        if before is None or after is None or before.shape is None or after.shape is None:
            continue
        if counted := with_open_dim(before.shape, after.shape, known):
            found[op.outputs[0]] = after._replace(shape=counted)
    return found


def _with_dims(function: Function, contents: Mapping[str, Array]) -> Function:
    """Shapes, and what is picked of them, as constants where the contents are numbers."""
    shapes = {op.outputs[0] for op in function.ops if is_onnx(op, "Shape")}
    ops = []
    for op in function.ops:
        is_dims = op.outputs[0] in shapes or (is_onnx(op, "Gather", "Slice") and op.inputs[0] in shapes)
        dims = contents.get(op.outputs[0]) if is_dims else None
        known = dims is not None and all(isinstance(dim, int) for dim in dims.flat)
        ops.append(constant(op.outputs[0], np.array(dims, np.int64)) if known else op)
    return function.with_ops(ops)
