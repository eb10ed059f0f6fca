"""When a peer may be tried again (semantics §6 "Gates", "Back-pressure"): the table behind the Backoff gates.

A failure makes the peer wait 10 ms, each further one twice as long, 60 s at most. When the wait is over, one
probe may go; unless it succeeds, the next one waits for another interval. A peer that asks for patience (a
back-off notice) gets it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bb_edge.ir.ids import PeerId

MS = 1_000_000
S = 1_000_000_000


class Backoff:
    """Waits, per peer that has one. Bounded: beyond `capacity` the wait that ends first is forgotten."""

    __slots__ = ("_capacity", "_first_ns", "_longest_ns", "_waits", "forgotten")

    def __init__(self, first_ns: int = 10 * MS, longest_ns: int = 60 * S, capacity: int = 1024) -> None:
        self._first_ns = first_ns
        self._longest_ns = longest_ns
        self._capacity = capacity
        self._waits: dict[PeerId, tuple[int, int]] = {}  # peer -> (interval, when the next try may go)
        self.forgotten = 0  # waits that were forgotten for want of room

    def ready(self, peer: PeerId, now_ns: int) -> bool:
        """Whether something may be sent to the peer now; pure. Whoever then sends calls `probed`."""
        if not self._waits:
            return True
        wait = self._waits.get(peer)
        return wait is None or now_ns >= wait[1]

    def probed(self, peer: PeerId, now_ns: int) -> None:
        """Something went to a peer that was waited for: nothing more within this interval."""
        wait = self._waits.get(peer)
        if wait is not None:
            self._waits[peer] = (wait[0], now_ns + wait[0])

    def failed(self, peer: PeerId, now_ns: int) -> None:
        """Doubles the peer's interval and waits for it."""
        wait = self._waits.get(peer)
        interval = self._first_ns if wait is None else min(2 * wait[0], self._longest_ns)
        self._set(peer, interval, now_ns + interval)

    def impose(self, peer: PeerId, now_ns: int, at_least_ns: int) -> None:
        """The peer asked to be left alone for `at_least_ns`; `longest_ns` bounds what it can ask for."""
        interval = max(self._first_ns, min(at_least_ns, self._longest_ns))
        wait = self._waits.get(peer)
        if wait is None:
            self._set(peer, interval, now_ns + interval)
        else:
            self._set(peer, max(wait[0], interval), max(wait[1], now_ns + interval))

    def succeeded(self, peer: PeerId) -> None:
        """Ends the peer's wait."""
        self._waits.pop(peer, None)

    def next(self, peer: PeerId) -> int:
        """When the peer may be tried again, monotonic nanoseconds; 0 where it need not be waited for."""
        wait = self._waits.get(peer)
        return 0 if wait is None else wait[1]

    def _set(self, peer: PeerId, interval: int, until_ns: int) -> None:
        waits = self._waits
        if peer not in waits and len(waits) >= self._capacity:
            del waits[min(waits, key=lambda p: waits[p][1])]
            self.forgotten += 1
        waits[peer] = (interval, until_ns)

    def snapshot(self, now_ns: int) -> list[list[Any]]:
        """[peer, interval, remaining wait] rows for CBOR."""
        return [
            [peer.to_bytes(), interval, max(until - now_ns, 0)]
            for peer, (interval, until) in self._waits.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]], now_ns: int) -> None:
        self._waits = {
            PeerId.from_bytes(peer): (interval, now_ns + remaining)
            for peer, interval, remaining in data[-self._capacity :]
        }
