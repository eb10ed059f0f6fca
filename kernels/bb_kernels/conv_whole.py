"""Convolution by windows that are the whole image: one product over all channels and elements.

A gradient has it as the convolution of X with dY, batch and channels exchanged, of a pointwise convolution;
both are views then, whose channels are brought together a few at a time, in runs of whole planes.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from .spec import Array, Bound, Dtype, TensorSpec

#: Bytes of the planes that are brought together at a time.
_CHUNK_BYTES = 256 << 10


class Whole(NamedTuple):
    """out[n,m] = bias[m] + Σ x[n,c,e] · w[m,c,e] over channels c and the elements e of a plane."""

    batch: int
    channels: int
    maps: int
    area: int

    @property
    def _chunk(self) -> int:
        """Return how many channels are brought together at a time."""
        plane = 4 * self.area * (self.batch + self.maps)
        return max(1, min(self.channels, _CHUNK_BYTES // plane))

    def scratch(self, dtype: Dtype) -> tuple[TensorSpec, ...]:
        """Return the scratch for ``bind``: planes of images and of weights, and a share of the results."""
        depth = self._chunk * self.area
        sizes = (self.batch * depth, self.maps * depth, self.batch * self.maps)
        return tuple(TensorSpec(dtype, (size,)) for size in sizes)

    def bind(self, x: Array, w: Array, bias: Array | None, out: Array, scratch: tuple[Array, ...]) -> Bound:
        """Return a run over these arrays: x and w of any strides, a bias [maps] or None, contiguous out.

        The run allocates nothing.
        """
        result = out.reshape(self.batch, self.maps)
        share = scratch[2].reshape(result.shape)
        steps: list[Bound] = []
        if x.flags.c_contiguous and w.flags.c_contiguous:
            steps.append(partial(x.reshape(self.batch, -1).dot, w.reshape(self.maps, -1).T, result))
        else:
            for first in range(0, self.channels, self._chunk):
                part = slice(first, min(first + self._chunk, self.channels))
                images, weights = x[:, part], w[:, part]
                left = scratch[0][: images.size].reshape(images.shape)
                right = scratch[1][: weights.size].reshape(weights.shape)
                steps += [partial(np.copyto, left, images), partial(np.copyto, right, weights)]
                product = share if first else result
                steps.append(
                    partial(left.reshape(self.batch, -1).dot, right.reshape(self.maps, -1).T, product)
                )
                if first:
                    steps.append(partial(np.add, result, share, result))
        if bias is not None:
            steps.append(partial(np.add, result, bias.reshape(1, -1), result))

        def run() -> None:
            for step in steps:
                step()

        return run
