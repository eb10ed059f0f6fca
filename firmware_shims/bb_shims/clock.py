"""Two clocks: a clock that never jumps, for deadlines, and the calendar, which not every board knows."""

from __future__ import annotations

import time
from typing import Final, Protocol

from .errors import ClockError

WALL_FLOOR_NS: Final = 1_735_689_600 * 1_000_000_000
"""2025-01-01T00:00:00Z in nanoseconds since 1970.

This software is younger, so a wall clock that shows an earlier moment was never set.
"""


class Clock(Protocol):
    """Time in whole nanoseconds."""

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since some fixed moment of this boot; they never go back."""
        ...

    def wall_ns(self) -> int:
        """Return the nanoseconds since 1970-01-01T00:00:00Z; they jump when someone sets the clock."""
        ...

    def wall_is_set(self) -> bool:
        """Return False where the wall clock shows a moment before ``WALL_FLOOR_NS``.

        Boards without a battery start in 1970 or at their image's date. A stale but plausible date passes: a
        node must never order events by the wall clock.
        """
        ...


class LinuxClock:
    """The kernel's CLOCK_MONOTONIC and CLOCK_REALTIME."""

    __slots__ = ()

    def monotonic_ns(self) -> int:
        """Read CLOCK_MONOTONIC. Raises :class:`ClockError`."""
        try:
            return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        except OSError as error:
            raise ClockError(f"CLOCK_MONOTONIC cannot be read: {error}") from error

    def wall_ns(self) -> int:
        """Read CLOCK_REALTIME. Raises :class:`ClockError`."""
        try:
            return time.clock_gettime_ns(time.CLOCK_REALTIME)
        except OSError as error:
            raise ClockError(f"CLOCK_REALTIME cannot be read: {error}") from error

    def wall_is_set(self) -> bool:
        """Compare CLOCK_REALTIME with ``WALL_FLOOR_NS``. Raises :class:`ClockError`."""
        return self.wall_ns() >= WALL_FLOOR_NS
