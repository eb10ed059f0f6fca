"""Gradients of products and of normalisations."""

from __future__ import annotations

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule


def _swapped(g: GradientBuilder, value: str, rank: int) -> str:
    """The last two axes exchanged."""
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return g.op("Transpose", value, perm=perm)


@rule("MatMul")
def _matmul(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """dA = dY·Bᵀ, dB = Aᵀ·dY, summed over broadcast leading axes; 1-D operands become rows and columns."""
    (a, b), dy, y = op.inputs, one(dys), op.outputs[0]
    rank_a, rank_b = g.rank(op, a), g.rank(op, b)
    if rank_a == 1 and rank_b == 1:
        return (g.op("Mul", dy, b) if wants[0] else None, g.op("Mul", dy, a) if wants[1] else None)
    if rank_a == 1 or rank_b == 1:
        return _matmul_with_vector(g, op, dy, wants)
    da = db = None
    if wants[0]:
        da = _summed(g, g.op("MatMul", dy, _swapped(g, b, rank_b)), y, a)
    if wants[1]:
        if rank_b == 2 and rank_a > 2:  # one product over all leading axes instead of many that are summed
            rows_a = g.op("Reshape", a, g.ints(-1, *g.static_dims(op, a, [-1])))
            rows_y = g.op("Reshape", dy, g.ints(-1, *g.static_dims(op, y, [-1])))
            db = g.op("MatMul", _swapped(g, rows_a, 2), rows_y)
        else:
            db = _summed(g, g.op("MatMul", _swapped(g, a, rank_a), dy), y, b)
    return (da, db)


def _matmul_with_vector(g: GradientBuilder, op: Op, dy: str, wants: Wants) -> Gradients:
    a, b = op.inputs
    rank = max(g.rank(op, a), g.rank(op, b))
    if rank > 2:
        raise NotDifferentiableError(op, "a vector times a stack of matrices", "make the vector a matrix")
    if g.rank(op, a) == 1:  # (k) × (k, n) → (n)
        da = g.op("MatMul", b, dy) if wants[0] else None
        outer = (a, dy)
    else:  # (m, k) × (k) → (m)
        da = None
        outer = (dy, b)
    product = None
    if wants[1] if g.rank(op, a) == 1 else wants[0]:
        column, row = g.op("Unsqueeze", outer[0], g.ints(1)), g.op("Unsqueeze", outer[1], g.ints(0))
        product = g.op("Mul", column, row)
    if g.rank(op, a) == 1:
        return (da, product)
    db = g.op("MatMul", g.op("Transpose", a, perm=[1, 0]), dy) if wants[1] else None
    return (product, db)


def _summed(g: GradientBuilder, gradient: str, y: str, value: str) -> str:
    """A product's gradient, summed over the leading axes along which `value` was broadcast."""
    big, small = g.shape(y), g.shape(value)
    if big is not None and small is not None and len(big) == len(small) == 2:
        return gradient  # no leading axes
    return g.reduce_leading(gradient, y, value)


@rule("Gemm")
def _gemm(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Y = alpha·A'·B' + beta·C, where ' transposes if transA or transB say so."""
    dy, y = one(dys), op.outputs[0]
    a, b = op.inputs[:2]
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)
    turned_a, turned_b = bool(op.integer("transA", 0)), bool(op.integer("transB", 0))
    grads: list[str | None] = [None, None]

    def turned(value: str, turn: bool = True) -> str:
        return _swapped(g, value, 2) if turn else value

    if wants[0] and turned_a:
        grads[0] = g.op("MatMul", turned(b, turned_b), turned(dy))
    elif wants[0]:
        grads[0] = g.op("MatMul", dy, turned(b, not turned_b))
    if wants[1] and turned_b:
        grads[1] = g.op("MatMul", turned(dy), turned(a, turned_a))
    elif wants[1]:
        grads[1] = g.op("MatMul", turned(a, not turned_a), dy)
    if alpha != 1:
        grads = [None if d is None else g.op("Mul", d, g.scalar(alpha, y)) for d in grads]
    if len(op.inputs) > 2:
        dc = g.reduce_to(dy, y, op.inputs[2]) if wants[2] else None
        grads.append(dc if dc is None or beta == 1 else g.op("Mul", dc, g.scalar(beta, y)))
    return grads


@rule("Einsum")
def _einsum(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Of each operand: dY times the other operands, summed to the operand's own labels."""
    dy = one(dys)
    *operands, out = _einsum_labels(g, op)
    grads: list[str | None] = []
    for place, (value, labels, wanted) in enumerate(zip(op.inputs, operands, wants, strict=True)):
        if not wanted:
            grads.append(None)
            continue
        others = [labels_ for k, labels_ in enumerate(operands) if k != place]
        values = [v for k, v in enumerate(op.inputs) if k != place]
        kept = [c for c in labels if c in out or any(c in other for other in others)]
        equation = f"{','.join([out, *others])}->{''.join(kept)}"
        dx = g.op("Einsum", dy, *values, equation=equation.encode())
        if len(kept) < len(labels):  # what the operand alone was summed over
            alone = [axis for axis, c in enumerate(labels) if c not in kept]
            dx = g.op("Expand", g.op("Unsqueeze", dx, g.ints(*alone)), g.shape_value(value))
        grads.append(dx)
    return grads


def _einsum_labels(g: GradientBuilder, op: Op) -> list[str]:
    """The labels of each operand and of the result, an ellipsis written out in labels of its own.

    NotDifferentiableError for a diagonal (a label twice in one operand), and where an ellipsis broadcasts.
    """
    left, arrow, right = op.text("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        single = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        right = ("..." if "..." in left else "") + single
    spare = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBAzyxwvutsrqponmlkjihgfedcba" if c not in left]
    values = [*op.inputs, op.outputs[0]]
    found = []
    covered: list[tuple[int | str | None, ...]] = []
    for value, term in zip(values, [*terms, right], strict=True):
        if "..." in term:
            count = g.rank(op, value) - len(term.replace("...", ""))
            begin = term.index("...")
            covered.append((g.shape(value) or ())[begin : begin + count])
            term = term.replace("...", "".join(reversed(spare[:count])))
        if len(set(term)) < len(term):
            raise NotDifferentiableError(op, f"it takes a diagonal ({term})", "write it without")
        found.append(term)
    if any(dims != covered[-1] for dims in covered) and "..." in left:
        hint = "name those axes in its equation"
        raise NotDifferentiableError(op, "its ellipsis broadcasts, or covers open dimensions", hint)
    return found


@rule("BatchNormalization")
def _batch_normalization(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """As at inference: mean and variance are given, and get no gradient."""
    if op.integer("training_mode", 0):
        raise NotDifferentiableError(op, "it is in training mode", "export the model for inference")
    (x, scale, _, mean, variance), dy = op.inputs, one(dys)
    rank = g.rank(op, x)
    epsilon = op.number("epsilon", 1e-5)
    deviation = g.op("Sqrt", g.op("Add", variance, g.scalar(epsilon, variance)))
    around = [axis for axis in range(rank) if axis != 1]
    lift = g.ints(*range(1, rank - 1))

    def column(value: str) -> str:
        return g.op("Unsqueeze", value, lift) if rank > 2 else value

    dx = g.op("Mul", dy, column(g.op("Div", scale, deviation))) if wants[0] else None
    ds = db = None
    if wants[1]:
        centred = g.op("Mul", dy, g.op("Sub", x, column(mean)))
        ds = g.op("Div", g.op("ReduceSum", centred, g.ints(*around), keepdims=0), deviation)
    if wants[2]:
        db = g.op("ReduceSum", dy, g.ints(*around), keepdims=0)
    return (dx, ds, db, None, None)


@rule("LayerNormalization")
def _layer_normalization(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """With n = (x − mean)/deviation and d = dY·scale: dX = (d − mean(d) − n·mean(d·n))/deviation."""
    if len(dys) > 1 and any(d is not None for d in dys[1:]):
        raise NotDifferentiableError(op, "the gradient of its Mean or InvStdDev output is asked for")
    x, scale = op.inputs[:2]
    dy, y = one(dys), op.outputs[0]
    rank = g.rank(op, x)
    axis = op.integer("axis", -1) % rank
    axes = g.ints(*range(axis, rank))
    mean, inverse = g.extra_output(op, 1, f"{y}_mean"), g.extra_output(op, 2, f"{y}_inv")
    if g.dtype(x) != np.float32:  # both are computed, and come, in float32 (stash_type)
        mean, inverse = g.cast(mean, g.dtype(x)), g.cast(inverse, g.dtype(x))
    normal = g.op("Mul", g.op("Sub", x, mean), inverse)
    dx = ds = db = None
    if wants[0]:
        d = g.op("Mul", dy, scale)
        centre = g.op("ReduceMean", d, axes, keepdims=1)
        along = g.op("Mul", normal, g.op("ReduceMean", g.op("Mul", d, normal), axes, keepdims=1))
        dx = g.op("Mul", g.op("Sub", g.op("Sub", d, centre), along), inverse)
    if wants[1]:
        ds = g.reduce_to(g.op("Mul", dy, normal), y, scale)
    if len(wants) > 2 and wants[2]:
        db = g.reduce_to(dy, y, op.inputs[2])
    return (dx, ds, db)[: len(op.inputs)]
