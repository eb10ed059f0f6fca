"""Who may start something here: peers of the class that the wire edge names, whose program goes with this
node's.

A class is believed by the topic of a presence, and presences come apart from envelopes: an entry of a peer
that is not known in its class is left unacknowledged at first, so that it comes again, and refused once the
class has had time to show: for good where the peer is known in another class; one of whom nothing is known
is taken when it repeats it behind its presence.

Of a class that aggregates, and that nobody chooses among, one peer should ask: several by turns are named.

Rule W18 of the specification.
"""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.net.arrivals import Arrival, Refusal
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.routing import Routing
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.envelope import Envelope

CLASS_NS = 2_000_000_000
"""How long a presence may come after the envelope that it belongs to: retained ones come with the
subscription, in well under a second."""


TURNS = 2
"""So often has a peer asked again behind another one: a server that takes over from another asks once."""
MOST = 8
"""Peers of a class that are compared."""


class Asking:
    """The peers of one class that ask this node, the last one, and who was told of."""

    __slots__ = ("last", "told", "turns")

    def __init__(self, first: PeerId) -> None:
        self.last = first
        self.turns: dict[PeerId, int] = {first: 0}
        self.told: set[PeerId] = set()

    def turn(self, peer: PeerId, together: bool) -> bool:
        """Another peer than the last one asks; `together` says that both are up.

        Returns whether they ask by turns, and were not told of yet.
        """
        known = self.turns.get(peer)
        if known is None:
            forget_oldest(self.turns, MOST)
        turns = self.turns[peer] = known + 1 if known is not None and together else 0
        other, self.last = self.last, peer
        if turns < TURNS or not self.turns.get(other) or {peer, other} <= self.told or len(self.told) >= MOST:
            return False
        self.told |= {peer, other}
        return True


class Senders:
    """Asked of every envelope that would start an execution or call a component."""

    def __init__(self, runtime: Runtime, peers: PeerStates, routing: Routing) -> None:
        self._runtime = runtime
        self._peers = peers
        self._routing = routing
        self._unknown: dict[PeerId, int] = {}  # since when a peer is not known in the class that it needs
        self._asking: dict[str, Asking] = {}  # by class
        self.last: PeerId | None = None
        """Who asked last: what it asks next is not a turn."""

    def refuse(self, arrival: Arrival, now_ns: int) -> Refusal | None:
        """Why this peer may not send this, if so."""
        peer, peers = arrival.raw.peer, self._peers
        if peers.programs.strangers and peer in peers.programs.strangers:
            return Refusal.OTHER_PROGRAM
        if not peers.are_told or peer == self._runtime.own_peer:
            return None
        port = self._routing.port_of(arrival.message)
        if port is None or not port.sender_class:
            return None
        presence = peers.presences.get(peer)
        if presence is not None and port.sender_class in presence.classes:
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
        port = self._routing.port_of(arrival.message)
        assert port is not None, "another class is refused at a port alone"
        return f"it is not known as a {port.sender_class}"

    def starts(self, peer: PeerId, message: Envelope) -> None:
        """An envelope of the peer is taken that starts an execution: says so where two ask by turns."""
        if message.kind != envelope.REQUEST or peer == self._runtime.own_peer:
            return
        self.last = peer
        port = self._routing.port_of(message)
        peer_class = port.sender_class if port is not None and port.sole else ""
        asking = self._asking.get(peer_class)
        if asking is None:
            if peer_class:
                self._asking[peer_class] = Asking(peer)
            return
        other = asking.last
        if peer == other:
            return
        if asking.turn(peer, self._is_there(peer) and self._is_there(other)):
            self._runtime.count("peers.asking_by_turns")
            self._runtime.emit(steps.AskedByTurns(peer, other, peer_class, REMEDY))

    def _is_there(self, peer: PeerId) -> bool:
        presence = self._peers.presences.get(peer)
        return presence is not None and presence.up


REMEDY = (
    "stop the one that should not be there, if so: without access rules at the broker whoever says that"
    " it is of the class is believed. docs/how-to/operations.md, The broker"
)
