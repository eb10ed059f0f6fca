"""Gemm and MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.graph import DYNAMIC
from bb_host.tflite.lowering import Region, Rule, dynamic

OMITTED = -1


def dense(region: Region, x: int, weight: int, result: Sequence[int], bias: int = OMITTED) -> int:
    """Rows times a weight that has a row per output channel."""
    kept = len(result) > 2
    return region.op("FULLY_CONNECTED", [x, weight, bias], result, format=0, keep_num_dims=kept)


def _gemm(region: Region, op: Op) -> None:
    weight = region.fact(op.inputs[1]).value
    added = region.fact(op.inputs[2]).value if any(op.inputs[2:]) else None
    if weight is None or (added is None and any(op.inputs[2:])):
        _computed_gemm(region, op)
        return
    turned = bool(op.attrs.get("transA", 0))
    if turned and dynamic(region.fact(op.inputs[0]).shape):
        raise NotLowered("it sums over an open batch")
    if not op.attrs.get("transB", 0):
        weight = weight.T
    alpha = np.float32(op.number("alpha", 1.0))
    beta = np.float32(op.number("beta", 1.0))
    weight = weight if alpha == 1 else weight * alpha
    bias: int = OMITTED
    if added is not None:
        added = added if beta == 1 else added * beta
        if added.size in (1, len(weight)) and (added.ndim < 2 or added.shape[0] == 1):
            bias = region.graph.constant(
                np.ascontiguousarray(np.broadcast_to(added.reshape(-1), (len(weight),)))
            )
            added = None
    result = region.result(op)
    if alpha == 1:
        w = region.weight(weight, op.inputs[1], 0 if op.attrs.get("transB", 0) else 1, 0)
    else:
        w = region.graph.constant(np.ascontiguousarray(weight))
    x = region.read(op.inputs[0])
    y = dense(region, region.transposed(x, (1, 0)) if turned else x, w, result, bias)
    if added is not None:
        y = region.op("ADD", [y, region.graph.constant(added)], result)
    region.give(op.outputs[0], y)


def _computed_gemm(region: Region, op: Op) -> None:
    """Weights or biases are computed: the product of two operands, and what is added to it."""
    names = [name for name in op.inputs if name]
    turned = [bool(op.attrs.get(name, 0)) for name in ("transA", "transB")]
    if any(dynamic(region.fact(name).shape) for name, t in zip(names, (turned[0], True), strict=False) if t):
        raise NotLowered("it sums over an open batch")
    result = region.result(op)
    inputs = [region.read(name) for name in names[:2]]
    y = region.op("BATCH_MATMUL", inputs, result, adj_x=turned[0], adj_y=turned[1])
    y = _scaled(region, op, "alpha", y)
    for name in names[2:]:
        y = region.op("ADD", [y, _scaled(region, op, "beta", region.read(name))], result)
    region.give(op.outputs[0], y)


def _scaled(region: Region, op: Op, attribute: str, x: int) -> int:
    factor = op.number(attribute, 1.0)
    if factor == 1:
        return x
    return region.op("MUL", [x, region.floats(factor)], region.graph.shape(x))


def _matmul(region: Region, op: Op) -> None:
    a, b = region.fact(op.inputs[0]), region.fact(op.inputs[1])
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise NotLowered("a vector")
    result = region.result(op)
    if b.value is not None and len(b.shape) == 2 and a.value is None:
        w = region.weight(b.value.T, op.inputs[1], 1, 0)
        y = dense(region, region.read(op.inputs[0]), w, result)
    elif len(a.shape) > 2 and len(b.shape) == 2:
        # One product of all rows, not one for each entry of the batch.
        x, w = region.read(op.inputs[0]), region.read(op.inputs[1])
        few = DYNAMIC if dynamic(a.shape) else prod(a.shape[:-1])
        x = region.reshaped(x, (few, a.shape[-1]))
        y = region.op("BATCH_MATMUL", [x, w], (few, b.shape[-1]), adj_x=False, adj_y=False)
        y = region.reshaped(y, result)
    else:
        x, w = region.read(op.inputs[0]), region.read(op.inputs[1])
        y = region.op("BATCH_MATMUL", [x, w], result, adj_x=False, adj_y=False)
    region.give(op.outputs[0], y)


RULES: dict[str, Rule] = {"Gemm": _gemm, "MatMul": _matmul}
