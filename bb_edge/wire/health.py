"""Whether a peer answers (semantics §6 "Gates"): the table behind the PeerHealth gates.

    UP ──`threshold` failures in a row │ down()──► DOWN ──success()──► UP

A failure is a request unanswered at its deadline, or a refusal by the broker; a success any authenticated
envelope of the peer, or its presence. A peer nobody has heard of is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId

DOWN = -1
"""Stands for the count of failures of a peer that is down."""


class HealthError(BBError):
    """A threshold that cannot be."""


class PeerHealth:
    """Failures in a row, per peer that has any.

    Bounded: beyond `capacity` the oldest trouble is forgotten.
    """

    __slots__ = ("_capacity", "_failures", "_threshold", "forgotten")

    def __init__(self, threshold: int = 5, capacity: int = 1024) -> None:
        """`threshold` failures in a row, at least 1, take a peer down; `capacity` bounds those in trouble."""
        self._capacity = capacity
        self._failures: dict[PeerId, int] = {}
        self.forgotten = 0  # peers whose trouble was forgotten for want of room
        self.threshold = threshold

    @property
    def threshold(self) -> int:
        return self._threshold

    @threshold.setter
    def threshold(self, value: int) -> None:
        """May change at run time; HealthError below 1. Peers are judged by it at their next failure."""
        if value < 1:
            raise HealthError(f"threshold = {value}", "PeerHealth", "at least 1")
        self._threshold = value

    def success(self, peer: PeerId) -> bool:
        """The peer was heard. True where that brings it up again."""
        if not self._failures:
            return False
        return self._failures.pop(peer, 0) == DOWN

    def failure(self, peer: PeerId) -> bool:
        """The peer failed us. True where that takes it down."""
        count = self._failures.get(peer, 0)
        if count == DOWN:
            return False
        count += 1
        if count >= self._threshold:
            count = DOWN
        self._set(peer, count)
        return count == DOWN

    def down(self, peer: PeerId) -> bool:
        """The peer said that it goes, or the broker did. True where it was up."""
        if self._failures.get(peer) == DOWN:
            return False
        self._set(peer, DOWN)
        return True

    def is_up(self, peer: PeerId) -> bool:
        return self._failures.get(peer, 0) != DOWN

    def _set(self, peer: PeerId, count: int) -> None:
        failures = self._failures
        if peer not in failures and len(failures) >= self._capacity:
            # Prefer to forget somebody who is still up: that loses a count only.
            victim = next((p for p, n in failures.items() if n != DOWN), next(iter(failures)))
            del failures[victim]
            self.forgotten += 1
        failures[peer] = count

    def snapshot(self) -> dict[str, Any]:
        """Plain values for CBOR."""
        return {
            "threshold": self._threshold,
            "failures": [[peer.to_bytes(), count] for peer, count in self._failures.items()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        self.threshold = data["threshold"]
        rows: Sequence[tuple[bytes, int]] = data["failures"]
        self._failures = {PeerId.from_bytes(peer): count for peer, count in rows[-self._capacity :]}
