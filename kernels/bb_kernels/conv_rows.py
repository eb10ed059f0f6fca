"""Convolution of batches of small images: channels last, one matrix product for many images.

One product per image is narrow where images are small, and gathering windows of channels-first images copies
runs as short as a window's line. Here a chunk of the batch is turned channels last and padded, so that a line
of a window is one run; a row of the columns matrix is the window of one result, and one product makes the
results of all images of the chunk. Turning them back happens together with adding the bias. Chunks are as
large as columns may be that stay in a second-level cache.

The same serves what gradients are made of: the convolution of X with dY, batch and channels exchanged, which
gives a weight's gradient, and transposed convolutions (``conv_transpose``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from .spec import Array, Bound, Dtype, TensorSpec

#: Bytes of the columns of one product: with the rows that they give they stay in the second-level cache.
_CHUNK_BYTES = 256 << 10
#: Rows of one product at least, if need be of few channels at a time: fewer make a slow product.
_CHUNK_ROWS = 32
#: Elements of a line from which on images are turned line by line: else each pixel's channels are fetched
#: from as many lines of the cache, which at distances of powers of two displace each other.
_LONG_LINE = 32


class Correlation(NamedTuple):
    """out[n,m,o…] = bias[m] + Σ x[n,c,o·strides + t·dilations − before] · w[t…,c,m] over c and t.

    x[batch,channels,*size], which is 0 outside, w[*kernel,channels,maps] and out[batch,maps,*out] are views
    of any strides. A negative ``before`` begins inside of x.
    """

    batch: int
    channels: int
    maps: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def chunk(self) -> tuple[int, int]:
        """Return how many images and how many of their channels one product takes."""
        area, taps = prod(self.out), prod(self.kernel)
        images = _CHUNK_BYTES // (4 * taps * self.channels * area)
        if images >= self.batch or images * area >= _CHUNK_ROWS or area >= _CHUNK_ROWS:
            return max(1, min(images, self.batch)), self.channels
        images = min(self.batch, -(-_CHUNK_ROWS // area))
        parts = -(-self.channels // max(1, _CHUNK_BYTES // (4 * taps * images * area)))
        return images, -(-self.channels // parts)

    @property
    def _reach(self) -> tuple[int, ...]:
        """Return the size of a padded image, as far as windows reach."""
        return tuple(
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        )

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of padded images, columns, rows of results, a share of them, and weights."""
        images, channels = self.chunk
        area, depth = prod(self.out), prod(self.kernel) * channels
        split = channels < self.channels
        return (
            (images, *self._reach, channels),
            (images * area, depth),
            ((self.batch if split else images) * area, self.maps),
            (images * area if split else 0, self.maps),
            (depth, self.maps),
        )

    def bind(self, x: Array, w: Array, bias: Array | None, out: Array, scratch: tuple[Array, ...]) -> Bound:
        """Return a run over these arrays, with a bias [maps] or None, and the scratch of ``scratch_of``.

        The run allocates nothing.
        """
        rank, area, (chunk, width) = len(self.size), prod(self.out), self.chunk
        images, fills = self._inside(x)
        split, padded = width < self.channels, images.shape[1:-1] != self._reach
        rows = [room[: len(room) // self.maps * self.maps].reshape(-1, self.maps) for room in scratch[2:4]]
        if bias is not None:
            bias = bias.reshape(-1, *(1,) * rank)
        first = (0, rank + 1, *range(1, rank + 1))  # from channels last
        views: dict[tuple[int, int], tuple[Array, Bound, Array]] = {}
        steps: list[Bound] = []
        filled = 0
        for channel in range(0, self.channels, width):
            part = min(width, self.channels - channel)
            depth = prod(self.kernel) * part
            matrix = scratch[4][: depth * self.maps].reshape(depth, self.maps)
            weights = w[..., channel : channel + part, :]
            steps.append(partial(np.copyto, matrix.reshape(weights.shape), weights))
            if padded and filled != part:
                # The padding stays as it is for all chunks of as many channels.
                steps.append(partial(scratch[0].fill, 0))
                filled = part
            for begin in range(0, self.batch, chunk):
                n = min(chunk, self.batch - begin)
                if (n, part) not in views:
                    views[n, part] = self._gathered(scratch, n, part, fills)
                place, gather, columns = views[n, part]
                source = images[begin : begin + n, ..., channel : channel + part]
                steps.append(self._turn_in(source, place))
                steps.append(gather)
                at = begin * area if split else 0
                found = rows[0][at : at + n * area]
                product = rows[1][: n * area] if channel else found
                steps.append(partial(columns.dot, matrix, product))
                if channel:
                    steps.append(partial(np.add, found, product, found))
                if channel + part == self.channels:
                    turned = found.reshape(n, *self.out, self.maps).transpose(first)
                    result = out[begin : begin + n]
                    steps.append(
                        partial(np.copyto, result, turned)
                        if bias is None
                        else partial(np.add, turned, bias, result)
                    )

        def run() -> None:
            for step in steps:
                step()

        return run

    def _inside(self, x: Array) -> tuple[Array, tuple[slice, ...]]:
        """Return the images channels last, as far as windows see them, and their place in padded ones."""
        reads, fills = [], []
        for n, front, reach in zip(self.size, self.before, self._reach, strict=True):
            first = max(0, -front)
            last = max(first, min(n, reach - front))
            reads.append(slice(first, last))
            fills.append(slice(first + front, last + front))
        seen = (slice(None), *reads)
        return x.transpose(0, *range(2, x.ndim), 1)[seen], tuple(fills)

    def _gathered(
        self, scratch: tuple[Array, ...], n: int, channels: int, fills: tuple[slice, ...]
    ) -> tuple[Array, Bound, Array]:
        """Return the place for n images, the run that gathers windows, and the columns that it makes."""
        shape = (n, *self._reach, channels)
        padded = scratch[0][: prod(shape)].reshape(shape)
        front, *steps, item = padded.strides
        strides = (
            front,
            *(step * s for step, s in zip(steps, self.strides, strict=True)),
            *(step * d for step, d in zip(steps, self.dilations, strict=True)),
            item,
        )
        room = (n, *self.out, *self.kernel, channels)
        windows: Array = np.ndarray(room, padded.dtype, padded, 0, strides)
        columns = scratch[1][: prod(room)]
        gather = partial(np.copyto, columns.reshape(room), windows)
        place = (slice(None), *fills)
        return padded[place], gather, columns.reshape(-1, prod(self.kernel) * channels)

    def _turn_in(self, images: Array, place: Array) -> Bound:
        """Return the run that copies images, channels last, to their place."""
        if images.shape[-2] < _LONG_LINE:
            return partial(np.copyto, place, images)
        # A ufunc keeps the order of axes that it is given: line by line.
        return partial(np.positive, images.swapaxes(-1, -2), place.swapaxes(-1, -2))


def scratch_of(correlations: Sequence[Correlation], dtype: Dtype) -> tuple[TensorSpec, ...]:
    """Return the scratch that correlations take which run one after the other."""
    sizes = zip(*([prod(shape) for shape in each._shapes()] for each in correlations), strict=True)
    return tuple(TensorSpec(dtype, (max(several),)) for several in sizes)
