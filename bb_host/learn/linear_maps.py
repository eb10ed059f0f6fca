"""Operators that are a fixed matrix along each axis they touch: `y = M·x`, so `dx = Mᵀ·dy`.

Resizing, mirrored padding and the like are such maps. The matrix comes from the device's own kernel, run on
the unit matrix: whatever modes an operator has, its gradient is that of what the device computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bb_edge.backends import NumPyBackend
from bb_edge.ir import keys
from bb_edge.roles.errors import BackendError
from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.proto import function_to_proto
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.shapes import Shape

_BACKEND = NumPyBackend()


def matrix_of(g: GradientBuilder, op: Op, length: int, settings: Mapping[int, Array]) -> Array:
    """The matrix [out, in], float64, of an op that works along the first axis of a matrix.

    `op` with its attributes is run on the unit matrix [length, length] as input 0; `settings` are its other
    inputs by position. NotDifferentiableError where the device's kernel refuses it.
    """
    names = ["x", *(f"s{i}" if i in settings else "" for i in range(1, max(settings, default=0) + 1))]
    constants = tuple(
        Op("Constant", keys.ONNX_DOMAIN, (), (f"s{i}",), {"value": array}) for i, array in settings.items()
    )
    call = Op(op.op_type, keys.ONNX_DOMAIN, tuple(names), ("y",), dict(op.attrs))
    body = Function(
        "axis", keys.BACKEND_DOMAIN, ("x",), ("y",), (*constants, call), opsets=dict(g.opsets)
    )  # fmt: skip
    try:
        (found,) = _BACKEND.prepare(function_to_proto(body)).run([np.eye(length)])
    except BackendError as error:
        raise NotDifferentiableError(op, f"the device cannot compute it: {error.what}", error.hint) from error
    return found


def adjoint(g: GradientBuilder, gradient: str, shape: Shape, matrices: Mapping[int, Array], like: str) -> str:
    """`Mᵀ` along each axis of a gradient of this shape; matrices [out, in] by axis, dtype that of `like`.

    Where every matrix repeats each entry the same number of times, the copies are summed; else it is a
    product per axis.
    """
    matrices = {axis: m for axis, m in matrices.items() if not _is_unit(m)}
    if not matrices:
        return gradient
    summed = _sum_of_copies(g, gradient, shape, matrices)
    if summed is not None:
        return summed
    rank = len(shape)
    for axis, matrix in sorted(matrices.items(), key=lambda item: item[1].shape[1] / item[1].shape[0]):
        table = matrix.astype(g.dtype(like))
        if axis == rank - 1:
            gradient = g.op("MatMul", gradient, g.const(np.ascontiguousarray(table)))
        elif axis == rank - 2:
            gradient = g.op("MatMul", g.const(np.ascontiguousarray(table.T)), gradient)
        else:
            perm = list(range(rank))
            perm[axis], perm[-1] = perm[-1], perm[axis]
            moved = g.op("Transpose", gradient, perm=perm)
            product = g.op("MatMul", moved, g.const(np.ascontiguousarray(table)))
            gradient = g.op("Transpose", product, perm=perm)
    return gradient


def _is_unit(matrix: Array) -> bool:
    return matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))


def _copies(matrix: Array) -> int:
    """How often each entry is repeated where it lies; 0 for another matrix."""
    out, length = matrix.shape
    times = out // length if length and out % length == 0 else 0
    exact = times and np.array_equal(matrix, np.repeat(np.eye(length), times, axis=0))
    return times if exact else 0


def _sum_of_copies(
    g: GradientBuilder, gradient: str, shape: Shape, matrices: Mapping[int, Array]
) -> str | None:
    times = {axis: _copies(matrix) for axis, matrix in matrices.items()}
    open_dims = [axis for axis, dim in enumerate(shape) if axis not in times and not isinstance(dim, int)]
    if not all(times.values()) or len(open_dims) > 1 or 0 in shape:
        return None
    split: list[int] = []
    copies: list[int] = []
    for axis, dim in enumerate(shape):
        if axis in times:
            split += [matrices[axis].shape[1], times[axis]]
            copies.append(len(split) - 1)
        else:
            split.append(dim if isinstance(dim, int) else -1)
    apart = g.op("Reshape", gradient, g.ints(*split))
    return g.op("ReduceSum", apart, g.ints(*copies), keepdims=0)
