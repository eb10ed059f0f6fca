"""Constant folding.

1. An op whose inputs are all constant becomes its result, computed by the kernel that the device would use.
2. `Shape` and `Size` of a value whose shape is fully known are constants. 3. Ops that draw numbers, ops with
bodies, and ops without a kernel stay. 4. A result larger than both `LARGE` bytes and what it is computed
from stays an op: folding `Expand` or `ConstantOfShape` must not blow the file up. Weights that are stored
quantized, or as float16, stay so at any size: the device folds them. 5. A constant of any spelling is
written as `value`. 6. `CastLike` of what has a known element type is the `Cast` to that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.backends import NumPyBackend
from bb_edge.ir import keys
from bb_edge.roles.errors import BackendError
from bb_host.ir.program import Array, Function, Op, RawTensor
from bb_host.ir.proto import function_to_proto
from bb_host.ir.queries import DRAWS, is_onnx
from bb_host.ir.values import Values, constant, constant_array

LARGE = 64 * 1024
"""Bytes; a folded result up to here may be larger than its inputs."""

_BACKEND = NumPyBackend()


def run(function: Function) -> Function:
    """The function with its constant parts computed; itself where there are none."""
    values = Values(function)
    constants = dict(values.constants)
    ops: list[Op] = []
    for op in function.ops:
        array = constant_array(op)
        if array is not None:
            ops.append(op if "value" in op.attrs else constant(op.outputs[0], array))
            continue
        if is_onnx(op, "CastLike"):
            op = _as_cast(op, values)
        results = _folded(op, function, values, constants)
        if results is None:
            ops.append(op)
            continue
        for name, result in zip(op.outputs, results, strict=False):
            if name:
                constants[name] = result
                ops.append(constant(name, result))
    return function.with_ops(ops)


def _as_cast(op: Op, values: Values) -> Op:
    """PyTorch's exporter casts the bounds of a Clip like the value, which would keep it off TFLite."""
    elem = values.elem_type(op.inputs[1])
    if elem is None:
        return op
    return dataclasses.replace(op, op_type="Cast", inputs=op.inputs[:1], attrs={**op.attrs, "to": elem})


def _folded(
    op: Op, function: Function, values: Values, constants: dict[str, Array]
) -> tuple[Array, ...] | None:
    if (
        not is_onnx(op)
        or op.op_type in DRAWS
        or op.op_type == "Constant"
        or any(True for _ in op.subgraphs())
    ):
        return None
    if any(isinstance(value, RawTensor) for value in op.attrs.values()):
        return None
    if op.op_type in ("Shape", "Size") and op.inputs[0] not in constants:
        return _shape(op, values)
    names = [name for name in op.inputs if name]
    if not names or not all(name in constants for name in names):
        return None
    if op.op_type == "Dropout" and len(names) > 2:
        return None
    if op.op_type == "DequantizeLinear" or (op.op_type == "Cast" and _is_stored_half(constants[names[0]])):
        return None
    given = {name: constants[name] for name in names}
    found = computed(op, given, function.opsets)
    if found is None:
        return None
    size = sum(result.nbytes for result in found)
    if size > LARGE and size > sum(array.nbytes for array in given.values()):
        return None
    results = iter(found)
    return tuple(next(results) if name else np.zeros(0, np.float32) for name in op.outputs)


def computed(op: Op, given: Mapping[str, Array], opsets: Mapping[str, int]) -> Sequence[Array] | None:
    """What the device's kernel makes of the inputs: its outputs that have names. None without a kernel."""
    outputs = tuple(name for name in op.outputs if name)
    body = Function("fold", keys.BACKEND_DOMAIN, tuple(given), outputs, (op,), opsets=dict(opsets))
    try:
        return _BACKEND.prepare(function_to_proto(body)).run(list(given.values()))
    except BackendError:
        return None  # the device, or the check before it, says what is wrong


def _is_stored_half(array: Array) -> bool:
    return array.dtype == np.float16 and array.ndim > 0


def _shape(op: Op, values: Values) -> tuple[Array, ...] | None:
    shape = values.shape(op.inputs[0])
    if shape is None:
        return None
    if op.op_type == "Size":
        return (np.asarray(int(np.prod(shape, dtype=np.int64)), np.int64),)
    return (np.asarray(shape[op.integer("start", 0) : op.integer("end", len(shape))], np.int64),)
