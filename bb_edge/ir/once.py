"""What many nodes of one process have in common, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Kept", "Once", "each_time"]

T = TypeVar("T")


class Once(Protocol):
    """Returns what `make()` returns, or has returned before under the same key.

    Whatever it returns may be shared, so nobody changes it; the key tells all that it depends on.
    """

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T: ...


def each_time(key: Hashable, make: Callable[[], T]) -> T:
    """Makes it anew: a node that is alone keeps nothing that only its start needs."""
    return make()


class Kept:
    """Makes a thing once per key, and keeps it."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        made = self._made
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found
