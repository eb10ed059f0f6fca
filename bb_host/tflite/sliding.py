"""Windows over computed images in operators that XNNPACK takes: what each tap sees, and the way back.

Images are channels last. A step of more than one is a RESHAPE that lays the phases of an axis side by side,
and a SLICE of one of them: XNNPACK's STRIDED_SLICE takes steps of one alone. The reach of a window along one
axis is an `_Axis`; nothing here depends on what is computed of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from bb_host.tflite.lowering import Region
from bb_host.tflite.windows import Window, padded_lowest

_TOGETHER = 4
"""Tensors that one CONCATENATION joins: XNNPACK takes five at most."""


class _Axis(NamedTuple):
    """How windows lie along one axis: tap t of window o is at o * stride + t * dilation - before."""

    size: int
    windows: int
    taps: int
    stride: int
    dilation: int
    before: int

    @property
    def padded(self) -> int:
        """The length, padding included, that holds each tap's last window: a multiple of the stride."""
        return self.stride * ((self.taps - 1) * self.dilation // self.stride + self.windows)

    def move(self, tap: int) -> int:
        """How far behind a window, whose stride is one, a tap sees."""
        return tap * self.dilation - self.before

    def reach(self, tap: int) -> tuple[int, int]:
        """The first place that a tap sees, and the one behind the last; the stride is one."""
        move = self.move(tap)
        return max(0, move), min(self.size, self.windows + move)


class Sliding:
    """One window over images of one size; all tensors are [batch, height, width, channels]."""

    def __init__(self, window: Window, size: tuple[int, int], result: tuple[int, int]) -> None:
        self.rows, self.columns = (
            _Axis(
                size[a], result[a], window.kernel[a], window.strides[a], window.dilations[a], window.before[a]
            )
            for a in range(2)
        )

    @property
    def key(self) -> tuple[_Axis, _Axis]:
        """What tells it from others: equal windows over one image see the same."""
        return self.rows, self.columns

    @property
    def lines(self) -> Sliding:
        """The same windows with one row alone, over each line of an image."""
        lines = copy.copy(self)
        size = self.rows.size
        lines.rows = _Axis(size, size, 1, 1, 1, 0)
        return lines

    @property
    def is_point(self) -> bool:
        """Whether each window sees one pixel, and each pixel is seen once."""
        return all((a.taps, a.stride, a.size) == (1, 1, a.windows) and not a.before for a in self.key)

    def padded(self, region: Region, x: int, *, lowest: bool = False) -> int:
        """The image with its padding: zeros, or the least number there is."""
        n, height, width, channels = region.graph.shape(x)
        tall, wide = self.rows.padded, self.columns.padded
        top, left = self.rows.before, self.columns.before
        height, width = min(height, tall - top), min(width, wide - left)
        x = cut(region, x, (0, 0, 0, 0), (n, height, width, channels))  # windows may end short of the image
        if (tall, wide) == (height, width):
            return x
        around = ((top, tall - top - height), (left, wide - left - width))
        if lowest:
            return padded_lowest(region, x, around)
        pads = region.ints([[0, 0], *around, [0, 0]])
        return region.op("PAD", [x, pads], (n, tall, wide, channels))

    def column(self, region: Region, padded: int, tap: int) -> int:
        """What a tap sees of each row of a padded image: [batch, padded height, windows, channels]."""
        n, tall, wide, channels = region.graph.shape(padded)
        at = self.columns
        place, phase = divmod(tap * at.dilation, at.stride)
        if at.stride == 1:
            return cut(region, padded, (0, 0, place, 0), (n, tall, at.windows, channels))
        x = region.reshaped(padded, (n * tall, wide // at.stride, at.stride * channels))
        x = cut(region, x, (0, place, phase * channels), (n * tall, at.windows, channels))
        return region.reshaped(x, (n, tall, at.windows, channels))

    def row(self, region: Region, x: int, tap: int) -> int:
        """Of a tensor [batch, padded height, …], what a tap sees: [batch, windows, …]."""
        n, tall, *rest = region.graph.shape(x)
        at = self.rows
        place, phase = divmod(tap * at.dilation, at.stride)
        if at.stride == 1:
            return cut(region, x, (0, place, *[0] * len(rest)), (n, at.windows, *rest))
        size = prod(rest)
        x = region.reshaped(x, (n, tall // at.stride, at.stride * size))
        x = cut(region, x, (0, place, phase * size), (n, at.windows, size))
        return region.reshaped(x, (n, at.windows, *rest))

    def gathered(self, region: Region, x: int) -> int:
        """A matrix [batch * windows, taps * channels], zeros around the image.

        Its product with a filter is a convolution. Whoever asks again for the same windows over the same
        image is given the same tensor.
        """

        def make() -> int:
            n, *_, channels = region.graph.shape(x)
            taps = self.rows.taps * self.columns.taps * channels
            few = (n * self.rows.windows * self.columns.windows, taps)
            if self.is_point:
                return region.reshaped(x, few)
            padded = self.padded(region, x)
            columns = [self.column(region, padded, tap) for tap in range(self.columns.taps)]
            beside = joined(region, columns, 3)
            rows = [self.row(region, beside, tap) for tap in range(self.rows.taps)]
            return region.reshaped(joined(region, rows, 3), few)

        return region.once(("gathered", x, self.key), make)

    def scattered(self, region: Region, x: int, channels: int) -> int:
        """The way back: what each tap of each window gives, added up where the taps are in the image.

        `x` is as `gathered` gives it.
        """
        at, over = self.columns, self.rows
        size, taps = region.graph.shape(x)
        n = size // (over.windows * at.windows)
        if self.is_point:
            return region.reshaped(x, (n, over.size, at.size, channels))
        few = taps // over.taps
        parts = (cut(region, x, (0, i * few), (size, few)) for i in range(over.taps))
        shape = (n, over.windows, at.windows * few)
        lines = {i: region.reshaped(part, shape) for i, part in enumerate(parts)}
        x = region.reshaped(spread(region, lines, over), (n * over.size, at.windows, few))
        shape = (n * over.size, at.windows, channels)
        columns = {i: cut(region, x, (0, 0, i * channels), shape) for i in range(at.taps)}
        return region.reshaped(spread(region, columns, at), (n, over.size, at.size, channels))

    def scattered_taps(self, region: Region, tap: Callable[[int, int], int]) -> int:
        """The same for tensors [batch, windows, windows, channels], one per `tap(row, column)`."""
        at, over = self.columns, self.rows
        lines = {}
        shape: tuple[int, ...] = ()
        for i in range(over.taps):
            parts = [tap(i, j) for j in range(at.taps)]
            shape = region.graph.shape(parts[0])
            few = (shape[0] * over.windows, at.windows, shape[3])
            line = spread(region, {j: region.reshaped(p, few) for j, p in enumerate(parts)}, at)
            lines[i] = region.reshaped(line, (shape[0], over.windows, at.size * shape[3]))
        return region.reshaped(spread(region, lines, over), (shape[0], over.size, at.size, shape[3]))


def spread(region: Region, parts: dict[int, int], axis: _Axis) -> int:
    """Tensors [a, windows, b], one per tap: [a, size, b], where each entry is added at its place."""
    a, _, b = region.graph.shape(parts[0])
    length = -(-axis.size // axis.stride)
    phases: dict[int, int] = {}
    for tap, part in parts.items():
        move, phase = divmod(tap * axis.dilation - axis.before, axis.stride)
        first, end = max(0, -move), min(axis.windows, length - move)
        if first >= end:
            continue  # it sees padding alone
        part = cut(region, part, (0, first, 0), (a, end - first, b))
        part = placed(region, part, move + first, length)
        phases[phase] = added(region, phases[phase], part) if phase in phases else part
    if axis.stride == 1:
        return phases[0]
    wide: list[int] = []
    order = sorted(phases)
    for phase, following in zip(order, [*order[1:], axis.stride], strict=True):
        # A phase that nothing lies in is zeros, put around its neighbour.
        before, after = 0 if wide else phase, following - phase - 1
        part = region.reshaped(phases[phase], (a * length, b))
        if before or after:
            pads = region.ints([[0, 0], [before * b, after * b]])
            part = region.op("PAD", [part, pads], (a * length, (before + 1 + after) * b))
        wide.append(part)
    x = region.reshaped(joined(region, wide, 1), (a, length * axis.stride, b))
    return cut(region, x, (0, 0, 0), (a, axis.size, b))


def placed(region: Region, x: int, first: int, length: int) -> int:
    """A tensor [a, some, …] as [a, length, …]: zeros, and what it has from `first` on."""
    a, some, *rest = region.graph.shape(x)
    if some == length:
        return x
    pads = region.ints([[0, 0], [first, length - first - some], *[[0, 0]] * len(rest)])
    return region.op("PAD", [x, pads], (a, length, *rest))


def cut(region: Region, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
    """A part of a tensor; the tensor itself where that is all of it."""
    if region.graph.shape(x) == tuple(size):
        return x
    return region.op("SLICE", [x, region.ints(begin), region.ints(size)], size)


def joined(region: Region, parts: Sequence[int], axis: int) -> int:
    """Tensors one after the other along an axis."""
    parts = list(parts)
    while len(parts) > 1:
        groups = [parts[i : i + _TOGETHER] for i in range(0, len(parts), _TOGETHER)]
        parts = [group[0] if len(group) == 1 else _concatenated(region, group, axis) for group in groups]
    return parts[0]


def _concatenated(region: Region, parts: Sequence[int], axis: int) -> int:
    shape = list(region.graph.shape(parts[0]))
    shape[axis] = sum(region.graph.shape(part)[axis] for part in parts)
    return region.op("CONCATENATION", parts, shape, axis=axis)


def added(region: Region, a: int, b: int) -> int:
    """The sum of two tensors of one shape."""
    return region.op("ADD", [a, b], region.graph.shape(a))
