"""Envelopes that wait for their acknowledgement, and when they go again (semantics §6 "Resending").

    ──remember()──► UNARMED ──arm()──► WAITING ──due──► sent again, interval doubled ─┐
                       │                  │ ▲──────────────────────────────────────────┘
                       └──────────────────┴──settle()│expiry──► gone

Bounded in number and in bytes: what finds no room is refused before it gets a number, or gives its number
back.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId


class DeliveryError(BBError):
    """Base of what `Links` refuses; the envelope is not sent, and nothing is kept of it."""


class PendingFullError(DeliveryError):
    """As many envelopes wait for acknowledgement as may, or their bytes are used up."""


class EnvelopeKey(NamedTuple):
    """Names one numbered envelope that we sent."""

    peer: PeerId
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Bytes that are due to go to a peer: a repetition, or acknowledgements alone (then without `key`).

    `expires_in_ns` is what remains of the deadline, 0 without one. `resent` is False for the first time after
    a restart: there is no original that could still wait in the transport.
    """

    peer: PeerId
    payload: bytes
    key: EnvelopeKey | None
    durable: bool
    expires_in_ns: int
    resent: bool


class Pending:
    """One envelope without acknowledgement. Times are monotonic nanoseconds; `expires_ns` 0 is never."""

    __slots__ = (
        "armed",
        "due_ns",
        "durable",
        "encoded",
        "expires_ns",
        "handed_out",
        "interval_ns",
        "key",
        "kind",
        "next_ns",
    )

    def __init__(self, key: EnvelopeKey, kind: int, durable: bool, expires_ns: int, interval_ns: int) -> None:
        self.key = key
        self.kind = kind
        self.durable = durable
        self.encoded = b""
        self.armed = False
        self.handed_out = True
        """Whether this process gave it to its transport: False for what a restart brought."""
        self.expires_ns = expires_ns
        self.interval_ns = interval_ns
        self.next_ns = 0  # when it goes again
        self.due_ns = -1  # its valid place in the schedule: when it goes again or expires


class ResendQueue:
    """All pending envelopes of a node by time; a heap whose outdated entries are skipped."""

    __slots__ = ("_heap", "_max_bytes", "_max_pending", "_ticket", "bytes_in_use", "count", "longest_ns")

    def __init__(self, max_pending: int, max_bytes: int, longest_ns: int) -> None:
        """At most `max_pending` envelopes and `max_bytes` bytes wait; intervals double up to `longest_ns`."""
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self.longest_ns = longest_ns
        self._heap: list[tuple[int, int, Pending]] = []
        self._ticket = 0
        self.count = 0
        self.bytes_in_use = 0

    def reserve(self) -> None:
        """A place for one more. PendingFullError where there is none."""
        if self.count >= self._max_pending:
            raise PendingFullError(
                f"{self.count} envelopes wait for their acknowledgement",
                "delivery",
                "wait, shorten deadlines, or raise LinkConfig.max_pending",
            )
        self.count += 1

    def keep(self, pending: Pending, encoded: bytes) -> None:
        """Charges the bytes of an envelope that holds a place. PendingFullError where they do not fit."""
        size, free = len(encoded), self._max_bytes - self.bytes_in_use
        if size > free:
            raise PendingFullError(
                f"{size} bytes requested, {free} available of {self._max_bytes}",
                f"delivery to {pending.key.peer}",
                "wait, shorten deadlines, or raise LinkConfig.pending_bytes",
            )
        self.bytes_in_use += size
        pending.encoded = encoded

    def arm(self, pending: Pending, next_ns: int) -> None:
        """The envelope goes again at `next_ns`, unless it expires before."""
        pending.armed = True
        pending.next_ns = next_ns
        self._schedule(pending, min(next_ns, pending.expires_ns) if pending.expires_ns else next_ns)

    def watch(self, pending: Pending) -> None:
        """The envelope only waits for its expiry."""
        if pending.expires_ns:
            self._schedule(pending, pending.expires_ns)

    def release(self, pending: Pending) -> None:
        """The envelope waits no longer: its place and bytes are free."""
        self.count -= 1
        self.bytes_in_use -= len(pending.encoded)
        pending.encoded = b""
        pending.due_ns = -1

    def next_ns(self) -> int | None:
        heap = self._heap
        while heap and heap[0][2].due_ns != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ns: int) -> Pending | None:
        """The next envelope that is due, to be armed again or released; None where nothing is."""
        first = self.next_ns()
        if first is None or first > now_ns:
            return None
        pending = heapq.heappop(self._heap)[2]
        pending.due_ns = -1
        return pending

    def _schedule(self, pending: Pending, due: int) -> None:
        if due == pending.due_ns:
            return
        pending.due_ns = due
        self._ticket += 1  # keeps the order of equal times, and pendings out of comparisons
        heapq.heappush(self._heap, (due, self._ticket, pending))
        if len(self._heap) > 2 * self.count + 64:
            self._heap = [entry for entry in self._heap if entry[2].due_ns == entry[0]]
            heapq.heapify(self._heap)
