"""A node's generators of random numbers, which a node that rests need not hold."""

from __future__ import annotations

import random
import struct
from typing import Any

WORDS = 1 << 12
"""Numbers of 32 bits that are drawn again, at most, after a rest: 20 µs."""


class Drawing:
    """The numbers of `random.Random(seed)`: made with the first one that is asked for.

    A generator takes 2.5 KB, and most clients draw nothing after their install. `rest` gives it back where it
    has not gone far; the next number is the same as without a rest.
    """

    __slots__ = ("_drawn", "_generator", "_seed")

    def __init__(self, seed: int | bytes) -> None:
        self._seed = seed
        self._generator: random.Random | None = None
        self._drawn = 0  # in words of 32 bits

    def getrandbits(self, bits: int) -> int:
        """The next number of so many bits, 1 or more."""
        number = self._made().getrandbits(bits)
        self._drawn += -(-bits // 32)
        return number

    def ahead(self, bits: int) -> int:
        """The number that `getrandbits` would give, without drawing it."""
        copy = random.Random()
        copy.setstate(self._made().getstate())
        return copy.getrandbits(bits)

    def rest(self) -> None:
        """Gives memory back until the next number."""
        if self._drawn <= WORDS:
            self._generator = None

    def _made(self) -> random.Random:
        found = self._generator
        if found is None:
            found = self._generator = random.Random(self._seed)
            if self._drawn:
                found.getrandbits(32 * self._drawn)
        return found

    # --- snapshot -------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        """The generator's state, as plain values."""
        version, words, gauss = self._made().getstate()
        return [version, struct.pack(f">{len(words)}I", *words), gauss]

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave."""
        version, words, gauss = plain
        self._made().setstate((version, struct.unpack(f">{len(words) // 4}I", words), gauss))
        self._drawn = WORDS + 1  # whence it came is not known: it stays
