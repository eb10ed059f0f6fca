"""The board: clock, entropy, memory, storage, watchdog, thermal and power. Imports the standard library only.

>>> board = detect()
>>> board.clock.monotonic_ns() <= board.clock.monotonic_ns()
True

A node is handed these functions; nothing in it asks the machine by itself. :class:`FakeBoard` is the board of
simulations. A board that lacks a function which a node cannot do without is refused by :func:`detect`.
"""

from __future__ import annotations

from .board import Board, detect
from .clock import WALL_FLOOR_NS, Clock, LinuxClock
from .disk import Disk, LinuxDisk
from .entropy import MAX_ENTROPY_BYTES, Entropy, LinuxEntropy
from .errors import (
    BoardError,
    ClockError,
    EntropyError,
    MemoryInfoError,
    MemoryLimitError,
    MissingFileError,
    SensorError,
    ShimError,
    StorageError,
    StorageFullError,
    WatchdogError,
)
from .fake_board import FakeBoard, FakeClock, FakeMemory, FakePower, FakeThermal, FakeWatchdog, SeededEntropy
from .fake_disk import CrashMode, FakeDisk, Fault, FaultKind, PowerCut
from .memory import LinuxMemory, Memory, MemoryInfo, require_memory
from .power import GenericPower, JetsonPower, Power, PowerStatus, RaspberryPiPower
from .storage import MAX_NAME_BYTES, AtomicStorage, Storage, open_folder
from .thermal import LinuxThermal, Thermal
from .watchdog import HardwareWatchdog, SystemdNotifier, Watchdog

__all__ = [
    "Board",
    "detect",
    # what a board does
    "Clock",
    "Entropy",
    "Memory",
    "MemoryInfo",
    "require_memory",
    "Storage",
    "Thermal",
    "Power",
    "PowerStatus",
    "Watchdog",
    # Linux boards
    "LinuxClock",
    "LinuxEntropy",
    "LinuxMemory",
    "LinuxThermal",
    "GenericPower",
    "RaspberryPiPower",
    "JetsonPower",
    "SystemdNotifier",
    "HardwareWatchdog",
    "AtomicStorage",
    "open_folder",
    "Disk",
    "LinuxDisk",
    # simulations
    "FakeBoard",
    "FakeClock",
    "SeededEntropy",
    "FakeMemory",
    "FakeThermal",
    "FakePower",
    "FakeWatchdog",
    "FakeDisk",
    "Fault",
    "FaultKind",
    "CrashMode",
    "PowerCut",
    # errors
    "ShimError",
    "BoardError",
    "ClockError",
    "EntropyError",
    "MemoryInfoError",
    "MemoryLimitError",
    "StorageError",
    "StorageFullError",
    "MissingFileError",
    "SensorError",
    "WatchdogError",
    # limits
    "MAX_ENTROPY_BYTES",
    "MAX_NAME_BYTES",
    "WALL_FLOOR_NS",
]
