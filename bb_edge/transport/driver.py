"""The loop around a node on a device: poll the node, hand its steps out, wait for IO."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from bb_edge.engine import steps
from bb_edge.transport.base import DrivenNode, Transport


class Clock(Protocol):
    """A monotonic clock; `bb_shims` has one per board."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed time."""


Report = Callable[[steps.EngineStep], None]
"""Takes one step that is not an envelope."""
Polled = Callable[[int, int, Sequence[steps.EngineStep]], None]
"""Takes (began, ended, steps) of one poll; the times are monotonic nanoseconds."""


class Keeps(Protocol):
    """Writes a node's state to disk, as `bb_edge.state.Keeper` does."""

    @property
    def snapshots(self) -> int:
        """How many snapshots were written."""

    @property
    def next_ns(self) -> int | None:
        """When it has something to do itself, in monotonic nanoseconds; None if it has not."""

    @property
    def has_chore(self) -> bool:
        """Whether `tidy` has something to do."""

    def tidy(self) -> None:
        """Does what has time until nothing else is due."""

    def settle(self, wait: bool) -> None:
        """Tells the node what has been written since the last poll; with `wait`, of all that it asked for."""

    def take(self, polled: Sequence[steps.EngineStep], now_ns: int) -> None:
        """Writes what the steps of a poll ask for, and tells the node that it is written."""

    def announce(self) -> None:
        """Starts the ops that the program runs before a snapshot; the next poll runs them."""

    def snapshot(self, now_ns: int) -> bool:
        """Writes a snapshot now; returns whether it was written."""

    def close(self) -> None:
        """Waits for what is being written."""


MAX_WAIT_S = 1.0
"""Seconds of the longest wait.

Keep-alives and a watchdog need a turn of the loop every few seconds.
"""
LAST_WORDS_NS = 5_000_000_000
"""What the ops of the phases of an end have, beside what else is ready then: a poll has too little time."""


def next_due_ns(node: DrivenNode, keeper: Keeps | None) -> int | None:
    """The latest time of the next poll, in monotonic nanoseconds; None if nothing is due by itself."""
    node_ns, keeper_ns = node.next_deadline_ns(), None if keeper is None else keeper.next_ns
    return keeper_ns if node_ns is None else node_ns if keeper_ns is None else min(node_ns, keeper_ns)


class Driver:
    """Runs one node on one thread until it is stopped.

    `report` gets every step that is not an envelope. `polled` is called after every poll, for traces and
    metrics; without it the clock is read once less per poll. `beat(now_ns)` is called once per turn of the
    loop, at least every `max_wait_s` seconds: the place to pet a watchdog, because a loop that hangs does not
    get there. `keeper` writes what a poll asks for before anything of that poll is sent; envelopes that
    waited for the disk are sent with the next poll.
    """

    def __init__(
        self,
        node: DrivenNode,
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
        # No Event: a second signal may interrupt the handler of the first within `set`, which holds a lock.
        self._stopped = False
        self._thread = 0
        self.polls = 0

    def stop(self) -> None:
        """Ends `run` after the current poll; may be called from any thread and from a signal handler.

        Also from a handler that interrupts this call: `timeout` and service managers send SIGTERM twice.
        """
        self._stopped = True
        self._transport.wake()

    def run(self, idle: Callable[[], bool] | None = None) -> None:
        """Polls until `stop` is called or `idle()` is true; then shuts the node down in order."""
        node, transport, clock, beat = self._node, self._transport, self._clock, self._beat
        keeper = self._keeper
        longest = self._max_wait_s
        self._thread = threading.get_ident()
        node.set_waker(self._wake)
        transport.start()
        try:
            while not self._stopped and not (idle is not None and idle()):
                now = clock.monotonic_ns()
                self._poll(now)
                if beat is not None:
                    beat(now)
                due = next_due_ns(node, keeper)
                wait = longest if due is None else min(longest, max(0, due - clock.monotonic_ns()) / 1e9)
                if wait and keeper is not None and keeper.has_chore:
                    transport.wait(0.0)  # what was sent leaves first
                    keeper.tidy()
                else:
                    transport.wait(wait)
            self._end()
        finally:
            node.set_waker(None)
            if keeper is not None:
                keeper.close()  # before the transport, which its writer wakes
            transport.stop()

    def _end(self) -> None:
        keeper, clock = self._keeper, self._clock
        before = 0 if keeper is None else keeper.snapshots
        self._node.fire_lifecycle(steps.Phase.SHUTDOWN)
        ends_ns = clock.monotonic_ns() + LAST_WORDS_NS
        self._poll_out(ends_ns)
        if keeper is not None:
            if keeper.snapshots == before:
                keeper.announce()
            self._poll_out(ends_ns)  # publishes and acknowledges what the poll before has written
            if keeper.snapshots == before:
                keeper.snapshot(clock.monotonic_ns())

    def _poll_out(self, ends_ns: int) -> None:
        """Polls until nothing is ready, until then: what has been started shall end."""
        self._poll(self._clock.monotonic_ns())
        while self._node.has_ready and self._clock.monotonic_ns() < ends_ns:
            self._poll(self._clock.monotonic_ns())

    def _poll(self, now_ns: int) -> None:
        self.polls += 1
        send, report = self._transport.send, self._report
        keeper = self._keeper
        if keeper is not None:
            # Where an envelope finds no room, what waits for the disk makes some. It is offered once more.
            keeper.settle(self._transport.holding)
        polled = self._node.poll(now_ns)
        if self._polled is not None:
            self._polled(now_ns, self._clock.monotonic_ns(), polled)
        if keeper is not None:
            if report is not None:
                # The host gets an event before a snapshot says that it has: after a crash it may get the
                # event again, but it never misses one.
                for step in polled:
                    if isinstance(step, steps.AppEvent):
                        report(step)
            keeper.take(polled, now_ns)
        # Taken out as they go: a request to a thousand peers is as many steps, and each becomes an item.
        polled.reverse()
        while polled:
            step = polled.pop()
            if isinstance(step, steps.SendEnvelope):
                send(step)
            elif report is not None and (keeper is None or not isinstance(step, steps.AppEvent)):
                report(step)

    def _wake(self) -> None:
        # The driver polls after each wait anyway, so what arrives on its own thread needs no wake-up.
        if threading.get_ident() != self._thread:
            self._transport.wake()
