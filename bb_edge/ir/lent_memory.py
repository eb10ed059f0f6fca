"""Memory that is handed out as views, and used again once no view of it is left.

A bytearray cannot change its size while anybody looks at it, through however many views of views: an array of
NumPy on it, and every slice of that. So its size is what tells whether it is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["LentArrays", "is_free", "resize", "taken"]

KEPT_FROM = 128 * 1024
"""Bytes of an array from which on its memory is kept: glibc asks the system for blocks of that size."""


def resize(memory: bytearray, size: int) -> bool:
    """Gives memory of 2 bytes or more another size, or the same one. False where somebody still looks at it.

    Nothing has changed then. What is in it afterwards says nothing.
    """
    try:
        if size < len(memory):
            del memory[size:]
        elif size > len(memory):
            memory.extend(bytes(size - len(memory)))
        else:
            del memory[-1:]
            memory.append(0)
    except BufferError:
        return False
    return True


def is_free(memory: bytearray) -> bool:
    """Whether nobody looks at memory of 2 bytes or more; what is in it afterwards says nothing."""
    return resize(memory, len(memory))


def taken(size: int) -> bytearray:
    """Returns memory that was written to: zeros alone are a promise of the system."""
    return bytearray(b"\1") * size


class LentArrays:
    """1-D f32 arrays of one size, whose memory is used again once nobody looks at them any more.

    The memory of `kept` of them is kept. Arrays of less than `KEPT_FROM` bytes are made anew each time, which
    costs less.
    """

    __slots__ = ("_kept", "_memory", "_size")

    def __init__(self, size: int, kept: int) -> None:
        self._size = size
        self._kept = kept
        self._memory: list[bytearray] = []

    def reserve(self) -> None:
        """Takes all of the memory now, and writes to it: zeros alone are a promise of the system."""
        while 4 * self._size >= KEPT_FROM and len(self._memory) < self._kept:
            self._memory.append(bytearray(4 * self._size))
            np.frombuffer(self._memory[-1], np.float32).fill(0.0)

    def release(self) -> None:
        """Gives the memory back; `take` takes it again. Arrays that somebody has stay what they are."""
        self._memory.clear()

    def take(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns an array that may be written to; what is in it says nothing."""
        size = 4 * self._size
        if size < KEPT_FROM:
            return np.empty(self._size, np.float32)
        free = next((memory for memory in self._memory if resize(memory, size)), None)
        if free is None:
            free = bytearray(size)
            if len(self._memory) < self._kept:
                self._memory.append(free)
        return np.frombuffer(free, np.float32)
