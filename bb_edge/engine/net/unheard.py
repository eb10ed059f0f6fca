"""Peers of which nothing has ever come but a presence, and whether they are greeted before they are asked.

Where everybody may publish, a presence does not prove that somebody is there. As long as those who are asked
answer, presences are believed. Once more peers of which nothing ever came have been waited for in vain than
answers have counted meanwhile, and `FEW` besides, selectors see the peers alone of which something has come;
the others are greeted (`greetings.py`), and one that acknowledges that is seen again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.backoff import S
from bb_edge.wire.delivery import Links

FEW = 8
"""So many peers that are not there are borne: a few devices that went without a word, and their wills too."""
FIRST_NS, LONGEST_NS = 10 * S, 600 * S
"""From one greeting to the next: the first wait, in which an answer comes, doubling up to the longest."""
SILENT_NS = 2 * FIRST_NS
"""The wait in which a second greeting must be answered: the first may stand in line behind a large model."""


class Unheard:
    """Who has never been heard of, and when each is greeted next. Nobody else writes it."""

    def __init__(self, runtime: Runtime, links: Links) -> None:
        """`links` tell of which peers any envelope has come."""
        self._runtime = runtime
        self._note_heard, self._heard_of = links.note_heard, links.heard_of
        self._missed: dict[PeerId, None] = {}  # waited for in vain, less one for each answer since
        self._greeted: dict[PeerId, tuple[int, int]] = {}  # (wait, when the next greeting is due)
        self.are_greeted = False
        """Whether peers are greeted before they are selected."""

    def judge(self, accepted: int, blamed: Iterable[PeerId]) -> bool:
        """A request is over: how many answers count, and who was waited for in vain.

        Returns whether peers are to be greeted from now on.
        """
        if self.are_greeted:
            return False
        missed = self._missed
        for peer in blamed:
            if len(missed) < self._runtime.config.max_peers and not self._heard_of(peer):
                missed[peer] = None
        for peer in list(islice(missed, accepted)) if missed else ():
            del missed[peer]
        if len(missed) <= FEW:
            return False
        self._turn(True, len(missed))
        return True

    def heard(self, peer: PeerId) -> bool:
        """Something of the peer has come, while peers are greeted. Returns whether it had been waited for."""
        self._note_heard(peer)
        return self._greeted.pop(peer, None) is not None

    def come(self, peer: PeerId) -> None:
        """The peer's presence says that it is up, after it was not: it is greeted at once."""
        self._greeted.pop(peer, None)

    def begin_again(self) -> None:
        """Who was greeted is greeted as for the first time."""
        self._greeted.clear()

    def visible(self, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
        """Those that selectors see: the node itself, and peers of which something has come."""
        own, heard_of = self._runtime.own_peer, self._heard_of
        return tuple(peer for peer in peers if peer == own or heard_of(peer))

    def due(self, present: Iterable[PeerId], most: int) -> tuple[list[PeerId], list[PeerId]]:
        """Whom to greet now, `most` at most, and which of them have just left a second greeting unanswered.

        `present` are all peers whose presence says up. Where few of them are unheard, it is over: presences
        are believed again.
        """
        now_ns = self._runtime.now_ns
        unheard = [peer for peer in present if not self._heard_of(peer)]
        if len(unheard) <= FEW:
            self._turn(False, len(unheard))
            return [], []
        greet, silent = [], []
        for peer in unheard:
            wait_ns, due_ns = self._greeted.get(peer, (0, 0))
            if due_ns > now_ns:
                continue
            if wait_ns == SILENT_NS:
                silent.append(peer)
            wait_ns = min(2 * wait_ns or FIRST_NS, LONGEST_NS)
            self._greeted[peer] = wait_ns, now_ns + wait_ns
            greet.append(peer)
            if len(greet) == most:
                break
        if len(self._greeted) > 2 * len(unheard):  # those that have gone
            self._greeted = {peer: self._greeted[peer] for peer in unheard if peer in self._greeted}
        return greet, silent

    def _turn(self, on: bool, peers: int) -> None:
        self.are_greeted = on
        self._missed.clear()
        self._greeted.clear()
        self._runtime.emit(steps.PeersUnheard(peers, on, WHY if on else ""))

    def save(self) -> bool:
        """Whether peers are greeted; who was is told by nobody: they are greeted anew."""
        return self.are_greeted

    def restore(self, plain: object) -> None:
        """Takes what `save` gave."""
        self.are_greeted = bool(plain)


WHY = (
    "peers that never answered anything fail, so they are greeted before they are asked:"
    " are access rules in force at the broker? docs/how-to/operations.md, The broker"
)
"""What to do about it: the runtime cannot know who may publish."""
