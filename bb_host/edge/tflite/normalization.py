"""BatchNormalization, LayerNormalization, Softmax."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bb_host.edge.tflite.errors import NotLowered
from bb_host.edge.tflite.lowering import NHWC, PLAIN, Region
from bb_host.edge.tflite.schema import NONE
from bb_host.program import Op

__all__ = ["RULES"]


def _batch_normalization(region: Region, op: Op) -> None:
    if op.attrs.get("training_mode", 0):
        raise NotLowered("it trains")
    given = [region.constant(op, i) for i in range(1, 5)]
    scale, shift, mean, variance = (np.asarray(g, np.float64) for g in given)
    gain = scale / np.sqrt(variance + float(cast("float", op.attrs.get("epsilon", 1e-5))))
    offset = shift - mean * gain
    rank = len(region.fact(op.inputs[0]).shape)
    layout = NHWC if rank == 4 else PLAIN
    if rank not in (2, 4):
        gain, offset = (v.reshape(-1, *[1] * (rank - 2)) for v in (gain, offset))
    shape = region.result(op, layout)
    y = region.op("MUL", [region.read(op.inputs[0], layout), region.floats(gain)], shape, act=NONE)
    region.give(op.outputs[0], region.op("ADD", [y, region.floats(offset)], shape, act=NONE), layout)


def _layer_normalization(region: Region, op: Op) -> None:
    shape = region.result(op)
    rank = len(shape)
    axis = int(cast("int", op.attrs.get("axis", -1))) % rank
    if axis == 0:
        raise NotLowered("it goes over the batch")
    axes = region.ints(range(axis, rank))
    few = (*shape[:axis], *[1] * (rank - axis))
    x = region.read(op.inputs[0])
    mean = region.op("MEAN", [x, axes], few, keep_dims=True)
    away = region.op("SUB", [x, mean], shape, act=NONE)
    square = region.op("MUL", [away, away], shape, act=NONE)
    variance = region.op("MEAN", [square, axes], few, keep_dims=True)
    epsilon = region.floats(cast("float", op.attrs.get("epsilon", 1e-5)))
    variance = region.op("ADD", [variance, epsilon], few, act=NONE)
    y = region.op("MUL", [away, region.op("RSQRT", [variance], few)], shape, act=NONE)
    y = region.op("MUL", [y, region.read(op.inputs[1])], shape, act=NONE)
    if len(op.inputs) > 2 and op.inputs[2]:
        y = region.op("ADD", [y, region.read(op.inputs[2])], shape, act=NONE)
    region.give(op.outputs[0], y)


def _softmax(region: Region, op: Op) -> None:
    name = op.inputs[0]
    rank = len(region.fact(name).shape)
    axis = int(cast("int", op.attrs.get("axis", -1 if region.version >= 13 else 1))) % rank
    if region.version < 13 and axis != rank - 1:
        raise NotLowered("before opset 13 it goes over several axes")
    if rank == 4 and axis == 1:
        y = region.op("SOFTMAX", [region.read(name, NHWC)], region.result(op, NHWC), beta=1.0)
        region.give(op.outputs[0], y, NHWC)
        return
    x, shape = region.read(name), region.result(op)
    if axis == rank - 1:
        region.give(op.outputs[0], region.op("SOFTMAX", [x], shape, beta=1.0))
        return
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    x = region.transposed(x, perm)
    y = region.op("SOFTMAX", [x], region.graph.shape(x), beta=1.0)
    region.give(op.outputs[0], region.transposed(y, perm))


RULES: dict[str, Any] = {
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Softmax": _softmax,
}
