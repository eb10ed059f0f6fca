"""Peers that found no place: told at once, and then more and more seldom, with how many they were."""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.places import PeersFullError

FIRST_NS, LONGEST_NS = 10_000_000_000, 600_000_000_000
"""Between two steps: the first wait, doubling up to the longest: who sends one presence can send more."""


class Refusals:
    """The presences that a full table refused. Nothing of it is saved: a restart tells it again."""

    __slots__ = ("_last_ns", "_next_ns", "_runtime", "_untold", "_wait_ns")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._untold = 0
        self._wait_ns = FIRST_NS
        self._last_ns = 0
        self._next_ns = 0

    def refused(self, peer: PeerId, error: PeersFullError) -> None:
        """Counts a presence for which there was no place, and tells it where it is time."""
        now_ns = self._runtime.now_ns
        self._runtime.count("peers.refused")
        self._untold += 1
        if now_ns - self._last_ns > 2 * self._wait_ns:
            self._wait_ns = FIRST_NS
        self._last_ns = now_ns
        if now_ns >= self._next_ns:
            self._runtime.emit(steps.PeerRefused(peer, self._untold, error.what, error.hint))
            self._untold = 0
            self._next_ns = now_ns + self._wait_ns
            self._wait_ns = min(self._wait_ns * 2, LONGEST_NS)
