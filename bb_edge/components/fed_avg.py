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

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["FedAvg", "WeightedMean"]


class WeightedMean(Combiner):
    """Σ weight · values / Σ weight, summed as it comes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._sum = np.zeros(size, np.float64)
        self._scratch = np.empty(min(CHUNK, size), np.float64)

    def add(self, values: Array, weight: float) -> None:
        if weight == 1.0:
            np.add(self._sum, values, out=self._sum)
            return
        for start in range(0, values.size, CHUNK):
            part = values[start : start + CHUNK]
            scaled = self._scratch[: part.size]
            np.multiply(part, weight, out=scaled, dtype=np.float64)
            target = self._sum[start : start + CHUNK]
            np.add(target, scaled, out=target)

    def result(self, total: float) -> Array:
        mean = np.empty(self.size, np.float32)
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
