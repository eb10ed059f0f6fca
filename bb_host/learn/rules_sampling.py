"""Gradients of what reads images between their pixels, at positions that are values themselves.

A sample is a sum over taps: the pixels around a position, each with a share that is a polynomial of how far
the position lies behind the first one. Taps are an axis of their own, so that images are read, and written
back to, once. Shapes: N images of C channels and `size`, P positions, T taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bb_host.ir.program import Array, Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule, unary

_CUBIC = -0.75
_FAR, _NO_NUMBER = -1e6, 1e30  # where the kernels read what is not a number: outside


def _polynomials(mode: str) -> tuple[list[int], Array]:
    """Of each tap along an axis: its step from the first pixel, and its share as [taps, 1, t, t², …]."""
    if mode == "nearest":
        return [0], np.array([[1.0]])
    if mode == "linear":
        return [0, 1], np.array([[1.0, -1.0], [0.0, 1.0]])
    near = np.polynomial.Polynomial([1, 0, -(_CUBIC + 3), _CUBIC + 2])
    far = np.polynomial.Polynomial([-4 * _CUBIC, 8 * _CUBIC, -5 * _CUBIC, _CUBIC])
    t = np.polynomial.Polynomial([0, 1])
    return [-1, 0, 1, 2], np.array([p.coef for p in (far(t + 1), near(t), near(1 - t), far(2 - t))])


@dataclass(frozen=True, slots=True)
class _Axis:
    """Taps along one axis: `places` [N,T,P] within the image, their `shares` and the shares' `slopes` by the
    position as it was given."""

    places: str
    shares: str
    slopes: str


class _Sampler:
    """Reads positions of images: `at` is [N,P] per axis, in pixels."""

    def __init__(
        self, g: GradientBuilder, size: Sequence[int], mode: str, padding: str, align: bool, like: str
    ) -> None:
        self._g = g
        self._size = size
        self._mode = mode
        self._padding = padding
        self._align = align
        self._like = like
        self.steps, self._shares = _polynomials(mode)
        self.taps = len(self.steps) ** len(size)

    def number(self, value: float) -> str:
        return self._g.scalar(value, self._like)

    def _real(self, condition: str) -> str:
        return self._g.cast(condition, self._g.dtype(self._like))

    def _column(self, values: Sequence[float] | Array) -> str:
        """[1,T,1]."""
        return self._g.const(np.array(values, self._g.dtype(self._like)).reshape(1, -1, 1))

    def _reflected(self, at: str, low: float, high: float) -> tuple[str, str]:
        """Mirrored at both borders until they lie inside, and the slope of that."""
        g, span = self._g, high - low
        if span <= 0:
            nothing = g.op("Sub", at, at)
            return nothing, nothing
        away = g.op("Sub", at, self.number(low))
        folded = g.op("Mod", g.op("Abs", away), self.number(2 * span), fmod=1)
        back = g.op("Greater", folded, self.number(span))
        place = g.op("Where", back, g.op("Sub", self.number(2 * span), folded), folded)
        turned = g.op("Where", back, self.number(-1), self.number(1))
        slope = g.op("Mul", turned, g.op("Where", g.op("Less", away, self.number(0)), self.number(-1),
                                         self.number(1)))  # fmt: skip
        return g.op("Add", place, self.number(low)), slope

    def axis(self, n: int, at: str) -> _Axis:
        """The taps along an axis of n pixels."""
        g = self._g
        known = g.op("Less", g.op("Abs", at), self.number(_NO_NUMBER))
        at = g.op("Unsqueeze", g.op("Where", known, at, self.number(_FAR)), g.ints(1))
        low, high = (0.0, n - 1.0) if self._align else (-0.5, n - 0.5)
        slopes: list[str] = []
        if self._mode != "cubic" and self._padding == "reflection":
            at, slope = self._reflected(at, low, high)
            slopes.append(slope)
        if self._mode != "cubic" and self._padding != "zeros":
            above, below = (g.op(op, at, self.number(v)) for op, v in (("Greater", 0), ("Less", n - 1)))
            slopes.append(self._real(g.op("And", above, below)))
            at = g.op("Clip", at, self.number(0), self.number(n - 1))
        first = g.op("Round" if self._mode == "nearest" else "Floor", at)
        places = g.op("Add", first, self._column(self.steps))
        if self._padding == "reflection":
            places, _ = self._reflected(places, low, high)
        behind = g.op("Sub", at, first)
        shares = self._polynomial(behind, self._shares)
        slope = self._polynomial(behind, np.polynomial.polynomial.polyder(self._shares, axis=1))
        if self._padding == "zeros":
            outside = g.op("Or", g.op("Less", places, self.number(0)),
                           g.op("Greater", places, self.number(n - 1)))  # fmt: skip
            inside = self._real(g.op("Not", outside))
            shares, slope = g.op("Mul", shares, inside), g.op("Mul", slope, inside)
        for factor in slopes:
            slope = g.op("Mul", slope, factor)
        within = g.op("Clip", places, self.number(0), self.number(n - 1))
        return _Axis(g.cast(within, np.dtype(np.int64)), shares, slope)

    def _polynomial(self, t: str, coefficients: Array) -> str:
        """[N,T,P] of t [N,1,P]."""
        g = self._g
        total = self._column(coefficients[:, -1])
        for column in reversed(coefficients.T[:-1]):
            total = g.op("Add", g.op("Mul", total, t), self._column(column))
        return total if coefficients.shape[1] > 1 else g.op("Add", total, g.op("Sub", t, t))

    def product(self, values: Sequence[str], add: bool = False) -> str:
        """Of one value [N,T,P] per axis, over all their taps: [N,1,T,P]. Sums instead with `add`."""
        g, rank = self._g, len(self._size)
        total = ""
        for k, value in enumerate(values):
            lifted = g.op("Unsqueeze", value, g.ints(*(1 + i for i in range(rank) if i != k)))
            total = lifted if not total else g.op("Add" if add else "Mul", total, lifted)
        return g.op("Reshape", total, g.ints(0, 1, self.taps, -1))

    def indices(self, axes: Sequence[_Axis], channels: int) -> str:
        """[N,C,T·P]: where each tap lies in an image whose pixels are one axis."""
        g, strides = self._g, [int(np.prod(self._size[k + 1 :])) for k in range(len(self._size))]
        pairs = zip(axes, strides, strict=True)
        parts = [g.op("Mul", axis.places, g.const(np.array(stride, np.int64))) for axis, stride in pairs]
        flat = g.op("Reshape", self.product(parts, add=True), g.ints(0, 1, -1))
        return g.op("Expand", flat, g.ints(1, channels, 1))

    def read(self, image: str, indices: str, channels: int) -> str:
        """[N,C,T,P]: the pixels at indices of an image [N,C,pixels]."""
        g = self._g
        picked = g.op("GatherElements", image, indices, axis=2)
        return g.op("Reshape", picked, g.ints(0, channels, self.taps, -1))

    def written(self, image: str, indices: str, values: str) -> str:
        """[N,C,pixels]: values [N,C,T,P] added up where they were read."""
        g = self._g
        zeros = g.op("ConstantOfShape", g.op("Shape", image), value=np.zeros(1, g.dtype(self._like)))
        flat = g.op("Reshape", values, g.ints(0, 0, -1))
        return g.op("ScatterElements", zeros, indices, flat, axis=2, reduction=b"add")

    def moved(self, axes: Sequence[_Axis], k: int, by_tap: str) -> str:
        """[N,P]: the gradient of the positions along axis k, of what each tap brings [N,1,T,P]."""
        g = self._g
        slopes = self.product([axis.slopes if i == k else axis.shares for i, axis in enumerate(axes)])
        return g.op("ReduceSum", g.op("Mul", by_tap, slopes), g.ints(1, 2), keepdims=0)


@rule("GridSample")
def _grid_sample(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Of images, and of the grid: linear, nearest and cubic, with every padding, aligned or not. Where a
    position was cut to the border, or is nearest, the grid gets none."""
    (x, grid), dy = op.inputs, one(dys)
    rank = g.rank(op, x) - 2
    channels, *size = g.static_dims(op, x, range(1, 2 + rank))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        op.text("mode", "linear"), op.text("mode", "linear")
    )
    align = bool(op.integer("align_corners", 0))
    sampler = _Sampler(g, size, mode, op.text("padding_mode", "zeros"), align, x)
    where = grid if g.dtype(grid) == g.dtype(x) else g.cast(grid, g.dtype(x))
    positions = g.op("Reshape", where, g.ints(0, -1, rank))
    factors = [(n - 1) / 2 if align else n / 2 for n in size]
    axes = []
    for k, (n, factor) in enumerate(zip(size, factors, strict=True)):
        own = g.op("Gather", positions, g.const(np.array(rank - 1 - k, np.int64)), axis=2)
        centre = g.op("Mul", own, sampler.number(factor))
        axes.append(sampler.axis(n, g.op("Add", centre, sampler.number((n - 1) / 2))))
    image = g.op("Reshape", x, g.ints(0, 0, -1))
    indices = sampler.indices(axes, channels)
    by_tap = g.op("Unsqueeze", g.op("Reshape", dy, g.ints(0, 0, -1)), g.ints(2))
    found: list[str | None] = [None, None]
    if wants[0]:
        shares = sampler.product([axis.shares for axis in axes])
        found[0] = g.reshape_like(sampler.written(image, indices, g.op("Mul", by_tap, shares)), x)
    if wants[1]:
        brought = g.op("ReduceSum", g.op("Mul", sampler.read(image, indices, channels), by_tap), g.ints(1),
                       keepdims=1)  # fmt: skip
        moved = [
            g.op("Mul", sampler.moved(axes, k, brought), sampler.number(factors[k])) for k in range(rank)
        ]
        innermost_first = [g.op("Unsqueeze", value, g.ints(2)) for value in reversed(moved)]
        total = innermost_first[0] if rank == 1 else g.op("Concat", *innermost_first, axis=2)
        total = total if g.dtype(grid) == g.dtype(x) else g.cast(total, g.dtype(grid))
        found[1] = g.reshape_like(total, grid)
    return found


@rule("DeformConv")
def _deform_conv(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Of images, weights, offsets, bias and mask: the windows are read again, between pixels, and their
    gradient is a product with the weights."""
    (x, w, offset), dy = op.inputs[:3], one(dys)
    bias, mask = ((op.inputs[i] if i < len(op.inputs) else "") for i in (3, 4))
    count, _, *kernel = g.static_dims(op, w, range(g.rank(op, w)))
    channels, *size = g.static_dims(op, x, range(1, 4))
    out = g.static_dims(op, op.outputs[0], range(2, 4))
    group, bent = op.integer("group", 1), op.integer("offset_group", 1)
    taps, points, own = int(np.prod(kernel)), int(np.prod(out)), channels // bent
    sampler = _Sampler(g, size, "linear", "zeros", False, x)
    # An image per group of offsets; a position per tap of each window.
    image = g.op("Reshape", x, g.ints(-1, own, size[0] * size[1]))
    moved = g.op("Reshape", offset, g.ints(-1, taps, 2, points))
    strides, dilations = op.integers("strides", [1, 1]), op.integers("dilations", [1, 1])
    begin = op.integers("pads", [0] * 4)[:2]
    axes = []
    for k in range(2):
        places = np.arange(out[k]) * strides[k] - begin[k]
        tap = np.arange(kernel[k]) * dilations[k]
        start = (tap[:, None] + places[None, :]).reshape(
            *((kernel[k], 1, out[k], 1), (1, kernel[k], 1, out[k]))[k]
        )
        whole = np.broadcast_to(start, (*kernel, *out)).reshape(1, taps, points)
        shift = g.op("Gather", moved, g.const(np.array(k, np.int64)), axis=2)
        at = g.op("Add", shift, g.const(whole.astype(g.dtype(x))))
        axes.append(sampler.axis(size[k], g.op("Reshape", at, g.ints(-1, taps * points))))
    indices = sampler.indices(axes, own)
    shares = sampler.product([axis.shares for axis in axes])
    read = sampler.read(image, indices, own)  # [N·bent, C/bent, T, taps·points]
    sampled = g.op("ReduceSum", g.op("Mul", read, shares), g.ints(2), keepdims=0)
    weighed = g.op("Reshape", mask, g.ints(-1, 1, taps * points)) if mask else ""
    columns = g.op("Mul", sampled, weighed) if mask else sampled
    grouped = g.op("Reshape", columns, g.ints(-1, group, channels // group * taps, points))
    dy_grouped = g.op("Reshape", dy, g.ints(-1, group, count // group, points))
    weights = g.op("Reshape", w, g.ints(group, count // group, channels // group * taps))
    found: list[str | None] = [None] * len(op.inputs)
    if wants[1]:
        dw = g.op("MatMul", dy_grouped, g.op("Transpose", grouped, perm=[0, 1, 3, 2]))
        found[1] = g.reshape_like(g.op("ReduceSum", dw, g.ints(0), keepdims=0), w)
    if bias and wants[3]:
        found[3] = g.op("ReduceSum", dy, g.ints(0, 2, 3), keepdims=0)
    if not (wants[0] or wants[2] or (mask and wants[4])):
        return found
    by_column = g.op("MatMul", g.op("Transpose", weights, perm=[0, 2, 1]), dy_grouped)
    by_column = g.op("Reshape", by_column, g.ints(-1, own, taps * points))
    if mask and wants[4]:
        of_mask = g.op("ReduceSum", g.op("Mul", by_column, sampled), g.ints(1), keepdims=0)
        found[4] = g.reshape_like(of_mask, mask)
    by_sample = g.op("Mul", by_column, weighed) if mask else by_column
    by_tap = g.op("Unsqueeze", by_sample, g.ints(2))
    if wants[0]:
        found[0] = g.reshape_like(sampler.written(image, indices, g.op("Mul", by_tap, shares)), x)
    if wants[2]:
        brought = g.op("ReduceSum", g.op("Mul", read, by_tap), g.ints(1), keepdims=1)
        both = [
            g.op("Reshape", sampler.moved(axes, k, brought), g.ints(-1, taps, 1, points)) for k in range(2)
        ]
        found[2] = g.reshape_like(g.op("Concat", *both, axis=2), offset)
    return found


@unary("AffineGrid")
def _affine_grid(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Of the maps: dY times the places in the image, summed over these."""
    rank = g.rank(op, y) - 2
    size = g.static_dims(op, y, range(1, 1 + rank))
    reach = [1 if op.integer("align_corners", 0) else 1 - 1 / n for n in size]
    axes = [np.linspace(-r, r, n) if n > 1 else np.zeros(n) for n, r in zip(size, reach, strict=True)]
    lifted = np.meshgrid(*axes, indexing="ij")
    places = np.stack([*lifted[::-1], np.ones(size)], -1).reshape(-1, rank + 1)  # innermost axis first
    rows = g.op("Transpose", g.op("Reshape", dy, g.ints(0, -1, rank)), perm=[0, 2, 1])
    return g.op("MatMul", rows, g.const(places.astype(g.dtype(x))))
