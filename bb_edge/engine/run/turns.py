"""How long a poll may run ops, and which requests are answered too late: what a node with a clock knows.

Ops differ by a factor of a million. A poll that ran a thousand of them, each a step of training, would leave
the broker without a word for minutes, and the answers that it has made with their askers' deadlines.

A node without a clock, in simulated time, knows nothing of this: its polls are bounded by ops alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bb_edge.engine.paces import Pace, Paces
from bb_edge.engine.run.frames import Execution

TOO_LATE: Final = "its answer would have come too late: this node is asked for more than it can do"

GRACE_NS: Final = 10_000_000
"""What cheap ops of an execution have after the poll's time: enough to send what it has."""


@dataclass(slots=True)
class _Watch:
    """A request that is worked on: when its reply must be there, and how long it has run."""

    pace: Pace
    until_ns: int
    taken_ns: int = 0


class Turns:
    """`clock` gives real monotonic nanoseconds, or is None; `length_ns` is how long a poll may run ops."""

    __slots__ = (
        *("_begun_ns", "_blind_ns", "_ends_ns", "_grace_ns", "_length_ns", "_paces", "_seen_ns"),
        *("clock", "late", "spent", "watched"),
    )

    def __init__(self, clock: Callable[[], int] | None, length_ns: int, paces: Paces) -> None:
        self.clock = clock
        self.spent = False  # the time of this poll
        self.late = False  # and what it has beyond that
        self.watched: dict[int, _Watch] = {}  # by the number of the execution
        self._length_ns = length_ns
        self._begun_ns = self._ends_ns = self._grace_ns = self._seen_ns = 0
        # How long the last poll ran ops. What came meanwhile stood in the socket: it is older than it seems.
        self._blind_ns = 0
        self._paces = paces

    def begin(self) -> None:
        """A poll begins."""
        if self.clock is not None:
            self._blind_ns = self._seen_ns - self._begun_ns
            self.spent = self.late = False
            self._begun_ns = self._seen_ns = self.clock()
            self._ends_ns = self._begun_ns + self._length_ns

    def over(self) -> bool:
        """Whether the poll has taken long enough; asked after ops that may take long, of nodes with a clock.

        What a long op gave can mostly leave with it: cheap ops have until `late`.
        """
        now_ns = self._seen_ns = self.clock() if self.clock is not None else 0
        if now_ns < self._ends_ns:
            return False
        if not self.spent:
            self.spent, self._grace_ns = True, now_ns + GRACE_NS
        self.late = now_ns >= self._grace_ns
        return True

    def admits(self, execution: Execution, crowded: bool) -> bool:
        """Whether a request can still be answered in time, as far as its like tells.

        One that nobody stands behind (not `crowded`) is worked on in any case: the time is there.
        """
        if self.clock is None or execution.reply is None or not execution.until_ns:
            return True
        now_ns, pace = self.clock(), self._paces.of(execution.reply.op.spec.name)
        until_ns = execution.until_ns - self._blind_ns
        if crowded and not pace.fits(until_ns - now_ns, now_ns):
            return False
        self.watched[execution.id] = _Watch(pace, until_ns)
        return True

    def begins(self, number: int) -> int:
        """When a turn of the execution of that number begins, below 0 where it is not watched."""
        return self.clock() if self.clock is not None and number in self.watched else -1

    def ran(self, number: int, began_ns: int, ended: bool) -> None:
        """A turn that began then is over, and with it, where it has `ended`, the execution of that number."""
        assert self.clock is not None
        watch, now_ns = self.watched[number], self.clock()
        watch.taken_ns += now_ns - began_ns
        if ended:
            del self.watched[number]
            watch.pace.took(watch.taken_ns, now_ns, late=now_ns > watch.until_ns)
