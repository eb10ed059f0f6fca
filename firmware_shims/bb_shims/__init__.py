"""The board of a node: clock, entropy, memory, storage, watchdog, thermal and power.

>>> board = detect()
>>> board.clock.monotonic_ns() <= board.clock.monotonic_ns()
True

A node receives these functions and never asks the machine by itself. :func:`detect` refuses a board that
lacks what a node needs. The fakes for simulations and tests are in :mod:`bb_shims.testing`; this package
never imports them. It imports nothing beyond the standard library.
"""

from __future__ import annotations

from .board import Board, detect
from .clock import WALL_FLOOR_NS, Clock, LinuxClock
from .conditions import CONDITIONS, COOL_CELSIUS, IDLE_LOAD, Conditions
from .disk import Disk, LinuxDisk, folder_in_use
from .entropy import MAX_ENTROPY_BYTES, Entropy, LinuxEntropy
from .errors import (
    BoardError,
    ClockError,
    ConditionError,
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
from .load import LinuxLoad, Load
from .memory import LinuxMemory, Memory, MemoryInfo, require_memory
from .power import GenericPower, JetsonPower, Power, PowerStatus, RaspberryPiPower
from .single_file import write_whole
from .storage import MAX_NAME_BYTES, AtomicStorage, Storage, open_folder
from .supply import LinuxSupply, Supply
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
    "Supply",
    "Load",
    "Conditions",
    "Watchdog",
    # Linux boards
    "LinuxClock",
    "LinuxEntropy",
    "LinuxMemory",
    "LinuxThermal",
    "GenericPower",
    "RaspberryPiPower",
    "JetsonPower",
    "LinuxSupply",
    "LinuxLoad",
    "SystemdNotifier",
    "HardwareWatchdog",
    "AtomicStorage",
    "open_folder",
    "folder_in_use",
    "write_whole",
    "Disk",
    "LinuxDisk",
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
    "ConditionError",
    "WatchdogError",
    # limits
    "CONDITIONS",
    "COOL_CELSIUS",
    "IDLE_LOAD",
    "MAX_ENTROPY_BYTES",
    "MAX_NAME_BYTES",
    "WALL_FLOOR_NS",
]
