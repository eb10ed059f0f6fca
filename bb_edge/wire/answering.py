"""Whether peers answer what they are asked, apart from whether they are heard at all.

A peer that acknowledges requests and does not answer them is up, by its presence and by its envelopes. Each
request without an answer that counts adds one to its count, each with one takes one away: whoever leaves more
than half of what it is asked comes to `threshold`, and is *failing*. Then it is not selected, and is tried
once per back-off without being waited for; its other traffic goes on. What it answers to a trial may come
when nobody needs it any more, and nobody has looked at it then: the next request waits for the peer, once.
Only an answer that counts ends the state, and the count goes on from one below `threshold`.
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
    PROBATION = 2
    """It is failing, and has answered a trial: the next request waits for it."""


class AnsweringEvent(enum.IntEnum):
    """How a request to a peer ends."""

    ACCEPTED = 0
    UNANSWERED = 1
    """It has no answer that counts, and may leave more requests so before the peer is failing."""
    UNANSWERED_OUT = 2
    """It brings the count to `threshold`."""
    LATE = 3
    """An answer has come that nobody waited for any more, to a failing peer's trial."""


_ANSWERING, _FAILING, _PROBATION = AnsweringState

_ON_PROBATION: Final = -1
"""Stands for the count of a peer on probation; snapshots hold it, so it does not change."""

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
        (_FAILING, AnsweringEvent.LATE): _PROBATION,
        (_PROBATION, AnsweringEvent.ACCEPTED): _ANSWERING,
        (_PROBATION, AnsweringEvent.UNANSWERED): _FAILING,
        (_PROBATION, AnsweringEvent.LATE): _PROBATION,
    },
)


class PeerAnswers:
    """Counts requests that ended without an answer which counts, less those with one, where that is above 0.

    Bounded: beyond `capacity` peers, the one that has had such requests for longest is forgotten.
    """

    __slots__ = ("_capacity", "_counts", "_threshold", "_trials", "forgotten")

    def __init__(self, threshold: int = 5, capacity: int = 1024) -> None:
        """`threshold` unanswered requests make a peer failing: a broken device costs five rounds their
        deadline, one that answers one in five costs six, and one that restarts costs itself nothing.
        """
        self._threshold = threshold
        self._capacity = capacity
        self._trials = Backoff(capacity=capacity)
        self._counts: dict[PeerId, int] = {}
        self.forgotten = 0  # peers whose counts were forgotten because there was no space left

    @property
    def any_failing(self) -> bool:
        """Whether there are failing peers."""
        counts = self._counts
        return bool(counts) and any(count >= self._threshold or count < 0 for count in counts.values())

    @property
    def any_unanswered(self) -> bool:
        """Whether any peer has a count above 0."""
        return bool(self._counts)

    def unanswered(self, peer: PeerId) -> int:
        """Returns the peer's count, `threshold` at most."""
        count = self._counts.get(peer, 0)
        return self._threshold if count == _ON_PROBATION else count

    def is_failing(self, peer: PeerId) -> bool:
        """Returns whether the peer's count has come to `threshold`, with no answer that counts since."""
        return self._state(peer) is not _ANSWERING

    def on_trial(self, peer: PeerId) -> bool:
        """Returns whether nobody waits for the peer."""
        return self._state(peer) is _FAILING

    def may_ask(self, peer: PeerId, now_ns: int) -> bool:
        """Returns whether the peer may be asked now; whoever asks one that is `on_trial` calls `tried`."""
        return self._state(peer) is not _FAILING or self._trials.ready(peer, now_ns)

    def tried(self, peer: PeerId, now_ns: int) -> None:
        """A failing peer is asked: the next trial waits twice as long as this one has."""
        self._trials.failed(peer, now_ns)

    def next_trial(self, peer: PeerId) -> int:
        """Returns when a failing peer may be tried, in monotonic nanoseconds; 0 for others."""
        return self._trials.next(peer) if self._state(peer) is _FAILING else 0

    def restarted(self, peer: PeerId) -> None:
        """The peer has come up: if it is failing, it may be tried at once."""
        self._trials.succeeded(peer)

    def accepted(self, peer: PeerId) -> bool:
        """Takes note of an answer that counts. Returns whether the peer was failing."""
        return self._turn(peer, AnsweringEvent.ACCEPTED, max(self.unanswered(peer) - 1, 0))

    def late(self, peer: PeerId) -> bool:
        """Takes note of an answer to a trial, which the next request decides about.

        Returns whether one may wait for the peer now that might not before.
        """
        count = self._counts.get(peer, 0) if self._state(peer) is _ANSWERING else _ON_PROBATION
        return self._turn(peer, AnsweringEvent.LATE, count)

    def left_unanswered(self, peer: PeerId, now_ns: int) -> bool:
        """Takes note of a request without an answer that counts. Returns whether that makes it failing."""
        before = self._state(peer)
        count = min(self.unanswered(peer) + 1, self._threshold)
        out = before is _ANSWERING and count == self._threshold
        if out or before is _PROBATION:
            self._trials.failed(peer, now_ns)
        self._turn(peer, AnsweringEvent.UNANSWERED_OUT if out else AnsweringEvent.UNANSWERED, count)
        return out

    def _state(self, peer: PeerId) -> AnsweringState:
        count = self._counts.get(peer, 0)
        if count == _ON_PROBATION:
            return _PROBATION
        return _FAILING if count >= self._threshold else _ANSWERING

    def _turn(self, peer: PeerId, event: AnsweringEvent, count: int) -> bool:
        """Moves on by the table; returns whether that changed the peer's state."""
        before = self._state(peer)
        after = ANSWERING.next(before, event)
        if not count:
            self._trials.succeeded(peer)  # and not before: who fails once more soon waits on
            self._counts.pop(peer, None)
        else:
            if peer not in self._counts:
                self.forgotten += forget_oldest(self._counts, self._capacity)
            self._counts[peer] = count
        return after is not before

    def snapshot(self, now_ns: int) -> list[Any]:
        """Returns plain values for CBOR: [peer, count] rows, and the waits for trials."""
        return [
            [[peer.to_bytes(), count] for peer, count in self._counts.items()],
            self._trials.snapshot(now_ns),
        ]

    def restore(self, data: Any, now_ns: int) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay."""
        counts, trials = data
        self._counts = {PeerId.from_bytes(peer): count for peer, count in counts[-self._capacity :]}
        self._trials.restore(trials, now_ns)
