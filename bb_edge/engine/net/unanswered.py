"""Decides what a passed deadline says of a peer: it did not answer, or this node could not ask it."""

from __future__ import annotations

from bb_edge.engine.net.never_left import NO_CONNECTION
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason


class Unanswered:
    """Judges peers whose answer has not come. Nobody else counts a failure for a request."""

    __slots__ = ("_outgoing", "_peers", "_runtime")

    def __init__(self, runtime: Runtime, outgoing: Outgoing, peers: PeerStates) -> None:
        self._runtime = runtime
        self._outgoing = outgoing
        self._peers = peers

    def judge(self, number: int, peer: PeerId, stretch: int, counter: str) -> tuple[MissingReason, bool]:
        """The deadline of a request to the peer, made in that stretch of the connection, has passed.

        Returns why the peer is missing, and whether that has taken it down. DEADLINE alone counts under
        `counter`, and is a failure of the peer, unless the connection has just come back.
        """
        never_left, uplink = self._outgoing.forget_ask(number), self._peers.uplink
        here = peer == self._runtime.own_peer
        if never_left or (uplink.lost_since(stretch) and not here):
            self._outgoing.unsent.not_sent(peer, never_left if uplink.connected else NO_CONNECTION)
            return MissingReason.NOT_SENT, False
        if here or (uplink.held_since(stretch) and uplink.reaches(peer)):
            self._runtime.count(counter)
            return MissingReason.DEADLINE, (here or uplink.blames(stretch, peer)) and self._peers.failed(peer)
        self._runtime.count("requests.offline")
        return MissingReason.OFFLINE, False
