"""A bounded memory of samples: the newest, or a fair sample of all that ever came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.components.state import pack_array
from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from bb_edge.components.state import StateReader
    from bb_edge.ir.tensors import Array

__all__ = ["ReplayBuffer"]

_FIRST = 64
"""Samples that room is made for at first; it is doubled up to the bound."""


class ReplayBuffer:
    """Holds samples of at most `most_bytes`, labels included.

    `newest` drops the oldest where there is no room; `reservoir` keeps each sample that ever came with the
    same probability (Vitter's algorithm R, 1985). Which ones follows from `seed` and the number of the sample
    alone, so that a restored buffer goes on as it would have.
    """

    def __init__(self, most_bytes: int, keep: str, seed: int = 0, where: str = "") -> None:
        self._most_bytes = most_bytes
        self._newest = keep == "newest"
        self._seed = seed
        self._where = where
        self._x: Array | None = None
        self._y: Array | None = None
        self._count = 0
        self._first = 0  # the oldest, in a full buffer of the newest
        self.came = 0
        """Samples that were ever added."""

    def __len__(self) -> int:
        return self._count

    def add(self, x: Array, y: Array | None) -> None:
        """Adds samples, [n, …], and labels. ComponentError where one alone is larger than the buffer."""
        for n in range(len(x)):
            place = self._place(x, y)
            if place >= 0:
                assert self._x is not None
                self._x[place] = x[n]
                if y is not None and self._y is not None:
                    self._y[place] = y[n]
            self.came += 1

    def take(self, chosen: Array) -> tuple[Array, Array | None]:
        """Returns copies of the samples at these indices; of the newest, 0 is the oldest."""
        assert self._x is not None
        places = (chosen + self._first) % self._count if self._newest else chosen
        return self._x.take(places, 0), None if self._y is None else self._y.take(places, 0)

    def _place(self, x: Array, y: Array | None) -> int:
        """Where the next sample goes; -1 for one that is not kept."""
        room = self.room(x, y)
        if self._count < room:
            self._grow(x, y, room)
            self._count += 1
            return self._count - 1
        if self._newest:
            place = self._first
            self._first = (place + 1) % room
            return place
        place = _drawn(self._seed, self.came) % (self.came + 1)
        return place if place < room else -1

    def room(self, x: Array, y: Array | None) -> int:
        """Returns how many samples like the first of these fit."""
        size = x[:1].nbytes + (0 if y is None else y[:1].nbytes)
        if size > self._most_bytes:
            raise ComponentError(
                f"one sample takes {size} bytes, the buffer {self._most_bytes}",
                self._where,
                "raise the bound on its bytes",
            )
        return self._most_bytes // max(size, 1)

    def _grow(self, x: Array, y: Array | None, room: int) -> None:
        held = 0 if self._x is None else len(self._x)
        if self._count < held:
            return
        size = min(room, max(_FIRST, 2 * held))
        self._x = _larger(self._x, x, size)
        self._y = None if y is None else _larger(self._y, y, size)

    # --- state ----------------------------------------------------------------------------------------

    def save(self) -> dict[str, object]:
        """Returns all of it as plain values, for a state."""
        x, y = self.take(np.arange(self._count)) if self._count else (None, None)
        return {"x": pack_array(x), "y": pack_array(y), "came": self.came}

    def load(
        self, saved: Mapping[object, object], reader: StateReader, x_like: Array, y_like: Array | None
    ) -> None:
        """Takes what `save` gave; a smaller buffer takes the last of it.

        ComponentStateError for samples that are not of the kinds and shapes of `x_like` and `y_like`.
        """
        came, packed = saved.get("came"), saved.get("x")
        if not isinstance(came, int) or came < 0:
            raise reader.error("it does not say how many samples came")
        self._x = self._y = None
        self._count = self._first = 0
        if packed is not None:
            x = reader.decode(packed)
            y = None if saved.get("y") is None else reader.decode(saved["y"])
            if x.ndim == 0 or len(x) > came or (y is not None and (y.ndim == 0 or len(y) != len(x))):
                raise reader.error("its samples and labels do not belong together")
            if _kind(x) != _kind(x_like) or _kind(y) != _kind(y_like):
                raise reader.error(f"its samples are {_kind(x)}, here they are {_kind(x_like)}")
            kept = slice(max(0, len(x) - self.room(x, y)), None)
            self.came = 0
            self.add(x[kept], None if y is None else y[kept])
        self.came = came


def _larger(old: Array | None, like: Array, size: int) -> Array:
    fresh = np.empty((size, *like.shape[1:]), like.dtype)
    if old is not None:
        fresh[: len(old)] = old
    return fresh


def _kind(array: Array | None) -> str:
    return "none" if array is None else f"{array.dtype}{list(array.shape[1:])}"


_MASK = 2**64 - 1


def _drawn(seed: int, number: int) -> int:
    """A 64-bit number for each seed and number (splitmix64: Steele, Lea and Flood, 2014)."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
