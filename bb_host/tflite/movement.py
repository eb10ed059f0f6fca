"""Operators that move data: reshaping, transposing, cutting, joining, padding, picking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import LAST, LC, PLAIN, Region, Rule, arranged, dynamic, placed


def _axis(region: Region, op: Op, axis: int) -> int:
    rank = len(region.fact(op.inputs[0]).shape)
    return axis % rank


def _reshape(region: Region, op: Op) -> None:
    region.give(op.outputs[0], region.reshaped(region.read(op.inputs[0]), region.result(op)))


def _transpose(region: Region, op: Op) -> None:
    name, result = op.inputs[0], op.outputs[0]
    rank = len(region.fact(name).shape)
    perm = op.integers("perm", range(rank)[::-1])
    if perm == [0, 2, 3, 1] and region.has(name, LAST[4]):
        region.give(result, region.read(name, LAST[4]))
    elif perm == [0, 3, 1, 2]:
        region.give(result, region.read(name), LAST[4])
    elif perm == [0, 2, 1] and region.has(name, LAST[3]):
        region.give(result, region.read(name, LC))
    elif perm == [0, 2, 1]:
        region.give(result, region.read(name), LC)
    else:
        region.give(result, region.transposed(region.read(name), perm))


def _concat(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    axis = _axis(region, op, op.integer("axis"))
    if axis == 0 and any(dynamic(region.fact(n).shape) for n in op.inputs):
        raise NotLowered("it joins open batches")
    inputs = [region.read(name, layout) for name in op.inputs]
    y = region.op("CONCATENATION", inputs, region.result(op, layout), axis=placed(axis, layout))
    region.give(op.outputs[0], y, layout)


def _split(region: Region, op: Op) -> None:
    axis = _axis(region, op, op.integer("axis", 0))
    name = op.inputs[0]
    if axis == 0 and dynamic(region.fact(name).shape):
        raise NotLowered("it splits an open batch")
    layout = region.layout([name])
    x = region.read(name, layout)
    begin = 0
    for position, output in enumerate(op.outputs):
        if not output:
            raise NotLowered("a part of it is left out")
        shape = region.result(op, layout, position)
        start = [0] * len(shape)  # in the layout
        start[placed(axis, layout)] = begin
        y = region.op("SLICE", [x, region.ints(start), region.ints(shape)], shape)
        region.give(output, y, layout)
        begin += region.fact(output).shape[axis]


def _expand(region: Region, op: Op) -> None:
    """A product with ones, which every version of every kernel broadcasts."""
    given, result = region.fact(op.inputs[0]).shape, region.result(op)
    given = (1,) * (len(result) - len(given)) + given
    ones = [n if m == 1 else 1 for m, n in zip(given, result, strict=True)]
    if min(ones) < 0:
        raise NotLowered("it expands an open batch")
    # A pixel spread over an image is the same in both layouts; who reads it computes channels last.
    is_pixel = region.gradient and len(result) == 4 and given[2:] == (1, 1)
    layout = LAST[4] if is_pixel else region.layout(op.inputs[:1])
    layout = layout if len(result) == len(region.fact(op.inputs[0]).shape) else PLAIN
    x = region.read(op.inputs[0], layout)
    y = region.op("MUL", [x, region.floats(np.ones(arranged(ones, layout)))], region.result(op, layout))
    region.give(op.outputs[0], y, layout)


def _slice(region: Region, op: Op) -> None:
    shape = region.fact(op.inputs[0]).shape
    rank = len(shape)
    if region.version < 10:
        starts, ends = op.integers("starts"), op.integers("ends")
        axes, steps = op.integers("axes", range(len(starts))), [1] * len(starts)
    else:
        given = [region.constant(op, i) for i in range(1, 5)]
        assert given[0] is not None and given[1] is not None
        starts, ends = given[0].tolist(), given[1].tolist()
        axes = list(range(len(starts))) if given[2] is None else given[2].tolist()
        steps = [1] * len(starts) if given[3] is None else given[3].tolist()
    begin, stride = [0] * rank, [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= rank
        if step < 1:
            raise NotLowered("it goes backwards")
        if shape[axis] < 0:
            if start != 0 or step != 1 or end < 2**31 - 1:
                raise NotLowered("it cuts an open batch")
            continue
        begin[axis], _, stride[axis] = slice(start, end, step).indices(shape[axis])
    layout = region.layout(op.inputs[:1])
    x, result = region.read(op.inputs[0], layout), region.result(op, layout)
    if region.graph.shape(x) == result:
        region.give(op.outputs[0], x, layout)
        return
    first, every = arranged(begin, layout, 0), arranged(stride, layout, 1)
    if all(s == 1 for s in every):
        y = region.op("SLICE", [x, region.ints(first), region.ints(result)], result)
    else:
        last = [b + (n - 1) * s + 1 if n > 0 else 1 for b, n, s in zip(first, result, every, strict=True)]
        y = region.op(
            "STRIDED_SLICE",
            [x, region.ints(first), region.ints(last), region.ints(every)],
            result,
            begin_mask=0,
            end_mask=1 if dynamic(result) else 0,
            ellipsis_mask=0,
            new_axis_mask=0,
            shrink_mask=0,
        )
    region.give(op.outputs[0], y, layout)


def _gather(region: Region, op: Op) -> None:
    data = region.fact(op.inputs[0])
    if data.dtype != "float32":
        raise NotLowered(f"it picks {data.dtype}")
    indices = region.constant(op, 1)
    assert indices is not None
    axis = _axis(region, op, op.integer("axis", 0))
    if data.shape[axis] < 0:
        raise NotLowered("it picks from an open batch")
    if axis > 0 and dynamic(data.shape) and indices.ndim == 0 and len(data.shape) == 1:
        raise NotLowered("a vector of open length")
    picked = region.graph.constant(
        np.where(indices < 0, indices + data.shape[axis], indices).astype(np.int32)
    )
    y = region.op("GATHER", [region.read(op.inputs[0]), picked], region.result(op), axis=axis, batch_dims=0)
    region.give(op.outputs[0], y)


def _pad(region: Region, op: Op) -> None:
    shape = region.fact(op.inputs[0]).shape
    rank = len(shape)
    if region.version < 11:
        pads, value = op.integers("pads"), op.number("value", 0.0)
    else:
        given, fill = region.constant(op, 1), region.constant(op, 2)
        assert given is not None
        pads, value = given.tolist(), 0.0 if fill is None else float(fill.reshape(()))
        named = region.constant(op, 3)
        if named is not None:
            whole = np.zeros((2, rank), np.int64)
            whole[:, named % rank] = given.reshape(2, -1)
            pads = whole.reshape(-1).tolist()
    if min(pads, default=0) < 0:
        raise NotLowered("its pads cut away")
    if dynamic(shape) and (pads[0] or pads[rank]):
        raise NotLowered("it pads an open batch")
    layout = region.layout(op.inputs[:1])
    pairs = arranged([[pads[i], pads[i + rank]] for i in range(rank)], layout, [0, 0])
    x, result = region.read(op.inputs[0], layout), region.result(op, layout)
    mode = op.text("mode", "constant")
    if mode != "constant":
        y = _pad_from_within(region, x, pairs, mode)
    elif value == 0.0:
        y = region.op("PAD", [x, region.ints(pairs)], result)
    else:
        y = region.op("PADV2", [x, region.ints(pairs), region.floats(value)], result)
    region.give(op.outputs[0], y, layout)


def _pad_from_within(region: Region, x: int, pairs: Sequence[Sequence[int]], mode: str) -> int:
    """Pads with what the tensor holds, picked along each axis. TFLite's MIRROR_PAD works out the place of
    every element anew, and takes a hundred times as long.
    """
    for axis, (before, after) in enumerate(pairs):
        if not before and not after:
            continue
        shape = list(region.graph.shape(x))
        n = shape[axis]
        at = np.arange(-before, n + after)
        if mode == "reflect":
            if max(before, after) >= n:
                raise NotLowered("it mirrors more than there is")
            at = n - 1 - np.abs(n - 1 - np.abs(at))
        shape[axis] = len(at)
        picked = region.ints((np.clip(at, 0, n - 1) if mode == "edge" else at % n).tolist())
        x = region.op("GATHER", [x, picked], shape, axis=axis, batch_dims=0)
    return x


def _tile(region: Region, op: Op) -> None:
    given = region.constant(op, 1)
    assert given is not None
    repeats = given.tolist()
    if dynamic(region.fact(op.inputs[0]).shape) and repeats[0] != 1:
        raise NotLowered("it repeats an open batch")
    layout = region.layout(op.inputs[:1])
    times = region.ints(arranged(repeats, layout))
    y = region.op("TILE", [region.read(op.inputs[0], layout), times], region.result(op, layout))
    region.give(op.outputs[0], y, layout)


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
