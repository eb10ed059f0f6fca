"""Randomness for names, epochs and seeds. The engine takes none by itself: it is handed what it needs."""

from __future__ import annotations

import os
from typing import Final, Protocol

from .errors import EntropyError

MAX_ENTROPY_BYTES: Final = 1 << 20
"""The most bytes one call gives. Keys and seeds are tens of bytes; who asks for more has made a mistake."""


class Entropy(Protocol):
    """A source of random bytes."""

    def bytes(self, n: int) -> bytes:
        """``n`` random bytes, 0 ≤ n ≤ ``MAX_ENTROPY_BYTES``. Raises :class:`EntropyError`."""
        ...

    def u64(self) -> int:
        """A random integer in [0, 2**64)."""
        ...


def check_count(n: int) -> None:
    """Raise :class:`EntropyError` unless ``n`` bytes may be asked for in one call."""
    if not 0 <= n <= MAX_ENTROPY_BYTES:
        raise EntropyError(
            f"{n} random bytes asked for: between 0 and {MAX_ENTROPY_BYTES} can be had in one call"
        )


class LinuxEntropy:
    """The kernel's generator.

    Early in a board's first boot a call waits until the kernel has gathered enough.
    """

    __slots__ = ()

    def bytes(self, n: int) -> bytes:
        check_count(n)
        try:
            return os.urandom(n)
        except (OSError, NotImplementedError) as error:
            raise EntropyError(f"the kernel gives no random bytes: {error}") from error

    def u64(self) -> int:
        return int.from_bytes(self.bytes(8), "little")
