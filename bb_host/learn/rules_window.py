"""Gradients of convolutions and pools: again convolutions, over fixed spatial dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule, unary


@dataclass(frozen=True, slots=True)
class _Window:
    """A sliding window, everything spelled out; `begin` and `end` are the padding."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    dims: list[int]  # of the input
    out: list[int]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def pads(self) -> list[int]:
        return [*self.begin, *self.end]

    def output_padding(self) -> list[int]:
        """What a transposed convolution adds at the end so that it gives `dims` again."""
        reach = [
            (o - 1) * s + d * (k - 1) + 1 - b - e
            for o, s, d, k, b, e in zip(
                self.out, self.strides, self.dilations, self.kernel, self.begin, self.end, strict=True
            )
        ]
        return [dim - r for dim, r in zip(self.dims, reach, strict=True)]


def _spacing(op: Op, rank: int) -> tuple[list[int], list[int], list[int], list[int], str]:
    """Strides, dilations, padding before and behind each axis as `pads` says it, and `auto_pad`."""
    strides, dilations = op.integers("strides", [1] * rank), op.integers("dilations", [1] * rank)
    pads = op.integers("pads", [0] * 2 * rank)
    auto = op.text("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = [0] * 2 * rank
    return strides, dilations, pads[:rank], pads[rank:], auto


def _window(g: GradientBuilder, op: Op, kernel: list[int]) -> _Window:
    x, y = op.inputs[0], op.outputs[0]
    rank = len(kernel)
    dims = g.static_dims(op, x, range(2, 2 + rank))
    out = g.static_dims(op, y, range(2, 2 + rank))
    strides, dilations, begin, end, auto = _spacing(op, rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        needed = [
            max(0, (o - 1) * s + d * (k - 1) + 1 - dim)
            for o, s, d, k, dim in zip(out, strides, dilations, kernel, dims, strict=True)
        ]
        begin, end = _halves(needed, auto)
    return _Window(kernel, strides, dilations, begin, end, dims, out)


def _halves(total: list[int], auto: str) -> tuple[list[int], list[int]]:
    """What is padded per axis, before and behind: the odd one behind for SAME_UPPER, else before."""
    small, large = [n // 2 for n in total], [n - n // 2 for n in total]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _turned(g: GradientBuilder, value: str, rank: int) -> str:
    """The first two axes exchanged."""
    return g.op("Transpose", value, perm=[1, 0, *range(2, rank + 2)])


@rule("Conv")
def _conv(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """dX is the transposed convolution of dY; dW convolves X with dY, batch and channels exchanged."""
    x, w = op.inputs[:2]
    dy = one(dys)
    weights = g.static_dims(op, w, range(g.rank(op, w)))
    at = _window(g, op, weights[2:])
    group = op.integer("group", 1)
    grads: list[str | None] = [None, None]
    if wants[0]:
        grads[0] = _transposed(g, dy, w, at, group)
    if wants[1]:
        grads[1] = _conv_weights(g, x, dy, weights, at, group)
    if len(op.inputs) > 2:
        axes = g.ints(0, *range(2, 2 + at.rank))
        grads.append(g.op("ReduceSum", dy, axes, keepdims=0) if wants[2] else None)
    return grads


def _transposed(g: GradientBuilder, dy: str, w: str, at: _Window, group: int) -> str:
    """Positions that no window reaches at the end of an axis get zeros."""
    extra = at.output_padding()
    rest = [
        max(0, e - s + 1) for e, s in zip(extra, at.strides, strict=True)
    ]  # padding must stay below the stride
    dx = g.op(
        "ConvTranspose", dy, w, strides=at.strides, dilations=at.dilations, pads=at.pads, group=group,
        output_padding=[e - r for e, r in zip(extra, rest, strict=True)],
    )  # fmt: skip
    if any(rest):
        dx = g.op("Pad", dx, g.ints(*[0] * (4 + at.rank), *rest))
    return dx


def _conv_weights(g: GradientBuilder, x: str, dy: str, weights: list[int], at: _Window, group: int) -> str:
    """With groups the batch of each group is a channel of its own: X becomes [C/group, group·N, …]."""
    turned = _turned(g, x, at.rank)
    if group > 1:
        split = g.op("Reshape", turned, g.ints(group, weights[1], -1, *at.dims))
        turned = g.op("Transpose", split, perm=[1, 0, 2, *range(3, 3 + at.rank)])
        turned = g.op("Reshape", turned, g.ints(weights[1], -1, *at.dims))
    dw = g.op(
        "Conv", turned, _turned(g, dy, at.rank), strides=at.dilations, dilations=at.strides, pads=at.pads,
        group=group,
    )  # fmt: skip
    # Where the stride does not divide, windows beyond the last one fit in; they are not weights.
    reach = [
        (dim + b + e - s * (o - 1) - 1) // d + 1
        for dim, b, e, s, o, d in zip(
            at.dims, at.begin, at.end, at.strides, at.out, at.dilations, strict=True
        )
    ]
    if reach != at.kernel:
        axes = list(range(2, 2 + at.rank))
        dw = g.op("Slice", dw, g.ints(*[0] * at.rank), g.ints(*at.kernel), g.ints(*axes))
    return _turned(g, dw, at.rank)


@rule("ConvTranspose")
def _conv_transpose(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """The adjoint of a convolution from the output's shape to the input's: dX is that convolution of dY."""
    (x, w), y, dy = op.inputs[:2], op.outputs[0], one(dys)
    weights = g.static_dims(op, w, range(g.rank(op, w)))
    rank = len(weights) - 2
    dims, out = g.static_dims(op, y, range(2, 2 + rank)), g.static_dims(op, x, range(2, 2 + rank))
    strides, dilations, begin, end, auto = _spacing(op, rank)
    if auto != "VALID" and ("output_shape" in op.attrs or auto != "NOTSET"):
        added = op.integers("output_padding", [0] * rank)
        total = [
            max(0, s * (o - 1) + e + d * (k - 1) + 1 - dim)
            for s, o, e, d, k, dim in zip(strides, out, added, dilations, weights[2:], dims, strict=True)
        ]
        begin, end = _halves(total, auto)
    # What the output was lengthened by at the end lies beyond the last window.
    reach = [
        s * (o - 1) + d * (k - 1) + 1 for s, o, d, k in zip(strides, out, dilations, weights[2:], strict=True)
    ]
    end = [min(e, r - b - dim) for e, r, b, dim in zip(end, reach, begin, dims, strict=True)]
    cut = [max(0, -e) for e in end]
    if any(cut):
        dims = [dim - c for dim, c in zip(dims, cut, strict=True)]
        axes = g.ints(*range(2, 2 + rank))
        whole, dy = dy, g.op("Slice", dy, g.ints(*[0] * rank), g.ints(*dims), axes)
    else:
        whole = dy
    at = _Window(weights[2:], strides, dilations, begin, [max(0, e) for e in end], dims, out)
    group = op.integer("group", 1)
    grads: list[str | None] = [None, None]
    if wants[0]:
        grads[0] = g.op("Conv", dy, w, strides=at.strides, dilations=at.dilations, pads=at.pads, group=group)
    if wants[1]:
        grads[1] = _conv_weights(g, dy, x, weights, at, group)
    if len(op.inputs) > 2:
        grads.append(
            g.op("ReduceSum", whole, g.ints(0, *range(2, 2 + rank)), keepdims=0) if wants[2] else None
        )
    return grads


@unary("AveragePool")
def _average_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Each entry's share goes back to the entries it was the mean of: a transposed convolution by ones."""
    at = _window(g, op, op.integers("kernel_shape"))
    (channels,) = g.static_dims(op, x, [1])
    count = _counts(at, bool(op.attrs.get("count_include_pad", 0)), g.dtype(y))
    share = g.op("Div", dy, g.const(count))
    ones = g.const(np.ones((1, 1, *at.kernel), g.dtype(y)))
    # One channel at a time, channels in the batch: no weights as large as the channels.
    flat = g.op("Reshape", share, g.ints(-1, 1, *at.out))
    spread = _transposed(g, flat, ones, _fitting(at), 1)
    return g.op("Reshape", spread, g.ints(-1, channels, *at.dims))


def _fitting(at: _Window) -> _Window:
    """With the end padding that its output takes: in ceil mode the last window hangs over."""
    end = [
        max(e, (o - 1) * s + d * (k - 1) + 1 - b - dim)
        for e, o, s, d, k, b, dim in zip(
            at.end, at.out, at.strides, at.dilations, at.kernel, at.begin, at.dims, strict=True
        )
    ]
    return _Window(at.kernel, at.strides, at.dilations, at.begin, end, at.dims, at.out)


def _counts(at: _Window, include_pad: bool, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """How many entries each mean is of: [1, 1, *out], or [1, 1, 1…] where it is the same for all."""
    per_axis = []
    for k, s, d, b, e, dim, o in zip(
        at.kernel, at.strides, at.dilations, at.begin, at.end, at.dims, at.out, strict=True
    ):
        low, high = (-b, dim + e) if include_pad else (0, dim)
        places = np.arange(o)[:, None] * s - b + np.arange(k)[None, :] * d
        per_axis.append(((places >= low) & (places < high)).sum(axis=1))
    count = np.ones((1, 1, *[1] * at.rank))
    for axis, numbers in enumerate(per_axis):
        shape = [1] * (2 + at.rank)
        if len(set(numbers.tolist())) == 1:
            count = count * numbers[0]
        else:
            shape[2 + axis] = -1
            count = count * numbers.reshape(shape)
    return np.maximum(count, 1).astype(dtype)


@unary("Col2Im")
def _columns_to_image(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The columns read their places of the image again, in the padding zeros."""
    block = g.constant(op.inputs[2])
    if block is None:
        raise NotDifferentiableError(op, "its block is computed", "make it a constant")
    kernel = [int(k) for k in block.reshape(-1)]
    rank = len(kernel)
    channels, *dims = g.static_dims(op, y, range(1, 2 + rank))
    pads = op.integers("pads", [0] * 2 * rank)
    strides, dilations = op.integers("strides", [1] * rank), op.integers("dilations", [1] * rank)
    padded = [dim + b + e for dim, b, e in zip(dims, pads[:rank], pads[rank:], strict=True)]
    places = np.zeros([1] * 2 * rank, np.int64)  # [taps…, blocks…], row-major in the padded image
    for axis, (size, k, s, d) in enumerate(zip(padded, kernel, strides, dilations, strict=True)):
        along = np.arange(k)[:, None] * d + np.arange((size - d * (k - 1) - 1) // s + 1)[None, :] * s
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = along.shape
        places = places * size + along.reshape(shape)
    if any(pads):
        dy = g.op("Pad", dy, g.ints(0, 0, *pads[:rank], 0, 0, *pads[rank:]))
    flat = g.op("Reshape", dy, g.ints(-1, channels, int(np.prod(padded))))
    read = g.op("Gather", flat, g.const(places.reshape(-1)), axis=2)
    blocks = int(np.prod(places.shape[rank:]))
    return g.op("Reshape", read, g.ints(-1, channels * int(np.prod(kernel)), blocks))


@unary("LpPool")
def _lp_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """dX = sign(x)·|x|^(p−1) times the sum of dY·y^(1−p) over the windows; a window of zeros passes none."""
    at = _window(g, op, op.integers("kernel_shape"))
    (channels,) = g.static_dims(op, x, [1])
    p = op.integer("p", 2)
    flat = g.op("Reshape", _of_norm(g, dy, y, p), g.ints(-1, 1, *at.out))
    ones = g.const(np.ones((1, 1, *at.kernel), g.dtype(y)))
    spread = _transposed(g, flat, ones, _fitting(at), 1)
    return g.op("Mul", g.op("Reshape", spread, g.ints(-1, channels, *at.dims)), _power(g, x, p))


@unary("GlobalLpPool")
def _global_lp_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """As LpPool, of one window."""
    p = op.integer("p", 2)
    return g.op("Mul", _of_norm(g, dy, y, p), _power(g, x, p))


def _of_norm(g: GradientBuilder, dy: str, y: str, p: int) -> str:
    """dy·y^(1−p): what a norm's gradient has for all entries in common."""
    if p == 1:
        return dy
    zero = g.op("Equal", y, g.scalar(0, y))
    length = g.op("Where", zero, g.scalar(1, y), y)
    return g.op("Div", dy, length if p == 2 else g.op("Pow", length, g.scalar(p - 1, y)))


def _power(g: GradientBuilder, x: str, p: int) -> str:
    """sign(x)·|x|^(p−1): what each entry has for itself."""
    if p == 2:
        return x
    sign = g.op("Sign", x)
    return sign if p == 1 else g.op("Mul", sign, g.op("Pow", g.op("Abs", x), g.scalar(p - 1, x)))


@unary("GlobalAveragePool")
def _global_average_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    dims = g.static_dims(op, x, range(2, g.rank(op, x)))
    share = g.op("Mul", dy, g.scalar(1 / max(1, int(np.prod(dims))), x))
    return g.op("Expand", share, g.shape_value(x))


@unary("MaxPool")
def _max_pool(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """To the entry that was the largest: the pool's own indices, into the flat input; overlaps add up."""
    if op.attrs.get("storage_order", 0):
        raise NotDifferentiableError(op, "its indices are column-major", "use storage_order 0")
    indices = g.extra_output(op, 1, f"{y}_indices")
    flat = g.ints(-1)
    size = g.op("ReduceProd", g.shape_value(x), keepdims=1)
    zeros = g.op("ConstantOfShape", size, value=np.zeros(1, g.dtype(x)))
    spread = g.op(
        "ScatterElements", zeros, g.op("Reshape", indices, flat), g.op("Reshape", dy, flat), axis=0,
        reduction=b"add",
    )  # fmt: skip
    return g.reshape_like(spread, x)
