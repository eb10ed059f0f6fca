"""When a peer is asked for its marks, and when once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

S: Final = 1_000_000_000
ASK_AGAIN_NS: Final = 1 * S
ASK_LONGEST_NS: Final = 64 * S
OLD_AGAIN_NS: Final = 1 * S
OLD_LONGEST_NS: Final = 60 * S
"""A sender that was told that it is old asks no sooner again, and each further time twice as long after that:
an honest peer may be restarted right then, and one that lies costs a write a minute in the end."""
OLD_FORGOTTEN_NS: Final = 600 * S
"""After so long without such an answer the next one is the first again."""


@dataclass(slots=True, eq=False)
class Question:
    """The question to one peer, said again and again until it is answered; monotonic nanoseconds."""

    token: int = 0  # of the last one that was begun
    next_ns: int = 0  # when it is said next
    _interval_ns: int = 0
    _earliest_ns: int = 0
    _old_ns: int = 0  # how long it waits since the last answer that it is old
    _told_ns: int = 0  # when that was

    def soon(self, now_ns: int) -> None:
        """It is to be said as soon as it may be, and then ever more seldom."""
        self._interval_ns = ASK_AGAIN_NS
        self.next_ns = max(now_ns, self._earliest_ns)

    def is_due(self, now_ns: int) -> bool:
        """Whether it is to be said now; if so, the time of the next one is set."""
        if self.next_ns > now_ns:
            return False
        self._earliest_ns = now_ns + ASK_AGAIN_NS
        self.next_ns = now_ns + self._interval_ns
        self._interval_ns = min(2 * self._interval_ns, ASK_LONGEST_NS)
        return True

    def told_old(self, now_ns: int) -> None:
        """The answer was that who asks is old: the next question waits, longer each time."""
        again = self._old_ns and now_ns - self._told_ns < OLD_FORGOTTEN_NS
        self._old_ns = min(2 * self._old_ns, OLD_LONGEST_NS) if again else OLD_AGAIN_NS
        self._told_ns = now_ns
        self._earliest_ns = now_ns + self._old_ns
