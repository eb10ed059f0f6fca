"""Envelopes that wait for their acknowledgement, and when they go again.

Bounded in number and in bytes: an envelope that finds no space left is refused before it gets a number, or
gives its number back.

Rules W11, W14, W15 of the specification.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire.bodies import Body, HeldBodies

SPARED = 64
"""Outdated entries of the schedule that may always be there: short queues are not rebuilt all the time."""


class PendingState(enum.IntEnum):
    """How far an envelope that must arrive has come."""

    NUMBERED = 0
    """It has a number and a place; it is not published yet, and nothing repeats it."""
    PUBLISHED = 1
    """It was published, or a restart brought it back; it is repeated until it is over."""
    OVER = 2


class PendingEvent(enum.IntEnum):
    """What happens to an envelope that must arrive."""

    PUBLISH = 0
    """It goes out, for the first time or again."""
    SETTLE = 1
    """Its acknowledgement came, or nobody waits for it any more."""
    EXPIRE = 2
    """Its deadline passed."""


_NUMBERED, _PUBLISHED, _OVER = PendingState.NUMBERED, PendingState.PUBLISHED, PendingState.OVER

PENDING: Final = Table(
    "pending envelope",
    _NUMBERED,
    {
        (_NUMBERED, PendingEvent.PUBLISH): _PUBLISHED,
        (_NUMBERED, PendingEvent.SETTLE): _OVER,
        (_NUMBERED, PendingEvent.EXPIRE): _OVER,
        (_PUBLISHED, PendingEvent.PUBLISH): _PUBLISHED,
        (_PUBLISHED, PendingEvent.SETTLE): _OVER,
        (_PUBLISHED, PendingEvent.EXPIRE): _OVER,
    },
)


class DeliveryError(BBError):
    """Base of what `Links` refuses; the envelope is not sent, and nothing of it is remembered."""


class PendingFullError(DeliveryError):
    """The places of envelopes that wait for acknowledgement, or their bytes, are used up."""


class EnvelopeKey(NamedTuple):
    """The name of a numbered envelope that this node sent."""

    peer: PeerId
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Bytes that are due to go to a peer: a repetition, or acknowledgements alone (then without `key`).

    `payload` follows `body`, where it has one.

    `expires_in_ns` is what remains of the deadline in nanoseconds, 0 without one. `resent` is False for the
    first repetition after a restart: there is no original that could still wait in the transport.
    """

    peer: PeerId
    payload: bytes
    key: EnvelopeKey | None
    durable: bool
    expires_in_ns: int
    resent: bool
    body: Body = b""


class Pending:
    """An envelope without acknowledgement. Times are monotonic nanoseconds; `expires_ns` 0 is never.

    Its bytes are `body` (empty where it shares none) and then `encoded`.
    """

    __slots__ = (
        "body",
        "due_ns",
        "encoded",
        "expires_ns",
        "handed_out",
        "interval_ns",
        "key",
        "kind",
        "next_ns",
        "repeated",
        "state",
    )

    def __init__(self, key: EnvelopeKey, kind: int, expires_ns: int, interval_ns: int) -> None:
        """A durable one's key has its record's id in place of a number, and epoch 0."""
        self.key = key
        self.kind = kind
        self.body: Body = b""
        self.encoded = b""
        self.state = PENDING.start
        self.handed_out = True
        """Whether this process gave it to its transport; False for what a restart brought back."""
        self.repeated = False
        """Whether its acknowledgement may be that of an older copy, and so measures no round trip."""
        self.expires_ns = expires_ns
        self.interval_ns = interval_ns
        self.next_ns = 0  # when it goes again
        self.due_ns = -1  # its valid place in the schedule, which is when it goes again or expires

    def brought_back(self) -> None:
        """A restart brought it back: its first copy is that of a process that is gone."""
        self.handed_out = False
        self.repeated = True

    def took_ns(self, now_ns: int) -> int | None:
        """How long its acknowledgement took, which comes now; None unless it was sent once."""
        if self.repeated or self.state is not _PUBLISHED:
            return None
        return now_ns - (self.next_ns - self.interval_ns)

    def hurry(self, least_ns: int) -> None:
        """It goes again now, which is not part of the series of repetitions: halves what that will double."""
        self.interval_ns = max(self.interval_ns // 2, least_ns // 2)
        self.repeated = True

    def repeat(self, longest_ns: int) -> int:
        """It goes again; returns how long it waits then, which is twice as long as it did."""
        self.repeated = True
        self.interval_ns = min(2 * self.interval_ns, longest_ns)
        return self.interval_ns


class Unacknowledged:
    """The pending envelopes of one peer, in the order of their numbers in each of our epochs.

    Acknowledgements up to a number stop at the first higher one. As a rule there is one envelope or none, and
    no table then: a round has one for each peer that it asks.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: Pending | dict[EnvelopeKey, Pending] | None = None

    @property
    def waits(self) -> bool:
        """Whether there is any."""
        return self._pending is not None

    @property
    def waiting(self) -> tuple[Pending, ...]:
        """All of them, in order."""
        found = self._pending
        if found is None:
            return ()
        return tuple(found.values()) if isinstance(found, dict) else (found,)

    def add(self, pending: Pending) -> None:
        """Adds an envelope, whose number is above those of its epoch that are there."""
        found = self._pending
        if found is None:
            self._pending = pending
        elif isinstance(found, dict):
            found[pending.key] = pending
        else:
            self._pending = {found.key: found, pending.key: pending}

    def find(self, key: EnvelopeKey) -> Pending | None:
        """The envelope of that name; None where it is over."""
        found = self._pending
        if isinstance(found, dict):
            return found.get(key)
        return found if found is not None and found.key == key else None

    def remove(self, key: EnvelopeKey) -> None:
        """Takes one out that is there."""
        found = self._pending
        if isinstance(found, dict):
            del found[key]
            if found:
                return
        self._pending = None

    def has(self, epoch: int) -> bool:
        """Whether one of that epoch waits."""
        return any(pending.key.epoch == epoch for pending in self.waiting)

    def named_by(self, peer: PeerId, epoch: int, up_to: int, also: tuple[int, ...]) -> list[Pending]:
        """Those that an acknowledgement of the peer names, each once."""
        found = self._pending
        if found is None:
            return []
        if not isinstance(found, dict):
            key = found.key
            named = key.epoch == epoch and (key.seq <= up_to or key.seq in also)
            return [found] if named else []
        keys = [EnvelopeKey(peer, epoch, seq) for seq in dict.fromkeys(also) if seq > up_to]
        several = [found[key] for key in keys if key in found]
        for pending in found.values():
            if pending.key.epoch == epoch:
                if pending.key.seq > up_to:
                    break
                several.append(pending)
        return several


class ResendQueue:
    """All pending envelopes of a node by time, as a heap whose outdated entries are skipped."""

    __slots__ = (
        "_bodies",
        "_heap",
        "_max_bytes",
        "_max_pending",
        "_ticket",
        "bytes_in_use",
        "count",
        "longest_ns",
    )

    def __init__(self, max_pending: int, max_bytes: int, longest_ns: int) -> None:
        """At most `max_pending` envelopes and `max_bytes` bytes wait; intervals double up to `longest_ns`."""
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self.longest_ns = longest_ns
        self._heap: list[tuple[int, int, Pending]] = []
        self._ticket = 0
        self._bodies = HeldBodies()
        self.count = 0
        self.bytes_in_use = 0

    @property
    def entries(self) -> int:
        """How many entries the schedule has, outdated ones included; bounded by the pending envelopes."""
        return len(self._heap)

    def reserve(self, size: int = 0, body: Body = b"") -> None:
        """Takes a place for one more envelope of about `size` bytes behind its body.

        PendingFullError where there is no place, or the bytes do not fit. One envelope alone may be larger
        than the bound, and so may those that share its body.
        """
        if self.count >= self._max_pending:
            raise PendingFullError(
                f"{self.count} envelopes wait for their acknowledgement",
                "delivery",
                "wait, shorten deadlines, or raise limits.outbound_queue",
            )
        free = self._max_bytes - self.bytes_in_use
        if body:
            added = self._bodies.adds(body)
            size = size + added if added else 0  # what follows a body that is held is bounded by the places
        if size > free and size and self.count:
            raise PendingFullError(
                f"{size} bytes requested, {free} available of {self._max_bytes}",
                "delivery",
                "wait, shorten deadlines, or raise limits.ingress_bytes",
            )
        self.count += 1

    def keep(self, pending: Pending, encoded: bytes, body: Body = b"") -> None:
        """Charges the bytes of an envelope that holds a place; a body that others share is charged once."""
        size = len(encoded)
        if body:
            size += self._bodies.hold(body)
            pending.body = body
        self.bytes_in_use += size
        pending.encoded = encoded

    def lay_aside(self, keep: Callable[[Body], Body | None]) -> None:
        """Holds in place of each body what `keep` returns for it: equal bytes; None leaves it as it is."""
        for _, _, pending in self._heap:
            if pending.body and (kept := keep(pending.body)) is not None:
                self.bytes_in_use += self._bodies.hold(kept) - self._bodies.drop(pending.body)
                pending.body = kept

    def arm(self, pending: Pending, next_ns: int) -> None:
        """Plans the envelope's next repetition for `next_ns`; it has been published, or is about to be."""
        pending.state = PENDING.rows[pending.state, PendingEvent.PUBLISH]
        pending.next_ns = next_ns
        self._schedule(pending, min(next_ns, pending.expires_ns) if pending.expires_ns else next_ns)

    def sooner(self, unacknowledged: Iterable[Pending], interval_ns: int, now_ns: int) -> None:
        """Their peer answers much faster than when they went: what was lost waits no longer than that."""
        for pending in unacknowledged:
            if pending.state is _PUBLISHED and pending.interval_ns > interval_ns:
                sent_ns = pending.next_ns - pending.interval_ns
                pending.interval_ns = interval_ns
                self.arm(pending, max(now_ns, sent_ns + interval_ns))

    def watch(self, pending: Pending) -> None:
        """Plans the envelope's expiry, but no repetition; for what may not be published at once."""
        if pending.expires_ns:
            self._schedule(pending, pending.expires_ns)

    def release(self, pending: Pending, event: PendingEvent) -> None:
        """Frees the envelope's place and bytes; `event` is SETTLE or EXPIRE."""
        pending.state = PENDING.rows[pending.state, event]
        self.count -= 1
        self.bytes_in_use -= len(pending.encoded)
        pending.encoded = b""
        pending.due_ns = -1
        if pending.body:
            self.bytes_in_use -= self._bodies.drop(pending.body)
            pending.body = b""
        if len(self._heap) > 2 * self.count + SPARED:
            self._drop_outdated()

    def next_ns(self) -> int | None:
        """Returns when `pop` has something, in monotonic nanoseconds; None while nothing is planned."""
        heap = self._heap
        while heap and heap[0][2].due_ns != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ns: int) -> Pending | None:
        """Returns the next envelope that is due; None where nothing is. The caller arms or releases it."""
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
        if len(self._heap) > 2 * self.count + SPARED:
            self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Rebuilds the schedule where more entries are outdated than valid: as dear as the pushes were."""
        self._heap = [entry for entry in self._heap if entry[2].due_ns == entry[0]]
        heapq.heapify(self._heap)
