"""`bb.FedAvg`: the weighted mean of contributions.

The running sum is f64, the result f32. An f64 sum is exact to 2⁻⁵³ whatever the order of
arrival, holds any number of the largest f32 values, costs one vector of 8 bytes per parameter, and needs no
second pass; a compensated f32 sum would take the same memory and three times the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.combiner import Combiner
from bb_edge.components.combining import CombiningAggregator
from bb_edge.components.update_norm import CHUNK
from bb_edge.ir.lent_memory import LentArrays

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["FedAvg", "WeightedMean", "sum_bytes"]


def sum_bytes(size: int) -> int:
    """Returns the bytes of a sum of contributions of `size` numbers, with those of its result."""
    return 8 * size + 8 * min(CHUNK, size) + 4 * size


class WeightedMean(Combiner):
    """Σ weight · values / Σ weight, summed as it comes.

    The mean of finite numbers lies between them, so it is finite, too.
    """

    always_finite: ClassVar[bool] = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._sum = np.zeros(size, np.float64)
        self._scratch = np.empty(min(CHUNK, size), np.float64)
        self._means = LentArrays(size, 1)

    def reserve(self) -> None:
        self._sum.fill(0.0)  # zeros alone are a promise of the system, which it may not be able to keep
        self._means.reserve()

    def add(self, values: Array, weight: float) -> None:
        if weight == 1.0:
            np.add(self._sum, values, out=self._sum)
            return
        if values.size <= CHUNK:
            self._scratch[:] = (
                values  # in two steps: a product that also converts goes through NumPy's buffers
            )
            self._scratch *= weight
            self._sum += self._scratch
            return
        for start in range(0, values.size, CHUNK):
            part = values[start : start + CHUNK]
            scaled = self._scratch[: part.size]
            scaled[:] = part
            np.multiply(scaled, weight, out=scaled)
            target = self._sum[start : start + CHUNK]
            np.add(target, scaled, out=target)

    def result(self, total: float) -> Array:
        mean = self._means.take()
        np.divide(self._sum, total, out=mean, casting="same_kind")
        return mean

    def clear(self) -> None:
        self._sum.fill(0.0)

    def save(self) -> list[Array]:
        return [self._sum]

    def restore(self, arrays: list[Array]) -> None:
        (running,) = arrays
        if running.dtype != np.float64 or running.shape != (self.size,):
            raise ValueError("its sum and its shape do not fit")
        self._sum = running


class FedAvg(CombiningAggregator):
    """The mean of what peers contribute, weighted by what each says of itself, its samples as a rule.

    What counts, and which settings decide it, is `CombiningAggregator`'s.
    """

    TYPE_NAME: ClassVar[str] = "bb.FedAvg"

    def combiner(self, size: int) -> Combiner:
        return WeightedMean(size)
