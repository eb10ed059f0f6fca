"""Attention: scores, what a query may see, weights, and their sum of the values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from bb_host.ir.program import Array, Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.facts import Fact
from bb_host.tflite.lowering import Region, Rule
from bb_host.tflite.schema import DTYPES
from bb_host.tflite.windows import LOWEST

_MERGED = 3
"""Dimensions of what has its heads side by side in the last of them."""


def _attention(region: Region, op: Op) -> None:
    if any(op.inputs[4:]):
        raise NotLowered("it has a cache, or lengths of its own")
    if any(op.integer(f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        raise NotLowered("its queries see a window of the keys")
    q, k, v = (_by_head(region, op, position) for position in range(3))
    (n, heads, queries, size), (_, groups, keys, _) = region.graph.shape(q), region.graph.shape(k)
    width = region.graph.shape(v)[-1]
    cap = op.number("softcap", 0.0)
    scale = op.number("scale", size**-0.5)
    scale = scale / cap if cap > 0 else scale
    if scale != 1:
        q = region.op("MUL", [q, region.floats(scale)], region.graph.shape(q))
    # Heads that share keys are further queries of one head.
    q = region.reshaped(q, (n, groups, heads // groups * queries, size))
    few = (n, groups, heads // groups * queries, keys)
    shape = (n, heads, queries, keys)
    y = region.reshaped(region.op("BATCH_MATMUL", [q, k], few, adj_x=False, adj_y=True), shape)
    if cap > 0:
        y = region.op("MUL", [region.op("TANH", [y], shape), region.floats(cap)], shape)
    y, seeing = _masked(region, op, y)
    y = region.reshaped(region.op("SOFTMAX", [y], shape, beta=1.0), few)
    y = region.op("BATCH_MATMUL", [y, v], (*few[:3], width), adj_x=False, adj_y=False)
    y = region.reshaped(y, (n, heads, queries, width))
    if seeing is not None:
        y = region.op("MUL", [y, seeing], (n, heads, queries, width))
    if len(region.fact(op.inputs[0]).shape) == _MERGED:
        y = region.reshaped(region.transposed(y, (0, 2, 1, 3)), region.result(op))
    region.give(op.outputs[0], y)


def _by_head(region: Region, op: Op, position: int) -> int:
    """Queries, keys or values as batch, heads, length and size."""
    x = region.read(op.inputs[position])
    shape = region.graph.shape(x)
    if len(shape) != _MERGED:
        return x
    heads = op.integer("kv_num_heads" if position else "q_num_heads")
    return region.transposed(region.reshaped(x, (*shape[:2], heads, shape[2] // heads)), (0, 2, 1, 3))


def _masked(region: Region, op: Op, scores: int) -> tuple[int, int | None]:
    """Scores where a query may see a key, and what `_computed_mask` says of the queries."""
    shape = region.graph.shape(scores)
    given = region.fact(op.inputs[3]) if len(op.inputs) > 3 and op.inputs[3] else None
    if given is not None and given.shape[-1:] not in ((1,), shape[-1:]):
        raise NotLowered("its mask is shorter than the keys")
    constant = _constant_mask(op, given, *shape[-2:])
    seeing = None
    if given is not None and given.value is None:
        if given.dtype not in ("float32", "bool"):
            raise NotLowered(f"its mask is {given.dtype}")
        mask, seeing = _computed_mask(region, op.inputs[3], constant)
    elif constant.any():
        mask = region.floats(constant)
    else:
        return scores, None
    return region.op("ADD", [scores, mask], shape), seeing


def _constant_mask(op: Op, given: Fact | None, queries: int, keys: int) -> Array:
    """What is added to the scores as far as it is constant: the least number where a key is not seen."""
    seen = np.ones((queries, keys), np.bool_)
    if op.attrs.get("is_causal", 0):
        seen = np.tril(seen)
    added = np.zeros((), np.float32)
    if given is not None and given.value is not None:
        seen, added = (seen & given.value, added) if given.dtype == "bool" else (seen, given.value)
    added = np.where(seen, np.maximum(added, LOWEST), LOWEST).astype(np.float32)
    if np.any(np.all(added == np.float32(LOWEST), -1)):
        raise NotLowered("a query sees no key")
    return added


def _computed_mask(region: Region, name: str, constant: Array) -> tuple[int, int]:
    """What is added to the scores, and 1 for queries that see a key, 0 for others: their result is zero, and
    without care it would not be a number.
    """
    x, shape, lowest = region.read(name), region.fact(name).shape, region.floats(LOWEST)
    if region.fact(name).dtype == "bool":
        x = _as_number(region, x)
        x = region.op("SUB", [x, region.floats(1)], shape)
        x = region.op("MUL", [x, region.floats(-LOWEST)], shape)
    if constant.any():
        shape = (*shape[:-2], *constant.shape)
        x = region.op("ADD", [x, region.floats(constant)], shape)
    x = region.op("MAXIMUM", [x, lowest], shape)
    few = (*shape[:-1], 1)
    most = region.op("REDUCE_MAX", [x, region.ints([len(few) - 1])], few, keep_dims=True)
    seeing = region.op("GREATER", [most, lowest], few, dtype="bool")
    return x, _as_number(region, seeing)


def _as_number(region: Region, x: int) -> int:
    shape = region.graph.shape(x)
    return region.op("CAST", [x], shape, in_type=DTYPES["bool"], out_type=DTYPES["float32"])


def macs(op: Op, facts: Mapping[str, Fact]) -> int:
    """Multiplications at a batch of one."""
    q, k = facts[op.inputs[0]].shape, facts[op.inputs[1]].shape
    return 2 * prod(q[1:]) * k[-2]


RULES: dict[str, Rule] = {"Attention": _attention}
