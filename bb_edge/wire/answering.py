"""Whether peers answer what they are asked, apart from whether they are heard at all.

A peer that acknowledges requests and does not answer them is up, by its presence and by its envelopes. When
`threshold` of its last `3 * threshold + 1` requests have no answer that counts, it is *failing*: five of
sixteen, so that whoever leaves one request in three or more costs five deadlines and not more. Then it is
not selected, and is tried once per back-off without being waited for; its other traffic goes on. What it
answers to a trial may come when nobody needs it any more, and nobody has looked at it then: the next request
waits for the peer, once. Only an answer that counts ends the state; one request that the peer leaves within
the next `3 * threshold` makes it failing again.
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
    """It is the last of `threshold` among the latest requests."""
    LATE = 3
    """An answer has come that nobody waited for any more, to a failing peer's trial."""


_ANSWERING, _FAILING, _PROBATION = AnsweringState

_ON_PROBATION: Final = -1
"""Stands for the history of a peer on probation; snapshots hold it, so it does not change."""

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
    """What became of the latest requests to each peer that has left one of them unanswered.

    A history is a number: one bit for each request, the latest lowest, set where no answer counted.
    Bounded: beyond `capacity` peers, the one that has had such requests for longest is forgotten.
    """

    __slots__ = ("_capacity", "_histories", "_latest", "_threshold", "_trials", "forgotten")

    def __init__(self, threshold: int = 5, capacity: int = 1024) -> None:
        """`threshold` unanswered requests make a peer failing: a device that is broken, or answers every
        other request, costs five rounds their deadline, and one that restarts costs itself nothing.
        """
        self._threshold = threshold
        self._latest = (1 << 3 * threshold + 1) - 1
        self._capacity = capacity
        self._trials = Backoff(capacity=capacity)
        self._histories: dict[PeerId, int] = {}
        self.forgotten = 0  # peers whose histories were forgotten because there was no space left

    @property
    def any_failing(self) -> bool:
        """Whether there are failing peers."""
        histories = self._histories
        return bool(histories) and any(self._fails(history) for history in histories.values())

    @property
    def any_unanswered(self) -> bool:
        """Whether any peer has left one of its latest requests unanswered."""
        return bool(self._histories)

    def unanswered(self, peer: PeerId) -> int:
        """Returns how many of the peer's latest requests have no answer that counts, `threshold` at most."""
        history = self._histories.get(peer, 0)
        return self._threshold if history == _ON_PROBATION else history.bit_count()

    def is_failing(self, peer: PeerId) -> bool:
        """Returns whether the peer has left `threshold` requests, with no answer that counts since."""
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
        history = self._histories.get(peer, 0)
        if self._fails(history):
            history = (1 << self._threshold - 1) - 1
        return self._turn(peer, AnsweringEvent.ACCEPTED, history << 1 & self._latest)

    def late(self, peer: PeerId) -> bool:
        """Takes note of an answer to a trial, which the next request decides about.

        Returns whether one may wait for the peer now that might not before.
        """
        history = self._histories.get(peer, 0) if self._state(peer) is _ANSWERING else _ON_PROBATION
        return self._turn(peer, AnsweringEvent.LATE, history)

    def left_unanswered(self, peer: PeerId, now_ns: int) -> bool:
        """Takes note of a request without an answer that counts. Returns whether that makes it failing."""
        before = self._state(peer)
        history = (self._histories.get(peer, 0) << 1 | 1) & self._latest
        fails = before is not _ANSWERING or self._fails(history)
        out = fails and before is _ANSWERING
        if out or before is _PROBATION:
            self._trials.failed(peer, now_ns)
        event = AnsweringEvent.UNANSWERED_OUT if out else AnsweringEvent.UNANSWERED
        self._turn(peer, event, (1 << self._threshold) - 1 if fails else history)
        return out

    def _fails(self, history: int) -> bool:
        return history == _ON_PROBATION or history.bit_count() >= self._threshold

    def _state(self, peer: PeerId) -> AnsweringState:
        history = self._histories.get(peer, 0)
        if history == _ON_PROBATION:
            return _PROBATION
        return _FAILING if self._fails(history) else _ANSWERING

    def _turn(self, peer: PeerId, event: AnsweringEvent, history: int) -> bool:
        """Moves on by the table; returns whether that changed the peer's state."""
        before = self._state(peer)
        after = ANSWERING.next(before, event)
        if not history:
            self._trials.succeeded(peer)  # and not before: who fails once more soon waits on
            self._histories.pop(peer, None)
        else:
            if peer not in self._histories:
                self.forgotten += forget_oldest(self._histories, self._capacity)
            self._histories[peer] = history
        return after is not before

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Returns plain values for CBOR: [peer, history] rows, and the waits for trials."""
        return {
            "histories": [[peer.to_bytes(), history] for peer, history in self._histories.items()],
            "trials": self._trials.snapshot(now_ns),
        }

    def restore(self, data: Any, now_ns: int) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay.

        A list is from before there were histories: rows of [peer, count], and the waits.
        """
        if isinstance(data, dict):
            rows, trials = data["histories"], data["trials"]
        else:
            counts, trials = data
            rows = [[peer, (1 << count) - 1 if count > 0 else count] for peer, count in counts]
        self._histories = {PeerId.from_bytes(peer): row for peer, row in rows[-self._capacity :]}
        self._trials.restore(trials, now_ns)
