"""Who may start something here: peers of the class that the wire edge names, whose program goes with this
node's.

A class is believed by the topic of a presence, and presences come apart from envelopes: an entry of a peer
that is not known in its class is left unacknowledged at first, so that it comes again, and refused once the
class has had time to show: for good where the peer is known in another class; one of whom nothing is known
is taken when it repeats it behind its presence.
"""

from __future__ import annotations

from bb_edge.engine.net.arrivals import Arrival, Refusal
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.routing import Routing
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.bounds import forget_oldest

CLASS_NS = 2_000_000_000
"""How long a presence may come after the envelope that it belongs to: retained ones come with the
subscription, in well under a second."""


class Senders:
    """Asked of every envelope that would start an execution or call a component."""

    def __init__(self, runtime: Runtime, peers: PeerStates, routing: Routing) -> None:
        self._runtime = runtime
        self._peers = peers
        self._routing = routing
        self._unknown: dict[PeerId, int] = {}  # since when a peer is not known in the class that it needs

    def refuse(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Why this peer may not send this, if so."""
        peer, peers = arrival.raw.peer, self._peers
        if peers.programs.strangers and peer in peers.programs.strangers:
            return Refusal.OTHER_PROGRAM
        if not peers.are_told or peer == self._runtime.own_peer:
            return None
        wanted = self._routing.sender_class(arrival.message)
        if not wanted:
            return None
        presence = peers.presences.get(peer)
        if presence is not None and wanted in presence.classes:
            if self._unknown:
                self._unknown.pop(peer, None)
            return None
        since = self._unknown.get(peer)
        if since is None:
            forget_oldest(self._unknown, self._runtime.config.max_peers)
            since = self._unknown[peer] = now_ns
        return Refusal.CLASS_MISMATCH if now_ns - since >= CLASS_NS else Refusal.CLASS_UNTOLD

    def why(self, refusal: Refusal, arrival: Arrival) -> str:
        """What the peer, and the log, are told."""
        if refusal is Refusal.OTHER_PROGRAM:
            return self._peers.programs.why(arrival.raw.peer)
        return f"it is not known as a {self._routing.sender_class(arrival.message)}"
