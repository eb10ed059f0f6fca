"""The block of memory that plans share.

A run takes nothing from the run before and leaves nothing for the next one. So plans that never run at the
same time can use the same bytes: those of one program for several shapes, and those of all programs of a
node's backend, because an engine runs one op at a time. A shared arena has a lock, for components that run a
program on a thread of their own.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.backends.plan_memory import ALIGNMENT
from bb_edge.roles.errors import BackendRunError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Arena"]


class Arena:
    """One block of bytes, as large as the largest plan that was announced or made. Serves one run at a time.

    A plan that is larger than announced gets a new block, which later plans use too; earlier plans keep the
    old one. `lock` must be held during a run; it is None if the arena belongs to one program.
    """

    __slots__ = ("_block", "_reserved", "lock")

    def __init__(self, shared: bool = False) -> None:
        self.lock = allocate_lock() if shared else None
        self._reserved = 0
        self._block: Array = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """The size of the block in bytes; 0 before the first plan."""
        return int(self._block.nbytes)

    @property
    def reserved(self) -> int:
        """The size of the largest plan that was announced or made, in bytes."""
        return self._reserved

    def reserve(self, nbytes: int) -> None:
        """Announces a plan of this size; allocates nothing."""
        self._reserved = max(self._reserved, nbytes)

    def take(self, nbytes: int) -> Array:
        """An array of `nbytes` uint8 that starts at a multiple of `ALIGNMENT`.

        Raises BackendRunError where there is no such memory.
        """
        self.reserve(nbytes)
        if self._block.nbytes < nbytes:
            try:
                raw = np.empty(self._reserved + ALIGNMENT, np.uint8)
            except (MemoryError, ValueError) as error:
                raise BackendRunError(
                    f"an arena of {self._reserved} bytes cannot be allocated", "arena", "feed smaller inputs"
                ) from error
            start = -raw.ctypes.data % ALIGNMENT
            self._block = raw[start : start + self._reserved]
        return self._block[:nbytes]
