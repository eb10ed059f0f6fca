"""Whether peers answer what they are asked, apart from whether they are heard at all.

A peer that acknowledges requests and never answers them is up, by its presence and by its envelopes. It is
*failing* once it has left `threshold` requests in a row without an answer that counts. Then it is not
selected, and is tried once per back-off without being waited for; its other traffic goes on.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire.backoff import Backoff
from bb_edge.wire.bounds import forget_oldest


class AnsweringState(enum.IntEnum):
    """Whether a peer is asked as a matter of course."""

    ANSWERING = 0
    FAILING = 1


class AnsweringEvent(enum.IntEnum):
    """How a request to a peer ends."""

    ACCEPTED = 0
    UNANSWERED = 1
    """It has no answer that counts, and may leave more requests so before the peer is failing."""
    UNANSWERED_OUT = 2
    """It is the `threshold`th in a row."""
    LATE = 3
    """An answer has come that nobody waited for any more, to a failing peer's trial."""


_ANSWERING, _FAILING = AnsweringState.ANSWERING, AnsweringState.FAILING

ANSWERING: Final = Table(
    "peer's answers",
    _ANSWERING,
    {
        (_ANSWERING, AnsweringEvent.ACCEPTED): _ANSWERING,
        (_ANSWERING, AnsweringEvent.UNANSWERED): _ANSWERING,
        (_ANSWERING, AnsweringEvent.UNANSWERED_OUT): _FAILING,
        (_ANSWERING, AnsweringEvent.LATE): _ANSWERING,
        (_FAILING, AnsweringEvent.ACCEPTED): _ANSWERING,
        (_FAILING, AnsweringEvent.UNANSWERED): _FAILING,
        (_FAILING, AnsweringEvent.LATE): _ANSWERING,
    },
)


class PeerAnswers:
    """Counts requests in a row that ended without an answer which counts, per peer that has any.

    Bounded: beyond `capacity` peers, the one that has had such requests for longest is forgotten.
    """

    __slots__ = ("_capacity", "_threshold", "_trials", "forgotten", "unanswered")

    def __init__(self, threshold: int = 5, capacity: int = 1024) -> None:
        """`threshold` unanswered requests in a row make a peer failing: a broken device costs five rounds
        their deadline, and one that restarts costs itself nothing.
        """
        self._threshold = threshold
        self._capacity = capacity
        self._trials = Backoff(capacity=capacity)
        self.unanswered: dict[PeerId, int] = {}
        """The count of each peer since its last answer that counted. To be read only."""
        self.forgotten = 0  # peers whose counts were forgotten because there was no space left

    @property
    def any_failing(self) -> bool:
        """Whether there are failing peers."""
        return any(count >= self._threshold for count in self.unanswered.values())

    def is_failing(self, peer: PeerId) -> bool:
        """Returns whether the peer is asked only on trial."""
        return self._state(peer) is _FAILING

    def may_try(self, peer: PeerId, now_ns: int) -> bool:
        """Returns whether a failing peer may be tried now; whoever does calls `tried`."""
        return self._trials.ready(peer, now_ns)

    def tried(self, peer: PeerId, now_ns: int) -> None:
        """A failing peer is asked: the next trial waits twice as long as this one has."""
        self._trials.failed(peer, now_ns)

    def restarted(self, peer: PeerId) -> None:
        """The peer has come up: if it is failing, it may be tried at once."""
        self._trials.succeeded(peer)

    def accepted(self, peer: PeerId) -> bool:
        """Takes note of an answer that counts. Returns whether the peer was failing."""
        return self._turn(peer, AnsweringEvent.ACCEPTED, 0)

    def late(self, peer: PeerId) -> bool:
        """Takes note of an answer to a trial: the next request decides. Returns whether it was failing."""
        return self._turn(peer, AnsweringEvent.LATE, min(self.unanswered.get(peer, 0), self._threshold - 1))

    def left_unanswered(self, peer: PeerId, now_ns: int) -> bool:
        """Takes note of a request without an answer that counts. Returns whether that makes it failing."""
        count = self.unanswered.get(peer, 0) + 1
        out = count == self._threshold
        if out:
            self._trials.failed(peer, now_ns)
        event = AnsweringEvent.UNANSWERED_OUT if out else AnsweringEvent.UNANSWERED
        return self._turn(peer, event, min(count, self._threshold))

    def _state(self, peer: PeerId) -> AnsweringState:
        return _FAILING if self.unanswered.get(peer, 0) >= self._threshold else _ANSWERING

    def _turn(self, peer: PeerId, event: AnsweringEvent, count: int) -> bool:
        """Moves on by the table; returns whether that changed the peer's state."""
        before = self._state(peer)
        after = ANSWERING.next(before, event)
        if after is not _FAILING:
            self._trials.succeeded(peer)
        if not count:
            self.unanswered.pop(peer, None)
        else:
            if peer not in self.unanswered:
                self.forgotten += forget_oldest(self.unanswered, self._capacity)
            self.unanswered[peer] = count
        return after is not before

    def snapshot(self, now_ns: int) -> list[Any]:
        """Returns plain values for CBOR: [peer, count] rows, and the waits for trials."""
        return [
            [[peer.to_bytes(), count] for peer, count in self.unanswered.items()],
            self._trials.snapshot(now_ns),
        ]

    def restore(self, data: Any, now_ns: int) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay."""
        counts, trials = data
        self.unanswered = {PeerId.from_bytes(peer): count for peer, count in counts[-self._capacity :]}
        self._trials.restore(trials, now_ns)
