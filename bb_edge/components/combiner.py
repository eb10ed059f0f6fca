"""How contributions become one: what a rule of aggregation has to say (docs/how-to/components.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Combiner", "misfit_of"]


class Combiner(ABC):
    """How the contributions to one sum become one vector. There is one object per open sum.

    All vectors are 1-D; what is added was checked, and clipped where that is configured.
    """

    always_finite: ClassVar[bool] = False
    """Whether `result` is finite wherever all that was added is. The last result need not be kept until the
    next one is known to be good then, so that one memory does for both."""

    def __init__(self, size: int) -> None:
        """Begins with nothing, for contributions of `size` numbers."""
        self.size = size

    def reserve(self) -> None:  # noqa: B027
        """Takes the memory that its work will need, at the start of a node; the base takes none.

        What is zeroed lazily should be written to: memory that is promised may not be there later.
        """

    @abstractmethod
    def add(self, values: Array, weight: float) -> None:
        """Takes a contribution of floating point; `values` are not ours to keep or change: copy them."""

    @abstractmethod
    def result(self, total: float) -> Array:
        """Returns the combination, f32 [size]; `total` is the sum of all weights, above 0.

        It may overflow: what is not finite is dropped by the caller.
        """

    @abstractmethod
    def clear(self) -> None:
        """Begins again with nothing; memory may be kept."""

    @abstractmethod
    def save(self) -> list[Array]:
        """Returns what it holds."""

    @abstractmethod
    def restore(self, arrays: list[Array]) -> None:
        """Takes what `save` gave. ValueError where that does not fit."""


def misfit_of(given: object, size: int) -> tuple[str, str] | None:
    """Returns what a `result` is instead of f32 [size], and the remedy; None where it is that."""
    is_vector = isinstance(given, np.ndarray) and given.dtype == np.float32
    if isinstance(given, np.ndarray) and is_vector and given.shape == (size,):
        return None
    came, remedy = type(given).__name__, "return one vector, such as np.asarray(mean, np.float32)"
    if isinstance(given, np.ndarray):
        came = f"{given.dtype}{list(given.shape)}"
    if is_vector:
        remedy = "return one number for each of the contributions', in their order"
    return came, remedy
