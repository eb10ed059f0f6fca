"""A bounded timer wheel on monotonic time: a heap of (when, number, callback)."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from bb_edge.ir.errors import BBError

Callback = Callable[[int], object]


class TimersFull(BBError):
    """No place for one more timer: names the bound."""


class Timers:
    """Callbacks run in order of their time, equal times in order of their making.

    Cancelling is lazy: a cancelled entry stays in the heap until its time, but the bound counts live ones
    only;
    the heap is rebuilt when the dead outnumber the living.
    """

    __slots__ = ("_bound", "_heap", "_live", "_next")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._heap: list[tuple[int, int]] = []
        self._live: dict[int, Callback] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._live)

    @property
    def full(self) -> bool:
        """Whether the bound is reached."""
        return len(self._live) >= self._bound

    def at(self, when_ns: int, callback: Callback, reserved: bool = False) -> int:
        """Calls `callback(now_ns)` in the first poll at or after `when_ns`; returns a token for `cancel`.

        `reserved` timers never raise TimersFull: there is one per thing that has a bound of its own (an open
        request, a parked op, a Repeat), which must not be left without its end.
        """
        if len(self._live) >= self._bound and not reserved:
            raise TimersFull(
                f"{self._bound} timers run already", where="timers", hint="raise NodeConfig.max_timers"
            )
        token = self._next
        self._next += 1
        self._live[token] = callback
        heapq.heappush(self._heap, (when_ns, token))
        return token

    def cancel(self, token: int) -> None:
        """Forgets a timer; an unknown or past token is fine."""
        if self._live.pop(token, None) is not None and len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """When the earliest live timer is due, None where there is none."""
        heap, live = self._heap, self._live
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ns: int) -> bool:
        """Whether a timer's time has come."""
        when = self.next_ns()
        return when is not None and when <= now_ns

    def pop_due(self, now_ns: int) -> Callback | None:
        """The earliest callback that is due, removed; None where none is."""
        when = self.next_ns()
        if when is None or when > now_ns:
            return None
        _, token = heapq.heappop(self._heap)
        return self._live.pop(token)
