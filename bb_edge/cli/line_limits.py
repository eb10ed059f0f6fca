"""Limits on log lines: what happens again and again is told at once, and then counted.

A node runs unattended for years on a small card, and strangers can make it complain. So each kind of line has
a number of lines that are written at once, per subject (a peer, an op) and in all; the others are counted,
and told as one line at the end of a minute. Where a kind goes on like that, it gets a few lines per minute as
samples, until it has been quiet for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

PER_SUBJECT = 10
"""Lines at once of one kind about one peer or op: enough to see what it is."""
PER_KIND = 50
"""Lines at once of one kind: a fleet of fifty comes up in full."""
SAMPLES = 5
"""Lines per minute of a kind that was limited in the minute before, at most one per subject."""
WINDOW_NS = 60_000_000_000
"""Nanoseconds after which the lines that were left out are told."""
MAX_KINDS = 128
"""Kinds that are counted apart; there are some forty, and what is beyond shares one."""
MAX_SUBJECTS = 256
"""Subjects of a kind that are counted apart; what is beyond shares one: "others"."""
NAMED = 3
"""Subjects that a summary names, those with the most lines first."""

OTHERS = "others"


class Summary(NamedTuple):
    """Lines of one kind that were left out: how many, in how many seconds, and about whom."""

    level: str
    kind: str
    lines: int
    seconds: int
    about: str

    def __str__(self) -> str:
        about = f": {self.about}" if self.about else ""
        return f"{self.kind}: and {self.lines:,} more in {self.seconds} s{about}"


class _Kind:
    """One kind of line within a window."""

    __slots__ = ("began_ns", "left", "level", "omitted", "written")

    def __init__(self, level: str, left: int, began_ns: int) -> None:
        self.level = level
        self.left = left
        self.began_ns = began_ns
        self.written: dict[str, int] = {}  # lines per subject
        self.omitted: dict[str, int] = {}


class LineLimits:
    """Decides for each line whether it is written, and tells later what was not. For one thread."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._kinds: dict[str, _Kind] = {}
        self._next_ns = 0
        self.omitted = 0
        """Lines that were left out so far."""

    def admit(self, level: str, kind: str, about: str = "") -> bool:
        """Returns whether a line of this kind, about this subject, is written; counts it if it is not."""
        state = self._kinds.get(kind)
        if state is None:
            if len(self._kinds) >= MAX_KINDS and kind != OTHERS:
                return self.admit(level, OTHERS, kind)
            now = self._clock_ns()
            state = self._kinds[kind] = _Kind(level, PER_KIND, now)
            self._next_ns = min(self._next_ns, now + WINDOW_NS) if len(self._kinds) > 1 else now + WINDOW_NS
        count = state.written.get(about, 0)
        if state.left > 0 and count < PER_SUBJECT:
            state.left -= 1
            state.written[about] = count + 1
            return True
        if about not in state.omitted and len(state.omitted) >= MAX_SUBJECTS:
            about = OTHERS
        state.omitted[about] = state.omitted.get(about, 0) + 1
        self.omitted += 1
        return False

    def due(self, now_ns: int) -> list[Summary]:
        """The summaries of the windows that have ended; to be called every now and then."""
        return self._ended(now_ns, WINDOW_NS) if self._kinds and now_ns >= self._next_ns else []

    def close(self) -> list[Summary]:
        """The summaries of all windows."""
        return self._ended(self._clock_ns(), 0)

    def _ended(self, now_ns: int, age_ns: int) -> list[Summary]:
        found = []
        for kind, state in list(self._kinds.items()):
            if now_ns - state.began_ns < age_ns:
                continue
            if not state.omitted:
                del self._kinds[kind]
                continue
            seconds = max(1, round((now_ns - state.began_ns) / 1e9))
            lines = sum(state.omitted.values())
            found.append(Summary(state.level, kind, lines, seconds, _about(state.omitted)))
            again = self._kinds[kind] = _Kind(state.level, SAMPLES, now_ns)
            again.written = dict.fromkeys(state.omitted, PER_SUBJECT - 1)
        self._next_ns = min((s.began_ns + WINDOW_NS for s in self._kinds.values()), default=0)
        return found


def _about(omitted: dict[str, int]) -> str:
    """`kitchen (QmYw…) 9,000, hall (QmZ4…) 12, 3 more`; empty where the lines were about nobody."""
    most = sorted((name for name in omitted if name), key=lambda name: -omitted[name])
    named = [f"{name} {omitted[name]:,}" for name in most[:NAMED]]
    return ", ".join(named + ([f"{len(most) - NAMED} more"] if len(most) > NAMED else []))
