"""The loop around a node on a device: poll, hand steps out, wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from bb_edge.engine import steps
from bb_edge.transport.base import NodeDoors, Transport


class Clock(Protocol):
    """Monotonic nanoseconds; `bb_shims` has one per board."""

    def monotonic_ns(self) -> int: ...


Report = Callable[[steps.EngineStep], None]
Polled = Callable[[int, int, Sequence[steps.EngineStep]], None]
"""Takes (began, ended, steps) of one poll; monotonic nanoseconds."""


class Keeps(Protocol):
    """Writes a node's state; `bb_edge.state.Keeper` is one."""

    @property
    def snapshots(self) -> int:
        """How many were written."""

    @property
    def next_ns(self) -> int | None:
        """When it has something to do though the node has not."""

    def take(self, found: Sequence[steps.EngineStep], now_ns: int) -> None:
        """Writes down what the steps of a poll ask for, and answers the node."""

    def announce(self) -> None:
        """Starts what the program does before a snapshot; the next poll runs it."""

    def snapshot(self, now_ns: int) -> bool:
        """Writes a snapshot now."""


MAX_WAIT_S = 1.0
"""Longest sleep: keep-alives and stop requests are looked at that often."""


def next_due_ns(node: NodeDoors, keeper: Keeps | None) -> int | None:
    """When to poll at the latest; None where nothing will come by itself."""
    due, again = node.next_deadline_ns(), None if keeper is None else keeper.next_ns
    return again if due is None else due if again is None else min(due, again)


class Driver:
    """Runs one node on one thread until it is stopped.

    `report` sees every step that is not an envelope; `polled` every poll (for traces and metrics: who gives
    none pays for no clock); `beat(now_ns)` is called once per turn of the loop, at least every `max_wait_s`:
    the place to pet a watchdog, because a loop that hangs does not get there. `keeper` writes down what a
    poll asks for before anything of that poll is sent; what waited for it goes out with the next poll.
    """

    def __init__(
        self,
        node: NodeDoors,
        transport: Transport,
        clock: Clock,
        report: Report | None = None,
        *,
        keeper: Keeps | None = None,
        polled: Polled | None = None,
        beat: Callable[[int], None] | None = None,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._node = node
        self._transport = transport
        self._clock = clock
        self._report = report
        self._keeper = keeper
        self._polled = polled
        self._beat = beat
        self._max_wait_s = max_wait_s
        self._stop = threading.Event()
        self._thread = 0
        self.polls = 0

    def stop(self) -> None:
        """Ends `run` after the current poll; from any thread, and from a signal handler."""
        self._stop.set()
        self._transport.wake()

    def run(self, idle: Callable[[], bool] | None = None) -> None:
        """Polls until `stop`, or until `idle()` says that it is done; then shuts the node down in order."""
        node, transport, clock, beat = self._node, self._transport, self._clock, self._beat
        longest = self._max_wait_s
        self._thread = threading.get_ident()
        node.set_waker(self._wake)
        transport.start()
        try:
            while not self._stop.is_set() and not (idle is not None and idle()):
                now = clock.monotonic_ns()
                self._poll(now)
                if beat is not None:
                    beat(now)
                due = next_due_ns(node, self._keeper)
                wait = longest if due is None else min(longest, max(0, due - clock.monotonic_ns()) / 1e9)
                transport.wait(wait)
            self._end()
        finally:
            node.set_waker(None)
            transport.stop()

    def _end(self) -> None:
        keeper, clock = self._keeper, self._clock
        before = 0 if keeper is None else keeper.snapshots
        self._node.fire_lifecycle(steps.Phase.SHUTDOWN)
        self._poll(clock.monotonic_ns())
        if keeper is not None:
            if keeper.snapshots == before:
                keeper.announce()
            self._poll(clock.monotonic_ns())  # publishes and acknowledges what the one before wrote down
            if keeper.snapshots == before:
                keeper.snapshot(clock.monotonic_ns())

    def _poll(self, now_ns: int) -> None:
        self.polls += 1
        send, report = self._transport.send, self._report
        found = self._node.poll(now_ns)
        if self._polled is not None:
            self._polled(now_ns, self._clock.monotonic_ns(), found)
        keeper = self._keeper
        if keeper is not None:
            if report is not None:
                # The host hears of an event before a snapshot says that it has: after a crash it may hear it
                # again, but it never misses one.
                for step in found:
                    if isinstance(step, steps.AppEvent):
                        report(step)
            keeper.take(found, now_ns)
        for step in found:
            if isinstance(step, steps.SendEnvelope):
                send(step)
            elif report is not None and (keeper is None or not isinstance(step, steps.AppEvent)):
                report(step)

    def _wake(self) -> None:
        # What arrives on the driver's own thread is polled right after the wait anyway.
        if threading.get_ident() != self._thread:
            self._transport.wake()
