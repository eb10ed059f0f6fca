"""The memory that plans lie in.

A run leaves nothing behind in it and takes nothing from the run before, so that plans which never run at the
same time may lie in the same bytes: those of one program for several shapes, and those of all programs of a
node's backend, since an engine runs one op at a time. A component that runs a program on a thread of its own
waits its turn: a shared arena has a lock.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.backends.plan_memory import ALIGNMENT

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Arena"]


class Arena:
    """One block, as large as the largest plan that was announced or asked for. Serves one run at a time.

    A plan larger than what was announced gets a new block, in which later plans lie too; those made before
    stay where they are. `lock` is held by whoever runs in it; None where it is one program's own.
    """

    __slots__ = ("_block", "_reserved", "lock")

    def __init__(self, shared: bool = False) -> None:
        self.lock = allocate_lock() if shared else None
        self._reserved = 0
        self._block: Array = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of the block that is there; 0 before the first plan."""
        return int(self._block.nbytes)

    @property
    def reserved(self) -> int:
        """Bytes of the largest plan announced or made."""
        return self._reserved

    def reserve(self, nbytes: int) -> None:
        """Announces a plan: nothing is allocated yet."""
        self._reserved = max(self._reserved, nbytes)

    def take(self, nbytes: int) -> Array:
        """`nbytes` of uint8, aligned to `ALIGNMENT`."""
        self.reserve(nbytes)
        if self._block.nbytes < nbytes:
            raw = np.empty(self._reserved + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            self._block = raw[start : start + self._reserved]
        return self._block[:nbytes]
