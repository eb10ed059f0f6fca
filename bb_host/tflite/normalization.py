"""BatchNormalization and its kin, Softmax."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bb_host.ir.program import Array, Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import LAST, PLAIN, Layout, Region, Rule, dynamic, placed


def _batch_normalization(region: Region, op: Op) -> None:
    if op.attrs.get("training_mode", 0) or any(region.fact(v).value is None for v in op.inputs[1:]):
        _computed_batch_normalization(region, op)
        return
    if any(op.outputs[1:]):
        raise NotLowered("its further results are asked for")
    given = [region.constant(op, i) for i in range(1, 5)]
    scale, shift, mean, variance = (np.asarray(g, np.float64) for g in given)
    gain = scale / np.sqrt(variance + op.number("epsilon", 1e-5))
    offset = shift - mean * gain
    rank = len(region.fact(op.inputs[0]).shape)
    layout = LAST[4] if rank == 4 else region.layout(op.inputs[:1])
    x = region.read(op.inputs[0], layout)
    region.give(op.outputs[0], _per_channel(region, x, gain, offset, layout), layout)


def _computed_batch_normalization(region: Region, op: Op) -> None:
    """Scale, offset or statistics are computed: those of the batch itself, where it trains."""
    shape = region.fact(op.inputs[0]).shape
    layout = LAST.get(len(shape), PLAIN)
    x = region.read(op.inputs[0], layout)
    wide = region.graph.shape(x)
    scale, shift, mean, variance = (region.read(name) for name in op.inputs[1:5])
    few = region.graph.shape(scale)
    epsilon = region.floats(op.number("epsilon", 1e-5))
    if op.attrs.get("training_mode", 0):
        if dynamic(wide):
            raise NotLowered("it trains on an open batch")
        known = (mean, variance)
        mean = _channel_mean(region, x, few)
        x = region.op("SUB", [x, mean], wide)
        variance = _channel_mean(region, region.op("MUL", [x, x], wide), few)
        kept = op.number("momentum", 0.9)
        for name, old, new in zip(op.outputs[1:], known, (mean, variance), strict=False):
            if name:
                old = region.op("MUL", [old, region.floats(kept)], few)
                new = region.op("MUL", [new, region.floats(1 - kept)], few)
                region.give(name, region.op("ADD", [old, new], few))
    elif any(op.outputs[1:]):
        raise NotLowered("its further results are asked for")
    else:
        x = region.op("SUB", [x, mean], wide)
    variance = region.op("ADD", [variance, epsilon], few)
    gain = region.op("MUL", [scale, region.op("RSQRT", [variance], few)], few)
    x = region.op("MUL", [x, gain], wide)
    region.give(op.outputs[0], region.op("ADD", [x, shift], wide), layout)


def _channel_mean(region: Region, x: int, few: tuple[int, ...]) -> int:
    """Over all axes but the last: of each entry of the batch, then of those."""
    shape = region.graph.shape(x)
    if len(shape) > 2:
        x = region.op("MEAN", [x, region.ints([1, 2])], (shape[0], *few), keep_dims=False)
    return region.op("MEAN", [x, region.ints([0])], few, keep_dims=False)


def _instance_normalization(region: Region, op: Op) -> None:
    region.image(op)
    layout = region.layout(op.inputs[:1])
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    over = range(2, len(shape)) if layout == PLAIN else (1, 2)
    few = tuple(1 if axis in over else n for axis, n in enumerate(shape))
    y = _normalized(region, op, x, over, few, away=True)
    region.give(op.outputs[0], _per_channel(region, y, *_gains(region, op), layout), layout)


def _group_normalization(region: Region, op: Op) -> None:
    layout, shape = region.image(op)
    n, h, w, channels = shape
    groups = op.integer("num_groups")
    x = region.reshaped(region.read(op.inputs[0], layout), (n, h * w, groups, channels // groups))
    y = region.reshaped(_normalized(region, op, x, (1, 3), (n, 1, groups, 1), away=True), shape)
    region.give(op.outputs[0], _per_channel(region, y, *_gains(region, op), layout), layout)


def _gains(region: Region, op: Op) -> tuple[Array, Array]:
    gain, offset = region.constant(op, 1), region.constant(op, 2)
    assert gain is not None and offset is not None
    return gain, offset


def _per_channel(region: Region, y: int, gain: Array, offset: Array, layout: Layout) -> int:
    """Times the gain, and the offset added."""
    shape = region.graph.shape(y)
    for kind, value in (("MUL", gain), ("ADD", offset)):
        if layout == PLAIN:
            value = value.reshape(-1, *[1] * (len(shape) - 2))
        y = region.op(kind, [y, region.floats(value)], shape)
    return y


def _last_axes(away: bool) -> Any:
    """LayerNormalization, and without what goes away from the mean, RMSNormalization."""

    def rule(region: Region, op: Op) -> None:
        shape = region.result(op)
        rank = len(shape)
        axis = op.integer("axis", -1) % rank
        if axis == 0:
            raise NotLowered("it goes over the batch")
        few = (*shape[:axis], *[1] * (rank - axis))
        y = _normalized(
            region, op, region.read(op.inputs[0]), range(axis, rank), few, away=away, kept=op.outputs[1:]
        )
        y = region.op("MUL", [y, region.read(op.inputs[1])], shape)
        if len(op.inputs) > 2 and op.inputs[2]:
            y = region.op("ADD", [y, region.read(op.inputs[2])], shape)
        region.give(op.outputs[0], y)

    return rule


def _normalized(
    region: Region,
    op: Op,
    x: int,
    over: Iterable[int],
    few: tuple[int, ...],
    *,
    away: bool,
    kept: Sequence[str] = (),
) -> int:
    """A tensor over its standard deviation along axes; `few` is the shape that is left of it there.

    `kept` names what is given beside it: the mean, and one over the deviation.
    """
    shape, axes = region.graph.shape(x), region.ints([*over])
    if away:
        mean = region.op("MEAN", [x, axes], few, keep_dims=True)
        x = region.op("SUB", [x, mean], shape)
        if any(kept[:1]):
            region.give(kept[0], mean)
    square = region.op("MUL", [x, x], shape)
    variance = region.op("MEAN", [square, axes], few, keep_dims=True)
    epsilon = region.floats(op.number("epsilon", 1e-5))
    variance = region.op("ADD", [variance, epsilon], few)
    inverse = region.op("RSQRT", [variance], few)
    if any(kept[1:]):
        region.give(kept[1], inverse)
    return region.op("MUL", [x, inverse], shape)


def _softmax(region: Region, op: Op) -> None:
    name = op.inputs[0]
    rank = len(region.fact(name).shape)
    axis = op.integer("axis", -1 if region.version >= 13 else 1) % rank
    if region.version < 13 and axis != rank - 1:
        _flat_softmax(region, op, axis)
        return
    last = LAST.get(rank, PLAIN)
    if axis == 1 and (rank == 4 or (rank == 3 and region.layout([name]) == last)):
        y = region.op("SOFTMAX", [region.read(name, last)], region.result(op, last), beta=1.0)
        region.give(op.outputs[0], y, last)
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


def _flat_softmax(region: Region, op: Op, axis: int) -> None:
    """Before opset 13 it goes over all axes from `axis` on."""
    shape = region.result(op)
    rows = shape[0] if axis == 1 else math.prod(shape[:axis])
    if axis == 0 or (axis > 1 and dynamic(shape)):
        raise NotLowered("it goes over the batch, or rows of an open one")
    x = region.reshaped(region.read(op.inputs[0]), (rows, math.prod(shape[axis:])))
    y = region.op("SOFTMAX", [x], region.graph.shape(x), beta=1.0)
    region.give(op.outputs[0], region.reshaped(y, shape))


def _log_softmax(region: Region, op: Op) -> None:
    """Less the largest, less the logarithm of the exponentials' sum: where Softmax is zero, this is not."""
    shape = region.result(op)
    rank = len(shape)
    axis = op.integer("axis", -1 if region.version >= 13 else 1) % rank
    if axis == 0 or (region.version < 13 and axis != rank - 1):
        raise NotLowered("it goes over the batch, or before opset 13 over several axes")
    along, few = region.ints([axis]), tuple(1 if i == axis else n for i, n in enumerate(shape))
    x = region.read(op.inputs[0])
    x = region.op("SUB", [x, region.op("REDUCE_MAX", [x, along], few, keep_dims=True)], shape)
    total = region.op("SUM", [region.op("EXP", [x], shape), along], few, keep_dims=True)
    y = region.op("SUB", [x, region.op("LOG", [total], few)], shape)
    region.give(op.outputs[0], y)


def _local_response(region: Region, op: Op) -> None:
    """Squares beside their neighbours', each a cut of the padded channels: LiteRT's own operator takes ten
    times as long, and has no windows of even size.
    """
    size = op.integer("size")
    alpha = op.number("alpha", 1e-4)
    beta = op.number("beta", 0.75)
    layout = region.layout(op.inputs)
    x, shape, axis = region.read(op.inputs[0], layout), region.result(op, layout), placed(1, layout)
    square = region.op("MUL", [x, x], shape)
    square = region.op("MUL", [square, region.floats(alpha / size)], shape)
    wide = [n + size - 1 if i == axis else n for i, n in enumerate(shape)]
    pads = [[(size - 1) // 2, size // 2] if i == axis else [0, 0] for i in range(len(shape))]
    square = region.op("PAD", [square, region.ints(pads)], wide)
    total = region.floats(op.number("bias", 1.0))
    for start in range(size):
        begin = region.ints([start if i == axis else 0 for i in range(len(shape))])
        part = region.op("SLICE", [square, begin, region.ints(shape)], shape)
        total = region.op("ADD", [part, total], shape)
    region.give(op.outputs[0], region.op("MUL", [x, _power(region, total, -beta)], shape), layout)


def _power(region: Region, x: int, exponent: float) -> int:
    """Of a tensor above zero; roots are quicker than POW where they do."""
    shape = region.graph.shape(x)
    if exponent in (-0.5, -0.75):
        y = region.op("RSQRT", [x], shape)
        return y if exponent == -0.5 else region.op("MUL", [y, region.op("SQRT", [y], shape)], shape)
    x = region.op("MUL", [region.op("LOG", [x], shape), region.floats(exponent)], shape)
    return region.op("EXP", [x], shape)


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response,
    "LayerNormalization": _last_axes(away=True),
    "LogSoftmax": _log_softmax,
    "RMSNormalization": _last_axes(away=False),
    "Softmax": _softmax,
}
