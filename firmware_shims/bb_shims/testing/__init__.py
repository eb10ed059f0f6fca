"""A board without hardware, for simulations and tests. A node on a device never imports this package.

>>> fake = FakeBoard(seed=7)
>>> fake.board.clock.monotonic_ns()
1000000000

:class:`FakeBoard` holds one fake per shim and hands out the :class:`bb_shims.Board` that a node takes.
"""

from __future__ import annotations

from .fake_board import (
    FakeBoard,
    FakeClock,
    FakeLoad,
    FakeMemory,
    FakePower,
    FakeSupply,
    FakeThermal,
    FakeWatchdog,
    SeededEntropy,
)
from .fake_disk import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

__all__ = [
    # the board
    "FakeBoard",
    "FakeClock",
    "SeededEntropy",
    "FakeMemory",
    "FakeThermal",
    "FakePower",
    "FakeSupply",
    "FakeLoad",
    "FakeWatchdog",
    # its disk
    "FakeDisk",
    "Fault",
    "FaultKind",
    "CrashMode",
    "PowerCut",
]
