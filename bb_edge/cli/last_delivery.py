"""What a node whose rounds are over still has to send: how long it waits until that is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.engine.net.durable import Durable


class LastDelivery:
    """Decides when a node may end whose rounds are over: once its durable sends are acknowledged.

    It waits for what is in the outbox when it is asked first, and for what had no room there: other entries
    of the program may go on sending. Each acknowledgement gives it its patience anew, in nanoseconds; with 0
    it waits for nothing. `tell` gets the number of envelopes when it begins to wait.
    """

    def __init__(
        self, outbox: Durable, clock: Callable[[], int], patience_ns: int, tell: Callable[[int], object]
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._patience_ns = patience_ns
        self._tell = tell
        self._waits_for = frozenset[int]()
        self._unplaced = 0  # when it was asked last: they have records by now, or wait for room still
        self._fewest = -1  # it was not asked yet
        self._since_ns = 0
        self.gave_up = False
        """Whether its patience has ended before all was acknowledged."""

    def over(self) -> bool:
        """Returns whether there is nothing to wait for any more, or its patience has ended."""
        if not self._patience_ns:
            return True
        now_ns, unacknowledged = self._clock(), self._outbox.open
        first = self._fewest < 0
        if first or self._unplaced:
            self._waits_for |= unacknowledged
        self._unplaced = self._outbox.unplaced
        waiting = len(self._waits_for & unacknowledged) + self._unplaced
        if not waiting:
            self._fewest = 0
            return True
        if first:
            self._tell(waiting)
        if first or waiting < self._fewest:
            self._fewest, self._since_ns = waiting, now_ns
        self.gave_up = now_ns - self._since_ns >= self._patience_ns
        return self.gave_up
