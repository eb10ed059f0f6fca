"""Types and shapes of results, as far as they are plain at recording; the type solver does the rest.

A shape is a tuple of numbers, symbols and None (unknown size), or None (unknown rank).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bb_edge.ir.opsets.roles import OUTPUT_SHAPES
from bb_host.ir.operator_kinds import BROADCAST, REDUCTIONS, UNARY
from bb_host.ir.program import Array

Dim = int | str | None
Shape = tuple[Dim, ...] | None
Known = Sequence[Array | None]
"""The values of inputs that are constants."""

Rule = Callable[[Sequence[Shape], Mapping[str, object], Known], Shape]

SAME_AS_FIRST = UNARY | {
    *("Identity", "Softmax", "LogSoftmax", "Dropout", "IsNaN", "IsInf", "Cast", "CumSum", "ScatterND"),
    *("BatchNormalization", "LayerNormalization"),
}
_BROADCAST = BROADCAST | {"Xor", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}

ONE_NUMBER = "pick or reduce: x[0], g.onnx.reduce_max(x, keepdims=False)"
ONE_CONDITION = (
    "pick one, x[0], or say whether any of them holds: g.onnx.reduce_max(g.onnx.cast(x, to='I32'),"
    " keepdims=False) > 0 (reduce_min: whether all do)"
)
"""The ways out where something of one element has several."""


def has_several(shape: Shape) -> bool:
    """Whether a shape has, as far as it is known, another number of elements than one."""
    return shape is not None and any(isinstance(size, int) and size != 1 for size in shape)


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ValueError(f"{a} and {b} do not broadcast")
    return a if isinstance(a, int) else b if isinstance(b, int) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """NumPy's rule. ValueError where known sizes do not go together."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    if known.count(known[0]) == len(known):
        return known[0]
    rank = max(len(s) for s in known)
    found: tuple[Dim, ...] = (1,) * rank
    for shape in known:
        padded = (1,) * (rank - len(shape)) + shape
        found = tuple(broadcast_dims(a, b) for a, b in zip(found, padded, strict=True))
    return found


# --- axes -------------------------------------------------------------------------------------------------

_AXIS: Mapping[str, tuple[str, int | None, int]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LayerNormalization", "TopK"), ("axis", -1, 0)),
    **dict.fromkeys(("ArgMax", "ArgMin", "Gather", "GatherElements", "ScatterElements"), ("axis", 0, 0)),
    **dict.fromkeys(("Split", "LpNormalization"), ("axis", 0, 0)),
    **dict.fromkeys(("Concat", "Compress", "Unique"), ("axis", None, 0)),
    "Flatten": ("axis", 1, 1),
}
"""Operators with one axis of their first input: attribute, default, how far beyond the last it may lie."""

_AXES_INPUT: Mapping[str, int] = {
    **dict.fromkeys((*REDUCTIONS, "Squeeze", "Unsqueeze", "CumSum"), 1),
    **dict.fromkeys(("Slice", "Pad"), 3),
}
"""Operators whose axes are an input, or before opset 13 the attribute `axes`."""


def check_axes(op_type: str, shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> None:
    """ValueError where an axis is known, and lies outside of the known rank of what it is an axis of."""
    data = shapes[0] if shapes else None
    if data is None:
        return
    one = _AXIS.get(op_type)
    if one is not None:
        name, default, beyond = one
        axis = attrs.get(name, default)
        if isinstance(axis, int):
            _axis(axis, len(data), beyond)
        return
    at = _AXES_INPUT.get(op_type)
    if at is not None:
        axes = _ints(known[at] if at < len(known) and known[at] is not None else attrs.get("axes"))
        rank = len(data) + len(axes or ()) if op_type == "Unsqueeze" else len(data)
        for axis in axes or ():
            _axis(axis, rank)
        if axes and op_type != "CumSum" and len({axis % rank for axis in axes}) != len(axes):
            raise ValueError(f"axes {axes} name an axis twice")


def _axis(axis: int, rank: int, beyond: int = 0) -> None:
    if not -rank <= axis < rank + beyond:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")


# --- rules ------------------------------------------------------------------------------------------------


def _ints(value: object) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return [int(v) for v in value.ravel()]
    if isinstance(value, (list, tuple)):
        return [int(v) for v in value]
    return None


def _axes(attrs: Mapping[str, object], known: Known) -> list[int] | None:
    return _ints(known[1] if len(known) > 1 and known[1] is not None else attrs.get("axes"))


def _matmul(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    a, b = shapes[0], shapes[1]
    if a is None or b is None or not a or not b:
        return None
    inner_a, inner_b = a[-1], b[-2] if len(b) > 1 else b[0]
    if isinstance(inner_a, int) and isinstance(inner_b, int) and inner_a != inner_b:
        raise ValueError(f"inner dimensions {inner_a} and {inner_b} differ")
    batch = broadcast((a[:-2], b[:-2])) or ()
    return batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def _gemm(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    a, b = shapes[0], shapes[1]
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    rows, inner_a = a[::-1] if attrs.get("transA") else a
    inner_b, columns = b[::-1] if attrs.get("transB") else b
    if isinstance(inner_a, int) and isinstance(inner_b, int) and inner_a != inner_b:
        raise ValueError(f"inner dimensions {inner_a} and {inner_b} differ")
    return (rows, columns)


def _reshape(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    wanted = _ints(known[1])
    if wanted is None:
        return None
    source = shapes[0]
    if wanted.count(-1) > 1 or any(d < -1 for d in wanted):
        raise ValueError(f"{wanted} is not a shape: sizes, and -1 at most once")
    found: list[Dim] = []
    for i, d in enumerate(wanted):
        copied = source[i] if source is not None and i < len(source) else None
        found.append(copied if d == 0 and not attrs.get("allowzero") else d)
    if -1 not in wanted:
        _same_size(source, found)
        return tuple(found)
    at = wanted.index(-1)
    rest = [d for i, d in enumerate(found) if i != at]
    size: Dim = None
    if source is not None and all(isinstance(d, int) for d in (*source, *rest)):
        total, part = (int(np.prod([d for d in dims if isinstance(d, int)])) for dims in (source, rest))
        if part and total % part:
            raise ValueError(f"{total} elements do not fill shape {wanted}")
        size = total // part if part else None
    found[at] = size
    return tuple(found)


def _same_size(source: Shape, wanted: Sequence[Dim]) -> None:
    """ValueError where both have known sizes, and hold different numbers of elements."""
    if source is not None and all(isinstance(d, int) for d in (*source, *wanted)):
        before, after = (math.prod(d for d in dims if isinstance(d, int)) for dims in (source, wanted))
        if before != after:
            raise ValueError(f"{before} elements do not fill shape {list(wanted)}")


def _transpose(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    shape = shapes[0]
    if shape is None:
        return None
    perm = _ints(attrs.get("perm"))
    if perm is None:
        return shape[::-1]
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"perm {perm} for rank {len(shape)}")
    return tuple(shape[p] for p in perm)


def _concat(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    whole = [s for s in shapes if s is not None]
    axis = attrs.get("axis")
    if len({len(s) for s in whole}) > 1:
        raise ValueError(f"inputs of rank {', '.join(str(len(s)) for s in whole)} cannot be joined")
    if len(whole) != len(shapes) or not isinstance(axis, int):
        return None
    found = list(whole[0])
    for i, dims in enumerate(zip(*whole, strict=True)):
        known_sizes = {d for d in dims if isinstance(d, int)}
        if i != axis % len(found) and len(known_sizes) > 1:
            raise ValueError(f"sizes {', '.join(map(str, sorted(known_sizes)))} differ in axis {i}")
    sizes = [s[axis] for s in whole]
    numbers = [s for s in sizes if isinstance(s, int)]
    found[axis] = sum(numbers) if len(numbers) == len(sizes) else None
    return tuple(found)


def _reduce(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    shape = shapes[0]
    if shape is None:
        return None
    axes = _axes(attrs, known)
    if axes is None:
        if len(shapes) > 1:
            return None
        axes = []
    if not axes:
        if attrs.get("noop_with_empty_axes"):
            return shape
        axes = list(range(len(shape)))
    dropped = {a % len(shape) for a in axes} if shape else set()
    if attrs.get("keepdims", 1):
        return tuple(1 if i in dropped else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dropped)


def _squeeze(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    shape, axes = shapes[0], _axes(attrs, known)
    if shape is None or axes is None or not shape:
        return None
    dropped = {a % len(shape) for a in axes}
    for i in dropped:
        size = shape[i]
        if isinstance(size, int) and size != 1:
            raise ValueError(f"axis {i} has {size} elements, and only an axis of one can be removed")
    return tuple(d for i, d in enumerate(shape) if i not in dropped)


def _unsqueeze(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    shape, axes = shapes[0], _axes(attrs, known)
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    added = {a % rank for a in axes}
    rest = iter(shape)
    return tuple(1 if i in added else next(rest) for i in range(rank))


def _gather(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    data, indices = shapes[0], shapes[1]
    axis = attrs.get("axis", 0)
    if data is None or indices is None or not isinstance(axis, int) or not data:
        return None
    axis %= len(data)
    _within(known, data[axis])
    return (*data[:axis], *indices, *data[axis + 1 :])


def _within(known: Known, size: Dim) -> None:
    """ValueError for an index, where the second input is known, outside of an axis of known size."""
    indices = _ints(known[1]) if len(known) > 1 else None
    outside = [i for i in indices or () if isinstance(size, int) and not -size <= i < size]
    if outside:
        raise ValueError(f"index {outside[0]} is out of range for an axis of {size} elements")


def _gather_elements(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    data, axis = shapes[0], attrs.get("axis", 0)
    if data and isinstance(axis, int):
        _within(known, data[axis])
    return shapes[1]


def _scatter_elements(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    _gather_elements(shapes, attrs, known)
    return shapes[0]


def _top_k(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    shape, axis = shapes[0], attrs.get("axis", -1)
    k = _ints(known[1]) if len(known) > 1 else None
    if not shape or not isinstance(axis, int):
        return None
    axis %= len(shape)
    size = shape[axis]
    if k and isinstance(size, int) and not 0 <= k[0] <= size:
        raise ValueError(f"k={k[0]} of an axis with {size} elements")
    return (*shape[:axis], k[0] if k else None, *shape[axis + 1 :])


def _split(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    """The first part's shape."""
    shape, axis = shapes[0], attrs.get("axis", 0)
    sizes = _ints(known[1] if len(known) > 1 and known[1] is not None else attrs.get("split"))
    if shape is None or not isinstance(axis, int):
        return None
    axis %= len(shape)
    whole = shape[axis]
    if sizes is not None and isinstance(whole, int) and (sum(sizes) != whole or min(sizes, default=0) < 0):
        raise ValueError(f"sizes {sizes} do not add up to the {whole} elements of axis {axis}")
    number = attrs.get("num_outputs")
    if sizes is None and isinstance(whole, int) and isinstance(number, int) and not 0 < number <= whole:
        raise ValueError(f"{whole} elements of axis {axis} cannot be split into {number} parts")
    part = None if not sizes else sizes[0]
    return (*shape[:axis], part, *shape[axis + 1 :])


def _expand(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    wanted = _ints(known[1]) if len(known) > 1 else None
    return None if wanted is None else broadcast((shapes[0], tuple(wanted)))


def _arg(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    axis = attrs.get("axis", 0)
    return _reduce(shapes[:1], {**attrs, "axes": [axis]}, ())


def _rank_of(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    return (None,) if shapes[0] is None else (len(shapes[0]),)


_RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
    "TopK": _top_k,
    "Split": _split,
    "Expand": _expand,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Shape": _rank_of,
    "Size": lambda shapes, attrs, known: (),
}


def onnx_shape(op_type: str, shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    """The shape of an ONNX op's first output, None where it is not plain.

    Raises ValueError, saying what does not go together, where known sizes contradict the operator.
    """
    if op_type in SAME_AS_FIRST:
        return shapes[0]
    if op_type in _BROADCAST:
        return broadcast(shapes)
    if op_type in REDUCTIONS:
        return _reduce(shapes, attrs, known)
    rule = _RULES.get(op_type)
    return None if rule is None else rule(shapes, attrs, known)


CATALOG_SHAPES: dict[tuple[str, str], Shape] = {
    ("Repeat", "round"): (),
    ("RngU64", "value"): (),
    ("Elapsed", "ns"): (),
    ("PeerCount", "count"): (),
    ("AsTensor", "number"): (),
    **OUTPUT_SHAPES,
}
"""Shapes that the catalog's own words give (op, output)."""
