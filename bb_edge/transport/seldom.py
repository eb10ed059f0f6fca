"""Lets something through at once, and then more and more seldom."""

from __future__ import annotations

FIRST_S, MOST_S = 10.0, 600.0
"""Seconds between the first two, and the longest wait: an operator who looks once in ten minutes sees it."""


class Seldom:
    """At most once in 10 s, doubling to 10 min; begins anew once nothing has asked for two such waits."""

    __slots__ = ("_asked_at", "_wait_s", "held", "next_at")

    def __init__(self) -> None:
        self._wait_s = 0.0
        self._asked_at = 0.0
        self.next_at = 0.0
        self.held = 0
        """How often it has said no since it last said yes."""

    def passes(self, now: float) -> bool:
        """Whether it may happen now; the caller then does it. `now` is in monotonic seconds."""
        rested = not self._wait_s or now - self._asked_at > 2 * self._wait_s
        self._asked_at = now
        if now < self.next_at:
            self.held += 1
            return False
        self._wait_s = FIRST_S if rested else min(self._wait_s * 2, MOST_S)
        self.next_at = now + self._wait_s
        self.held = 0
        return True
