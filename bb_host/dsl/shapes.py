"""Types and shapes of results, as far as they are plain at recording; the type solver does the rest.

A shape is a tuple of numbers, symbols and None (unknown size), or None (unknown rank).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bb_host.program import Array

Dim = int | str | None
Shape = tuple[Dim, ...] | None
Known = Sequence[Array | None]
"""The values of inputs that are constants."""

Rule = Callable[[Sequence[Shape], Mapping[str, object], Known], Shape]

# fmt: off
SAME_AS_FIRST = frozenset((
    "Neg", "Abs", "Sqrt", "Exp", "Log", "Relu", "Sigmoid", "Tanh", "Identity", "Softmax", "LogSoftmax",
    "LeakyRelu", "Gelu", "Elu", "Selu", "Erf", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Sin",
    "Cos", "Floor", "Ceil", "Round", "Sign", "Clip", "Dropout", "Not", "IsNaN", "IsInf", "Reciprocal", "Cast",
    "CumSum", "BatchNormalization", "LayerNormalization", "ScatterElements", "ScatterND",
))
BROADCAST = frozenset((
    "Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Where",
    "And", "Or", "Xor", "Mod", "PRelu", "Max", "Min", "Mean", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
))
REDUCTIONS = frozenset((
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
))
# fmt: on


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
    rank = max(len(s) for s in known)
    found: tuple[Dim, ...] = (1,) * rank
    for shape in known:
        padded = (1,) * (rank - len(shape)) + shape
        found = tuple(broadcast_dims(a, b) for a, b in zip(found, padded, strict=True))
    return found


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
    return (a[1] if attrs.get("transA") else a[0], b[0] if attrs.get("transB") else b[1])


def _reshape(shapes: Sequence[Shape], attrs: Mapping[str, object], known: Known) -> Shape:
    wanted = _ints(known[1])
    if wanted is None:
        return None
    source = shapes[0]
    found: list[Dim] = []
    for i, d in enumerate(wanted):
        copied = source[i] if source is not None and i < len(source) else None
        found.append(copied if d == 0 and not attrs.get("allowzero") else d)
    if -1 not in wanted:
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
    if len(whole) != len(shapes) or not isinstance(axis, int) or len({len(s) for s in whole}) != 1:
        return None
    found = list(whole[0])
    if not -len(found) <= axis < len(found):
        raise ValueError(f"axis {axis} for rank {len(found)}")
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
    return (*data[:axis], *indices, *data[axis + 1 :])


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
    if op_type in BROADCAST:
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
    ("Params", "params"): (None,),
    ("Evaluate", "loss"): (),
    ("Aggregate", "total"): (),
    ("NumSamples", "n"): (),
}
"""Shapes that the catalog's own words give (op, output)."""
