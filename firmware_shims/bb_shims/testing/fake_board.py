"""A board for simulations: time stands until it is advanced, chance is seeded, disks fail on purpose."""

from __future__ import annotations

import os
import random

from bb_shims.board import Board
from bb_shims.clock import WALL_FLOOR_NS
from bb_shims.entropy import check_count
from bb_shims.errors import ClockError, StorageError
from bb_shims.memory import MemoryInfo
from bb_shims.power import PowerStatus
from bb_shims.storage import FOLDER_IN_USE, AtomicStorage

from .fake_disk import CrashMode, FakeDisk


class FakeClock:
    """Two clocks that stand until ``advance``; the wall clock can also be set."""

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, monotonic_ns: int = 1_000_000_000, wall_ns: int = WALL_FLOOR_NS) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        """Return the moment that ``advance`` has reached."""
        return self._monotonic_ns

    def wall_ns(self) -> int:
        """Return the moment that ``advance`` and ``set_wall`` have reached."""
        return self._wall_ns

    def wall_is_set(self) -> bool:
        """Compare the wall clock with ``WALL_FLOOR_NS``."""
        return self._wall_ns >= WALL_FLOOR_NS

    def advance(self, ns: int) -> None:
        """Let ``ns`` ≥ 0 nanoseconds pass on both clocks. Raises :class:`ClockError` below 0."""
        if ns < 0:
            raise ClockError(f"time cannot be advanced by {ns} ns: a monotonic clock never goes back")
        self._monotonic_ns += ns
        self._wall_ns += ns

    def set_wall(self, ns: int) -> None:
        """Set the wall clock, as a time server would."""
        self._wall_ns = ns


class SeededEntropy:
    """A generator that gives the same bytes for the same seed."""

    __slots__ = ("_random",)

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int) -> bytes:
        """Return the next ``n`` bytes. Raises :class:`EntropyError`."""
        check_count(n)
        return self._random.randbytes(n)

    def u64(self) -> int:
        """Return the next eight bytes as an integer."""
        return int.from_bytes(self.bytes(8), "little")


class FakeMemory:
    """Memory accounts that a test sets."""

    __slots__ = ("_info",)

    def __init__(self, limit_bytes: int = 512 << 20) -> None:
        self._info = MemoryInfo(limit_bytes, limit_bytes // 2, "cgroup2", limit_bytes // 4, limit_bytes // 4)

    def info(self) -> MemoryInfo:
        """Return what was set."""
        return self._info

    def set(self, info: MemoryInfo) -> None:
        """Replace what ``info`` returns."""
        self._info = info


class FakeThermal:
    """A temperature that a test sets."""

    __slots__ = ("reading",)

    def __init__(self, reading: float | None = 40.0) -> None:
        self.reading = reading

    def celsius(self) -> float | None:
        """Return ``reading``."""
        return self.reading


class FakePower:
    """A power status that a test sets."""

    __slots__ = ("reading",)

    def __init__(self) -> None:
        self.reading = PowerStatus(throttled=False, undervoltage=False, mode="fake")

    def status(self) -> PowerStatus:
        """Return ``reading``."""
        return self.reading


class FakeSupply:
    """A power supply that a test switches."""

    __slots__ = ("reading",)

    def __init__(self, reading: bool | None = True) -> None:
        self.reading = reading

    def on_mains(self) -> bool | None:
        """Return ``reading``."""
        return self.reading


class FakeLoad:
    """A load that a test sets."""

    __slots__ = ("reading",)

    def __init__(self, reading: float | None = 0.1) -> None:
        self.reading = reading

    def per_core(self) -> float | None:
        """Return ``reading``."""
        return self.reading


class FakeWatchdog:
    """A watchdog that counts, and knows by its clock whether it would have acted."""

    __slots__ = ("_bitten", "_clock", "_last_ns", "_timeout_ns", "closed", "pets")

    def __init__(self, clock: FakeClock, timeout_ns: int) -> None:
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._last_ns = clock.monotonic_ns()
        self._bitten = False
        self.closed = False
        self.pets = 0

    @property
    def timeout_ns(self) -> int:
        """Return the timeout that the test chose."""
        return self._timeout_ns

    @property
    def expired(self) -> bool:
        """Whether it was ever left alone for longer than its timeout, until it was closed."""
        late = not self.closed and self._clock.monotonic_ns() - self._last_ns > self._timeout_ns
        self._bitten = self._bitten or late
        return self._bitten

    def pet(self) -> None:
        """Count, and begin the timeout anew."""
        self._bitten = self.expired
        self._last_ns = self._clock.monotonic_ns()
        self.pets += 1

    def close(self) -> None:
        """Stop watching."""
        self._bitten = self.expired
        self.closed = True


class FakeBoard:
    """A :class:`Board` made of fakes (``board.board``), with handles to steer them.

    >>> fake = FakeBoard(seed=7)
    >>> fake.clock.advance(5_000_000_000)
    >>> storage = fake.storage("state")
    >>> storage.append("journal", b"record", sync=False)
    >>> fake.crash()
    >>> fake.storage("state").list()
    []
    """

    __slots__ = (
        "_disks",
        "board",
        "clock",
        "entropy",
        "load",
        "memory",
        "power",
        "supply",
        "thermal",
        "watchdog",
    )

    def __init__(self, seed: int = 0, watchdog_timeout_ns: int = 30_000_000_000) -> None:
        self.clock = FakeClock()
        self.entropy = SeededEntropy(seed)
        self.memory = FakeMemory()
        self.thermal = FakeThermal()
        self.power = FakePower()
        self.supply = FakeSupply()
        self.load = FakeLoad()
        self.watchdog = FakeWatchdog(self.clock, watchdog_timeout_ns)
        self._disks: dict[str, FakeDisk] = {}
        self.board = Board(
            name="fake",
            model="fake board",
            clock=self.clock,
            entropy=self.entropy,
            memory=self.memory,
            thermal=self.thermal,
            power=self.power,
            supply=self.supply,
            load=self.load,
            storage=self.storage,
            watchdog=self.watchdog,
        )

    def disk(self, folder: str | os.PathLike[str]) -> FakeDisk:
        """Return the disk behind ``folder``, made at the first call; arm its faults with ``inject``.

        Each folder is a disk of its own, in memory; ``mount`` puts another in its place.
        """
        return self._disks.setdefault(os.fspath(folder), FakeDisk())

    def mount(self, folder: str | os.PathLike[str], disk: FakeDisk) -> None:
        """Use ``disk`` for ``folder``.

        It may hold files already, be mirrored to a real folder, or be small.
        """
        self._disks[os.fspath(folder)] = disk

    def storage(self, folder: str | os.PathLike[str]) -> AtomicStorage:
        """Open the folder. Raises :class:`StorageError` where it is open already, as a real board would."""
        try:
            session = self.disk(folder).open()
        except OSError as error:
            raise StorageError(os.fspath(folder), "open", error, FOLDER_IN_USE) from error
        try:
            return AtomicStorage(session)
        except StorageError:
            session.close()
            raise

    def crash(self, mode: CrashMode = CrashMode.LOSE, seed: int = 0) -> None:
        """Cut the power and switch it on again: open storages are dead, disks keep what ``mode`` says.

        The clock stands.
        """
        for disk in self._disks.values():
            disk.crash(mode, seed)
