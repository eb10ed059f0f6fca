"""Whether peers answer: the table behind the PeerHealth gates.

A failure is a request that was not answered by its deadline, or a refusal by the broker. A peer is heard when
an authenticated envelope of it arrives, or its presence. A peer that nobody has heard of counts as up.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table


class HealthState(enum.IntEnum):
    """Whether a peer is asked at all."""

    UP = 0
    DOWN = 1


class HealthEvent(enum.IntEnum):
    """What happens to a peer."""

    HEARD = 0
    FAILED = 1
    """It failed, and may fail again before it counts as down."""
    FAILED_OUT = 2
    """It failed `threshold` times in a row."""
    LEFT = 3
    """It said that it goes, or the broker did in its name."""


_UP, _DOWN = HealthState.UP, HealthState.DOWN

HEALTH: Final = Table(
    "peer health",
    _UP,
    {
        (_UP, HealthEvent.HEARD): _UP,
        (_UP, HealthEvent.FAILED): _UP,
        (_UP, HealthEvent.FAILED_OUT): _DOWN,
        (_UP, HealthEvent.LEFT): _DOWN,
        (_DOWN, HealthEvent.HEARD): _UP,
        (_DOWN, HealthEvent.FAILED): _DOWN,
        (_DOWN, HealthEvent.LEFT): _DOWN,
    },
)

DOWN_COUNT: Final = -1
"""Stands for the count of failures of a peer that is down; snapshots hold it, so it does not change."""


class HealthError(BBError):
    """A threshold below 1."""


class PeerHealth:
    """Counts failures in a row, per peer that has any.

    Bounded: beyond `capacity` peers, one that still counts as up is forgotten, else the one that has failures
    for longest.
    """

    __slots__ = ("_capacity", "_threshold", "failures", "forgotten")

    def __init__(self, threshold: int = 5, capacity: int = 1024) -> None:
        """`threshold` failures in a row take a peer down; `capacity` bounds the peers that have failures.

        A threshold of 5 survives the few requests that a broker's restart costs. 1024 peers is what the other
        tables about peers hold by default.
        """
        self._capacity = capacity
        self.failures: dict[PeerId, int] = {}
        """The count of each peer that has failed since it was heard last. To be read only."""
        self.forgotten = 0  # peers whose failures were forgotten because there was no space left
        self.threshold = threshold

    @property
    def threshold(self) -> int:
        """Failures in a row after which a peer counts as down."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: int) -> None:
        """May change at run time; peers are judged by it at their next failure. HealthError below 1."""
        if value < 1:
            raise HealthError(f"threshold = {value}", "PeerHealth", "give at least 1")
        self._threshold = value

    def success(self, peer: PeerId) -> bool:
        """Takes note that the peer was heard. Returns whether that brings it up again."""
        if not self.failures:
            return False
        count = self.failures.get(peer, 0)
        state = HEALTH.rows[_state_of(count), HealthEvent.HEARD]
        if state is _UP:
            self.failures.pop(peer, None)
        return state is not _state_of(count)

    def failure(self, peer: PeerId) -> bool:
        """Takes note that the peer failed. Returns whether that takes it down."""
        count = self.failures.get(peer, 0)
        before = _state_of(count)
        last = before is _UP and count + 1 >= self._threshold
        state = HEALTH.rows[before, HealthEvent.FAILED_OUT if last else HealthEvent.FAILED]
        self._set(peer, DOWN_COUNT if state is _DOWN else count + 1)
        return state is not before

    def down(self, peer: PeerId) -> bool:
        """Takes note that the peer left, by its own word or the broker's. Returns whether it was up."""
        before = _state_of(self.failures.get(peer, 0))
        state = HEALTH.rows[before, HealthEvent.LEFT]
        self._set(peer, DOWN_COUNT if state is _DOWN else 0)
        return state is not before

    def is_up(self, peer: PeerId) -> bool:
        """Returns whether the peer counts as up."""
        return self.failures.get(peer, 0) != DOWN_COUNT

    def _set(self, peer: PeerId, count: int) -> None:
        failures = self.failures
        if peer not in failures and len(failures) >= self._capacity:
            # Prefer to forget a peer that is still up: that loses a count only.
            victim = next((p for p, n in failures.items() if n != DOWN_COUNT), next(iter(failures)))
            del failures[victim]
            self.forgotten += 1
        failures[peer] = count

    def snapshot(self) -> dict[str, Any]:
        """Returns plain values for CBOR: the threshold, and [peer, failures in a row] rows."""
        return {
            "threshold": self._threshold,
            "failures": [[peer.to_bytes(), count] for peer, count in self.failures.items()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay."""
        self.threshold = data["threshold"]
        rows: Sequence[tuple[bytes, int]] = data["failures"]
        self.failures = {PeerId.from_bytes(peer): count for peer, count in rows[-self._capacity :]}


def _state_of(count: int) -> HealthState:
    return _DOWN if count == DOWN_COUNT else _UP
