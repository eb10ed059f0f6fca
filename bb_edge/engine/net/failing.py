"""Peers that are up and do not answer: who is failing, and when one is tried again.

Rule E21 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.answering import PeerAnswers


class Failing:
    """The table of `bb_edge.wire.answering`, with its steps and counters. Nobody else writes it."""

    def __init__(self, runtime: Runtime, may_ask_again: Callable[[PeerId], None]) -> None:
        """`may_ask_again` is given each peer that a request may wait for again."""
        self._runtime = runtime
        self._may_ask_again = may_ask_again
        self.answers = PeerAnswers(runtime.config.failing_threshold, runtime.config.max_peers)

    def __bool__(self) -> bool:
        return self.answers.any_failing

    def __contains__(self, peer: PeerId) -> bool:
        return self.answers.is_failing(peer)

    def may_ask(self, peer: PeerId) -> bool:
        """Whether the peer is not failing, may be tried now, or has answered a trial."""
        return self.answers.may_ask(peer, self._runtime.now_ns)

    def on_trial(self, peer: PeerId) -> bool:
        """Whether nobody waits for the peer."""
        return self.answers.on_trial(peer)

    def tried(self, peer: PeerId) -> None:
        """A failing peer is asked: the next trial waits longer."""
        self.answers.tried(peer, self._runtime.now_ns)

    def judge(self, accepted: Iterable[PeerId], blamed: Iterable[PeerId]) -> None:
        """A request is over: whose answers count, and who was waited for in vain."""
        for peer in accepted if self.answers.any_unanswered else ():
            if self.answers.accepted(peer):
                self._tell(peer, False)
                self._may_ask_again(peer)
        for peer in blamed:
            if self.answers.left_unanswered(peer, self._runtime.now_ns):
                self._runtime.count("peers.failing")
                self._tell(peer, True)

    def answered_late(self, peer: PeerId) -> None:
        """An answer has come to a trial whose request is over: nobody knows whether it would have counted,
        so that the peer is still failing, and the next request waits for it.
        """
        if self.answers.late(peer):
            self._may_ask_again(peer)

    def _tell(self, peer: PeerId, failing: bool) -> None:
        self._runtime.emit(steps.PeerFailing(peer, failing))
