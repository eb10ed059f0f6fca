"""When a peer may be tried again: the table behind the Backoff gates.

The first failure makes the peer wait 10 ms, each further one twice as long, up to 60 s. When the wait is
over, one probe may go; unless it succeeds, the next one waits for another interval. A peer that asks for
patience (a back-off notice) gets it in the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table

MS = 1_000_000
S = 1_000_000_000


class BackoffState(enum.IntEnum):
    """Whether a peer has to be waited for."""

    READY = 0
    WAITING = 1


class BackoffEvent(enum.IntEnum):
    """What starts, renews and ends a wait."""

    FAILED = 0
    IMPOSED = 1
    """The peer asked to be left alone."""
    PROBED = 2
    """Something went to a peer whose wait was over."""
    SUCCEEDED = 3


_READY, _WAITING = BackoffState.READY, BackoffState.WAITING

BACKOFF: Final = Table(
    "peer back-off",
    _READY,
    {
        (_READY, BackoffEvent.FAILED): _WAITING,
        (_READY, BackoffEvent.IMPOSED): _WAITING,
        (_WAITING, BackoffEvent.FAILED): _WAITING,
        (_WAITING, BackoffEvent.IMPOSED): _WAITING,
        (_WAITING, BackoffEvent.PROBED): _WAITING,
        (_WAITING, BackoffEvent.SUCCEEDED): _READY,
    },
)
"""A peer that is not waited for needs no row for probes and successes: they find nothing to change."""

_FIRST_NS = 10 * MS
"""The first interval lets one lost packet pass almost unnoticed."""
_LONGEST_NS = 60 * S
"""Intervals double up to this one: a peer that came back is found within the time of a slow round."""


class Backoff:
    """The waits, per peer that has one. Bounded: beyond `capacity` the wait that ends first is forgotten."""

    __slots__ = ("_capacity", "forgotten", "waits")

    def __init__(self, capacity: int = 1024) -> None:
        """1024 peers is what the other tables about peers hold by default."""
        self._capacity = capacity
        self.waits: dict[PeerId, tuple[int, int]] = {}
        """Peer to (interval, when the next try may go). To be read only."""
        self.forgotten = 0  # waits that were forgotten because there was no space left

    def ready(self, peer: PeerId, now_ns: int) -> bool:
        """Returns whether something may be sent to the peer now. Whoever then sends calls `probed`."""
        if not self.waits:
            return True
        wait = self.waits.get(peer)
        return wait is None or now_ns >= wait[1]

    def probed(self, peer: PeerId, now_ns: int) -> None:
        """Lets nothing more go within this interval, where the peer has a wait."""
        wait = self.waits.get(peer)
        if wait is not None:
            self._turn(peer, BackoffEvent.PROBED, wait[0], now_ns + wait[0])

    def failed(self, peer: PeerId, now_ns: int) -> None:
        """Doubles the peer's interval and waits for it."""
        wait = self.waits.get(peer)
        interval = _FIRST_NS if wait is None else min(2 * wait[0], _LONGEST_NS)
        self._turn(peer, BackoffEvent.FAILED, interval, now_ns + interval)

    def impose(self, peer: PeerId, now_ns: int, at_least_ns: int) -> None:
        """Waits `at_least_ns`, as the peer asked; a minute is the most that it can ask for."""
        interval = max(_FIRST_NS, min(at_least_ns, _LONGEST_NS))
        until_ns = now_ns + interval
        wait = self.waits.get(peer)
        if wait is not None:
            interval, until_ns = max(wait[0], interval), max(wait[1], until_ns)
        self._turn(peer, BackoffEvent.IMPOSED, interval, until_ns)

    def succeeded(self, peer: PeerId) -> None:
        """Ends the peer's wait, where it has one."""
        if peer in self.waits:
            self._turn(peer, BackoffEvent.SUCCEEDED, 0, 0)

    def next(self, peer: PeerId) -> int:
        """Returns when the peer may be tried again, in monotonic nanoseconds; 0 where it has no wait."""
        wait = self.waits.get(peer)
        return 0 if wait is None else wait[1]

    def _turn(self, peer: PeerId, event: BackoffEvent, interval: int, until_ns: int) -> None:
        waits = self.waits
        if BACKOFF.rows[_WAITING if peer in waits else _READY, event] is _READY:
            waits.pop(peer, None)
            return
        if peer not in waits and len(waits) >= self._capacity:
            del waits[min(waits, key=lambda p: waits[p][1])]
            self.forgotten += 1
        waits[peer] = (interval, until_ns)

    def snapshot(self, now_ns: int) -> list[list[Any]]:
        """Returns [peer, interval, remaining wait] rows for CBOR, in nanoseconds."""
        return [
            [peer.to_bytes(), interval, max(until - now_ns, 0)]
            for peer, (interval, until) in self.waits.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]], now_ns: int) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay."""
        self.waits = {
            PeerId.from_bytes(peer): (interval, now_ns + remaining)
            for peer, interval, remaining in data[-self._capacity :]
        }
