"""What marks have a node do: it says them to peers, and tells what they show.

Who knows them says so in its presence. They go as they are, without a number: who asks repeats its question,
and everything else is an answer to one (docs/design/durable-protocol.md).
"""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.net import features
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.durable_flows import NoWindow, RolledBack, Say
from bb_edge.wire.envelope import Envelope


class Marks:
    """Carries out what the two machines of durable flows leave about marks."""

    def __init__(self, runtime: Runtime, peers: PeerStates, kept: bool) -> None:
        """A node whose state is `kept` says that it knows marks; any other exchanges none."""
        self._runtime = runtime
        self._peers = peers
        self._kept = kept
        if kept:
            peers.own_features.append(features.MARKS)

    def known_by(self, peer: PeerId) -> bool | None:
        """Whether marks are exchanged with a peer; None: its presence, which is to come, will tell.

        Not with the node itself: what it has said is put back together with what it has heard. A presence of
        the run before says that the peer knows marks, but not that it does not: it may have learned them.
        """
        if peer == self._runtime.own_peer or not self._kept:
            return False
        peers = self._peers
        presence = peers.presences.get(peer)
        if features.names(presence, features.MARKS):
            return True
        return None if peers.are_told and (presence is None or peers.presences.is_restored(peer)) else False

    def run_of(self, peer: PeerId) -> int | None:
        """The run that the peer's presence is of."""
        return self._peers.presences.epoch(peer)

    def carry_out(self, effect: Say | RolledBack | NoWindow) -> None:
        """Says marks to a peer, or tells what they have shown."""
        runtime = self._runtime
        if isinstance(effect, Say):
            self._say(effect)
        elif isinstance(effect, RolledBack):
            of_peer = effect.own is False
            runtime.count("peers.rolled_back" if of_peer else "marks.rolled_back")
            runtime.bus.publish(Bus.PEER_ROLLED_BACK if of_peer else Bus.STATE_ROLLED_BACK)
            runtime.emit(steps.StateRolledBack(*effect))
        else:
            runtime.count("peers.began_anew")
            runtime.bus.publish(Bus.PEER_BEGAN_ANEW)
            runtime.emit(steps.PeerBeganAnew(effect.peer, effect.high))

    def _say(self, said: Say) -> None:
        runtime = self._runtime
        if not self._peers.knows(said.peer) or self._peers.presences.is_down(said.peer):
            return  # the question comes again
        data = said.payload
        if runtime.local_addresses:  # the answer must find its way
            data += envelope.encode(Envelope(src_addresses=runtime.local_addresses))
        runtime.count("marks.sent")
        runtime.emit(steps.SendEnvelope(said.peer, data))
