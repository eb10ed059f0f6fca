"""How long work takes that somebody waits for, so that none is begun whose result would come too late.

A node that is asked for more than it can do would else begin each piece of work when nearly nobody waits for
it any more, finish it for nobody, and answer no one: work is done in order, and all of it waits equally long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

SEEN: Final = 15
"""So many of the latest pieces of work tell how long one takes: their median, which few long ones change."""

FEWEST: Final = 3
"""Before so many have been seen, nothing is known and all work is begun."""

MARGIN: Final = 1.125
"""What has to be left of the deadline, over the median: times vary, and the result has a way to go."""

AGAIN: Final = 8
"""After so many medians in which no work has ended one piece is begun whatever is known: times change."""


class Pace:
    """Work of one kind: what an op offloads, or the requests that one op answers. Thread-safe."""

    __slots__ = ("_ended_ns", "_lock", "_seen")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[int, bool]] = deque(maxlen=SEEN)
        self._ended_ns = 0

    def fits(self, left_ns: float, now_ns: int) -> bool:
        """Whether work that begins now is likely to end within `left_ns` nanoseconds.

        Where none of the latest came too late, all work is begun, however little is left.
        """
        with self._lock:
            seen = self._seen
            if len(seen) < FEWEST or not any(late for _, late in seen):
                return True
            usual = sorted(taken for taken, _ in seen)[len(seen) // 2]
            if usual * MARGIN <= left_ns:
                return True
            if now_ns - self._ended_ns < usual * AGAIN:
                return False
            self._ended_ns = now_ns
            return True

    def took(self, taken_ns: int, now_ns: int, *, late: bool) -> None:
        """A piece of work has ended, after so many nanoseconds; `late`: nobody waited for it any more."""
        with self._lock:
            self._seen.append((taken_ns, late))
            self._ended_ns = now_ns


class Paces:
    """One `Pace` for each kind of work, by its op; `clock` gives monotonic nanoseconds, on any thread."""

    __slots__ = ("_of", "clock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._of: dict[str, Pace] = {}

    def of(self, op: str) -> Pace:
        """That of the op of this name. For the poller's thread."""
        return self._of.setdefault(op, Pace())
