"""Shapes that a model computes from its batch: a state of zeros as [N, 8], where N is the batch.

ONNX's inference loses the batch where a shape is cast, cut and joined, as TensorFlow's exporter does. Two
values of one batch are then of unknown sizes each, and every gradient that adds them up asks on the device.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence, Set

import numpy as np

from bb_edge.ir.types import ValueType
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import constant_array

Dims = tuple["int | str", ...]
"""A shape that is known: numbers, and symbols of the function's inputs."""

_MOST = 64
"""Entries of a constant that may be part of a shape."""


def computed_shapes(function: Function) -> tuple[dict[str, ValueType], dict[str, Array]]:
    """The types of what is expanded, filled or reshaped to a shape that is known by number or by symbol; and
    the contents of shapes: numbers, symbols, and None for what is open.

    Only those types are given that say more than the function's own.
    """
    symbols = {
        d
        for name in function.inputs
        for d in (function.types[name].shape or () if name in function.types else ())
        if isinstance(d, str)
    }
    contents: dict[str, Array] = {}
    found: dict[str, ValueType] = {}
    types = ChainMap(found, function.types)
    for op in function.ops:
        if not is_onnx(op):
            continue
        if (array := constant_array(op)) is not None:
            if array.size <= _MOST and array.dtype.kind in "iu":
                contents[op.outputs[0]] = array.astype(object)
            continue
        dims = _contents(op, contents, types)
        if dims is not None:
            contents[op.outputs[0]] = dims
        if shape := _made(op, contents, types, symbols):
            known = function.types.get(op.outputs[0])
            if known is not None and known.shape != shape:
                found[op.outputs[0]] = known._replace(shape=shape)
    return found, contents


def _contents(op: Op, contents: Mapping[str, Array], types: Mapping[str, ValueType]) -> Array | None:
    """What an op on shapes gives, an array of dims; None for all others."""
    if op.op_type == "Shape":
        known = types.get(op.inputs[0])
        if known is None or known.shape is None:
            return None
        end = op.integer("end", len(known.shape))
        return np.array(known.shape, object)[op.integer("start", 0) : end]
    read = [contents.get(v) for v in op.inputs if v]
    given = [v for v in read if v is not None]
    if not given or len(given) < len(read) or (op.op_type == "Cast" and op.integer("to", 0) not in (6, 7)):
        return None
    first, *rest = given
    if op.op_type in ("Cast", "Identity"):
        return first
    if op.op_type == "Concat":
        return np.concatenate(given) if all(v.ndim == 1 for v in given) else None
    if op.op_type == "Reshape" and rest and rest[0].shape == (1,) and rest[0][0] in (-1, first.size):
        return first.reshape(-1)
    if op.op_type == "Equal" and first.shape == given[1].shape:
        return _equal(first, given[1])
    if op.op_type == "Where" and all(v.shape == first.shape for v in rest):
        return np.asarray(np.where(first.astype(bool), rest[0], rest[1]), object)
    if op.op_type in ("Squeeze", "Unsqueeze") and first.size == 1:
        return first.reshape(()) if op.op_type == "Squeeze" else first.reshape((1,) * (first.ndim + 1))
    settings = [n for v in rest if (n := _numbers(v)) is not None]
    if len(settings) < len(rest) or first.ndim != 1:
        return None
    if op.op_type == "Gather":
        return np.asarray(first[settings[0]], object)
    if op.op_type == "Slice" and all(n.size == 1 for n in settings):
        start, end, *more = (int(n.reshape(-1)[0]) for n in settings)
        return first[start : end : more[1] if len(more) > 1 else 1]
    return None


def _equal(one: Array, other: Array) -> Array | None:
    """Which dims are the same; None where that is open. Exporters ask so for the -1 of an `expand`."""
    found = []
    for a, b in zip(one.flat, other.flat, strict=True):
        numbers = [d for d in (a, b) if isinstance(d, int)]
        if a is None or b is None or (a != b and len(numbers) == 1 and numbers[0] >= 0):
            return None  # a size that is open may be any number from 0 on
        if a != b and not numbers:
            return None
        found.append(a == b)
    flags: Array = np.array(found, object).reshape(one.shape)
    return flags


def _made(
    op: Op, contents: Mapping[str, Array], types: Mapping[str, ValueType], symbols: set[str]
) -> Dims | None:
    """The shape of what an op makes in a shape that is given; None where that is open."""
    if op.op_type not in ("Expand", "ConstantOfShape", "Reshape"):
        return None
    wanted = contents.get(op.inputs[-1])
    if wanted is None or wanted.ndim != 1:
        return None
    if op.op_type == "Reshape" and -1 in wanted.tolist():
        known = types.get(op.inputs[0])
        if known is None or known.shape is None or 0 in wanted.tolist():
            return None
        return with_open_dim(known.shape, [None if d == -1 else d for d in wanted], symbols)
    if any(isinstance(d, int) and d < 1 for d in wanted):
        return None
    if not all(_is_known(d, symbols) for d in wanted):
        return None
    dims = tuple(d if isinstance(d, str) else int(d) for d in wanted)
    if op.op_type == "Expand":
        known = types.get(op.inputs[0])
        if known is None or known.shape is None or len(known.shape) > len(dims):
            return None
        own = (*(1,) * (len(dims) - len(known.shape)), *known.shape)
        pairs = list(zip(own, dims, strict=True))
        if not all(1 in (have, want) or have == want for have, want in pairs):
            return None
        dims = tuple(want if have == 1 or have is None else have for have, want in pairs)
    return dims if all(_is_known(d, symbols) for d in dims) else None


def with_open_dim(
    before: Sequence[int | str | None], after: Sequence[int | str | None], symbols: Set[str]
) -> Dims | None:
    """The shape of what was reshaped, whose one open dim follows from how many elements there are.

    `symbols` are the dims that are known by name. None where several dims are open, or it does not follow.
    """
    open_dims = [i for i, d in enumerate(after) if not isinstance(d, int) and d not in symbols]
    if len(open_dims) != 1:
        return None
    rest, kept = list(before), 1
    for i, dim in enumerate(after):
        if i == open_dims[0]:
            continue
        if isinstance(dim, int):
            kept *= dim
        elif dim in rest:
            rest.remove(dim)
        else:
            return None
    sizes = [d for d in rest if isinstance(d, int)]
    symbol = next((d for d in rest if not isinstance(d, int)), None)
    found: int | str
    if kept and len(sizes) == len(rest) and math.prod(sizes) % kept == 0:
        found = math.prod(sizes) // kept
    elif kept and len(rest) == len(sizes) + 1 and math.prod(sizes) == kept and symbol in symbols:
        assert symbol is not None
        found = symbol
    else:
        return None
    return tuple(found if i == open_dims[0] or d is None else d for i, d in enumerate(after))


def _is_known(dim: int | str | None, symbols: set[str]) -> bool:
    return isinstance(dim, int) or dim in symbols


def _numbers(value: Array) -> Array | None:
    """An array of numbers alone, as such."""
    if not all(isinstance(d, int) for d in value.flat):
        return None
    return value.astype(np.int64)
