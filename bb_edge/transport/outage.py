"""What is said of a broker that is away: a few lines, then ever fewer with a count, and one at the end.

A node dials every 30 seconds for as long as it takes. A line for each would be 2,880 a day at each device, on
cards that wear out, and none of them says more than the one before.
"""

from __future__ import annotations

from bb_edge.transport.dialing import STABLE_S

AT_ONCE = 5
"""Tries that are told one by one: those of the first seconds, in which most brokers are back."""
FIRST_S, MOST_S = 60.0, 3600.0
"""Seconds from the last of them to the next line, doubling up to the longest."""
MOST_REASONS = 8
"""Reasons that are told apart; each is told at once when it comes for the first time."""


class Outage:
    """The tries of one outage. All times are monotonic seconds."""

    __slots__ = ("_began_s", "_connects", "_next_s", "_reasons", "_tries", "_untold", "_wait_s")

    def __init__(self) -> None:
        self._end()

    def _end(self) -> None:
        self._began_s = 0.0
        self._tries = self._untold = self._connects = 0
        self._reasons: set[str] = set()
        self._wait_s = FIRST_S
        self._next_s = 0.0

    def tried(self, now_s: float) -> None:
        """A try has failed that is told elsewhere."""
        if not self._tries:
            self._began_s = now_s
        self._tries += 1

    def line(self, reason: str, now_s: float) -> str | None:
        """A try has failed: what to say of it, `reason` with what was not told since; None for nothing."""
        self.tried(now_s)
        new = reason not in self._reasons and len(self._reasons) < MOST_REASONS
        if new:
            self._reasons.add(reason)
        if self._tries <= AT_ONCE or new:
            self._next_s = max(self._next_s, now_s + self._wait_s)
            return reason
        if now_s < self._next_s:
            self._untold += 1
            return None
        self._wait_s = min(2 * self._wait_s, MOST_S)
        self._next_s = now_s + self._wait_s
        untold, self._untold = self._untold, 0
        if not untold:
            return reason
        tries = f"{self._tries:,} tries in {duration(now_s - self._began_s)}"
        return f"{reason} ({tries}, {untold:,} of them without a line)"

    def connected(self, now_s: float) -> str | None:
        """There is a connection: what to add to its line; None for no line: many of them ended at once."""
        self._connects += 1
        if self._connects > AT_ONCE and now_s < self._next_s:
            return None
        if self._tries <= 1:  # the one that tells that the last connection was lost
            return ""
        return f", after {duration(now_s - self._began_s)} and {self._tries:,} tries"

    def lost(self, lasted_s: float) -> None:
        """A connection has ended; where it lasted, the next try is the first of another outage."""
        if lasted_s >= STABLE_S:
            self._end()


def duration(seconds: float) -> str:
    """A time in two units at most: `40 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
