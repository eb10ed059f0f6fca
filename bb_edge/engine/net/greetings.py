"""Asks peers of which nothing ever came for a sign of life, while presences alone are not believed.

A greeting is an answer to no request, without a fill. Every version of the runtime acknowledges it, and does
nothing else. It is not repeated by itself, and a broker drops it that nobody reads from in time.
"""

from __future__ import annotations

from collections.abc import Collection

from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.backoff import S

LIFE_NS = 60 * S
"""How long a greeting is worth delivering: as long as a slow link is busy with a model of some megabytes."""
TICK_NS, AT_ONCE = S, 400
"""So many greetings in so long: mosquitto's queue holds 1,000 answers for a node that is busy."""


class Greetings:
    """The greetings of a node; `Unheard` decides whether and whom."""

    def __init__(self, runtime: Runtime, outgoing: Outgoing, peers: PeerStates) -> None:
        self._runtime = runtime
        self._outgoing = outgoing
        self._peers = peers
        runtime.callbacks.register("peers.greet", self._greet)

    def judge(self, accepted: Collection[PeerId], blamed: Collection[PeerId]) -> None:
        """A request is over: whose answers count, and who was waited for in vain."""
        if self._peers.unheard.judge(len(accepted), blamed):
            self._greet(self._runtime.now_ns)

    def _greet(self, now_ns: int) -> None:
        peers = self._peers
        greet: list[PeerId] = []
        silent: list[PeerId] = []
        if peers.uplink.connected:
            greet, silent = peers.unheard.due(peers.presences.present(), AT_ONCE)
        else:
            peers.unheard.begin_again()  # nothing of what they may say comes
        for peer in silent:
            peers.fell_silent(peer)
        for peer in greet:
            self._outgoing.greet(peer, LIFE_NS)
        if greet:
            self._runtime.count("peers.greeted", len(greet))
        if peers.unheard.are_greeted:
            self._runtime.timers.at(now_ns + TICK_NS, self._greet, reserved=True)
