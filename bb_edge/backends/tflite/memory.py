"""The memory of an interpreter's inputs and results as arrays that stay.

An interpreter copies arrays in and out by calls that each cost as much as a product of a small model. Its
`tensor()` gives its memory, and no run is allowed while such an array is there, because a graph whose shapes
follow from data may move its memory. Those that `verify` takes have none: what an interpreter has allocated
stays where it is. The first runs are looked at all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Place", "are_there", "places_of"]


class Place(NamedTuple):
    """A tensor's memory, and the shape and dtype that arrays for it have."""

    memory: Array
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Owner:
    """What an array of an interpreter's memory keeps: the interpreter, which is not freed before it."""

    def __init__(self, interface: object, interpreter: object) -> None:
        self.__array_interface__ = interface
        self._interpreter = interpreter


def places_of(interpreter: Any, indexes: Sequence[int]) -> tuple[Place | None, ...]:
    """Returns the places of these tensors; None for one that the interpreter gives as a number, 0-D.

    Raises what the interpreter raises for a tensor without memory.
    """
    found: list[Place | None] = []
    for index in indexes:
        own = interpreter.tensor(index)()
        if isinstance(own, np.ndarray):
            memory = np.asarray(_Owner(own.__array_interface__, interpreter))
            found.append(Place(memory, own.shape, own.dtype))
        else:
            found.append(None)
        del own  # while it is there, the interpreter does not run
    return tuple(found)


def are_there(interpreter: Any, indexes: Sequence[int], places: Sequence[Place | None]) -> bool:
    """Whether the tensors still lie where they were."""
    return [*map(_address, places_of(interpreter, indexes))] == [*map(_address, places)]


def _address(place: Place | None) -> int:
    return 0 if place is None else int(place.memory.__array_interface__["data"][0])
