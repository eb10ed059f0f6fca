"""Depthwise convolutions of batches with weights that change, their transposes, and their weights' gradients.

As in ``depthwise``, a line of an image times a banded matrix is a line of results; here the matrices are made
in each run, and one product per channel takes the lines of all images. Channels have nothing to do with each
other: a few of them at a time are gathered, multiplied and put in their place. A transposed convolution is
the same with the bands transposed and the lines of the kernel in reverse. A weight's gradient is the product
of the lines under the windows with those of the gradient, of which each diagonal is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .spec import Array, Bound, Dtype, TensorSpec
from .windows import Windows

#: Bytes of the lines that are gathered at a time.
_CHUNK_BYTES = 256 << 10
#: Elements of a line up to which bands are worth their zeros (measured): for a convolution, which has another
#: way, and for what gradients need. At 8 they take 0.45 of the other way's time, at 16 as much, at 32 1.4.
WIDEST = 20
_WIDEST_BACK = 64


class _Diagonal(NamedTuple):
    """Where a column of the kernel is in a matrix [width of the images, width of the results]."""

    first: tuple[int, int]
    step: tuple[int, int]
    length: int


class Bands(NamedTuple):
    """Windows over images [batch,channels,*size] that give [batch,channels,*out], a kernel per channel.

    Line i of an image stands at ``front + i·apart``; the lines under a window of result r are those at
    ``r·step + t·dilation``, with nothing in between.
    """

    batch: int
    channels: int
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    front: int
    apart: int
    step: int
    dilation: int
    diagonals: tuple[_Diagonal, ...]

    @property
    def _reach(self) -> int:
        """Return the number of lines that windows reach."""
        return (self.out[0] - 1) * self.step + (self.kernel[0] - 1) * self.dilation + 1

    @property
    def _chunk(self) -> int:
        """Return how many channels are taken at a time."""
        lines = 4 * self.batch * self.out[0] * self.kernel[0] * self.size[1]
        return max(1, min(self.channels, _CHUNK_BYTES // lines))

    def scratch(self, dtype: Dtype) -> tuple[TensorSpec, ...]:
        """Return the scratch of a run: lines, lines under windows, banded matrices, lines of results."""
        n = self._chunk
        shapes = (
            (n, self.batch, self._reach, self.size[1]),
            (n, self.batch, self.out[0], self.kernel[0], self.size[1]),
            (n, self.kernel[0], self.size[1], self.out[1]),
            (n, self.batch, *self.out),
        )
        return tuple(TensorSpec(dtype, shape) for shape in shapes)

    def bind(self, x: Array, w: Array, bias: Array | None, out: Array, scratch: Sequence[Array]) -> Bound:
        """Return a run: x[batch,channels,*size], w[channels,*kernel], bias[channels] or None → out.

        All but the scratch may have any strides. The run allocates nothing.
        """
        steps: list[Bound] = [partial(scratch[0].fill, 0), partial(scratch[2].fill, 0)]
        if bias is not None:
            bias = bias.reshape(-1, 1, 1, 1)
        x, out = x.swapaxes(0, 1), out.swapaxes(0, 1)
        for first in range(0, self.channels, self._chunk):
            now = slice(first, min(first + self._chunk, self.channels))
            lines, under, bands, rows = (room[: now.stop - first] for room in scratch)
            steps += self._gather(x[now], lines, under)
            for column, band in enumerate(self._bands(bands)):
                steps.append(partial(np.copyto, band, w[now, :, column, None]))
            steps.append(partial(np.matmul, *self._matrices(under, bands, rows)))
            if bias is None:
                steps.append(partial(np.copyto, out[now], rows))
            else:
                steps.append(partial(np.add, rows, bias[now], out[now]))
        return _in_order(steps)

    def bind_gradient(self, x: Array, dy: Array, dw: Array, scratch: Sequence[Array]) -> Bound:
        """Return a run: the gradient dw[channels,*kernel] by the weights, for that by the results.

        x[channels,batch,*size] and dy[channels,batch,*out] as all others may have any strides. The run
        allocates nothing.
        """
        steps: list[Bound] = [partial(scratch[0].fill, 0)]
        for first in range(0, self.channels, self._chunk):
            now = slice(first, min(first + self._chunk, self.channels))
            lines, under, bands, rows = (room[: now.stop - first] for room in scratch)
            steps += self._gather(x[now], lines, under)
            steps.append(partial(np.copyto, rows, dy[now]))
            left, result, right = self._matrices(under, bands, rows)
            steps.append(partial(np.matmul, left.swapaxes(1, 2), right, result))
            for column, band in enumerate(self._bands(bands)):
                steps.append(partial(np.add.reduce, band, -1, None, dw[now, :, column]))
        return _in_order(steps)

    def _gather(self, x: Array, lines: Array, under: Array) -> list[Bound]:
        """Return what copies the lines of images [channels,batch,*size] to their places under windows."""
        first = max(0, -(self.front // self.apart))
        last = min(self.size[0], (self._reach - 1 - self.front) // self.apart + 1)
        if last <= first:
            return [partial(under.fill, 0)]
        at = self.front + first * self.apart
        place = lines[:, :, at : at + (last - first - 1) * self.apart + 1 : self.apart]
        channel, image, line, item = lines.strides
        strides = (channel, image, line * self.step, line * self.dilation, item)
        windows: Array = np.ndarray(under.shape, lines.dtype, lines, 0, strides)
        return [partial(np.copyto, place, x[:, :, first:last]), partial(np.copyto, under, windows)]

    def _matrices(self, under: Array, bands: Array, rows: Array) -> tuple[Array, Array, Array]:
        """Return the three as matrices per channel: lines under windows, bands, and results."""
        n = len(under)
        width = self.kernel[0] * self.size[1]
        return under.reshape(n, -1, width), bands.reshape(n, width, -1), rows.reshape(n, -1, self.out[1])

    def _bands(self, bands: Array) -> list[Array]:
        """Return where each column of the kernel is in the matrices, as views [channels,lines,elements]."""
        channel, line, row, item = bands.strides
        found: list[Array] = []
        for (at, along), (down, right), count in self.diagonals:
            shape, step = (*bands.shape[:2], count), down * row + right * item
            found.append(
                np.ndarray(shape, bands.dtype, bands, at * row + along * item, (channel, line, step))
            )
        return found


def bands_of(batch: int, channels: int, win: Windows, widest: int = _WIDEST_BACK) -> Bands | None:
    """Return a depthwise convolution by bands; None where lines are longer or there is nothing to do."""
    if not _suits(batch, channels, win, widest):
        return None
    diagonals = tuple(
        _Diagonal((o * win.strides[1] + offset, o), (win.strides[1], 1), count)
        for o, offset, count in _columns(win)
    )
    return Bands(
        batch, channels, (win.size[0], win.size[1]), (win.out[0], win.out[1]), (win.kernel[0], win.kernel[1]),
        win.before[0], 1, win.strides[0], win.dilations[0], diagonals,
    )  # fmt: skip


def transposed_bands_of(batch: int, channels: int, win: Windows) -> Bands | None:
    """Return the transpose of a depthwise convolution by bands, by the kernel's lines in reverse, or None.

    ``win`` is the convolution's: its ``out`` is the size of what comes in here.
    """
    if not _suits(batch, channels, win, _WIDEST_BACK):
        return None
    diagonals = tuple(
        _Diagonal((o, o * win.strides[1] + offset), (1, win.strides[1]), count)
        for o, offset, count in _columns(win)
    )
    front = (win.kernel[0] - 1) * win.dilations[0] - win.before[0]
    return Bands(
        batch, channels, (win.out[0], win.out[1]), (win.size[0], win.size[1]), (win.kernel[0], win.kernel[1]),
        front, win.strides[0], 1, win.dilations[0], diagonals,
    )  # fmt: skip


def _suits(batch: int, channels: int, win: Windows, widest: int) -> bool:
    """Whether there are images with lines of up to ``widest`` elements."""
    if len(win.size) != 2 or not all((batch, channels, *win.size, *win.out)):
        return False
    return max(win.size[1], win.out[1]) <= widest


def _columns(win: Windows) -> list[tuple[int, int, int]]:
    """Return, per column of the kernel, the first result that it reaches, its distance, and how many."""
    found = []
    for column in range(win.kernel[1]):
        offset = column * win.dilations[1] - win.before[1]
        first = max(0, -(offset // win.strides[1]))
        last = min(win.out[1], (win.size[1] - 1 - offset) // win.strides[1] + 1)
        # A column that meets padding alone has an empty diagonal.
        found.append((first, offset, last - first) if last > first else (0, 0, 0))
    return found


def _in_order(steps: list[Bound]) -> Bound:
    """Return the run of all steps."""

    def run() -> None:
        for step in steps:
            step()

    return run
