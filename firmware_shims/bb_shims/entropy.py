"""Randomness for names, epochs and seeds. The engine takes none by itself; its caller hands it over."""

from __future__ import annotations

import os
from typing import Final, Protocol

from .errors import EntropyError

MAX_ENTROPY_BYTES: Final = 1 << 20
"""The most bytes per call. Keys and seeds have tens of bytes; a request for more is a mistake."""


class Entropy(Protocol):
    """A source of random bytes."""

    def bytes(self, n: int) -> bytes:
        """Return ``n`` random bytes, 0 ≤ n ≤ ``MAX_ENTROPY_BYTES``. Raises :class:`EntropyError`."""
        ...

    def u64(self) -> int:
        """Return a random integer in [0, 2**64)."""
        ...


def check_count(n: int) -> None:
    """Raise :class:`EntropyError` unless a call may ask for ``n`` bytes."""
    if not 0 <= n <= MAX_ENTROPY_BYTES:
        raise EntropyError(f"expected 0 to {MAX_ENTROPY_BYTES} random bytes per call, got {n}")


class LinuxEntropy:
    """The kernel's generator.

    Early in a board's first boot a call waits until the kernel has gathered enough.
    """

    __slots__ = ()

    def bytes(self, n: int) -> bytes:
        """Call getrandom(2). Raises :class:`EntropyError`."""
        check_count(n)
        try:
            return os.urandom(n)
        except (OSError, NotImplementedError) as error:
            raise EntropyError(f"the kernel provides no random bytes: {error}") from error

    def u64(self) -> int:
        """Return eight bytes of the kernel's as an integer. Raises :class:`EntropyError`."""
        return int.from_bytes(self.bytes(8), "little")
