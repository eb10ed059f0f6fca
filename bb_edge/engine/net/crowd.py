"""Many peers that are first heard of at once, as a simulation tells them.

What the tables know then is what `PeerStates.presence` of one after the other would have come to; each table
takes all of them in one step, where that costs a fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import peer_address
from bb_edge.ir.ids import PeerId
from bb_edge.wire.delivery import Links
from bb_edge.wire.presence import Presence

Present = Sequence[tuple[PeerId, int, int]]
"""The id, epoch and session of each peer."""


class Crowd:
    """Takes presences of many peers that say the same of themselves."""

    __slots__ = ("_ingress", "_links", "_peers", "_runtime")

    def __init__(self, runtime: Runtime, links: Links, peers: PeerStates, ingress: Ingress) -> None:
        self._runtime, self._links, self._peers, self._ingress = runtime, links, peers, ingress
        runtime.callbacks.register("presence.many", self._take)

    def come(self, peers: Present, classes: tuple[str, ...], meta: Mapping[str, object]) -> None:
        """Tells that peers are up in these classes, at the addresses of their ids; the next poll takes it.

        `meta` and `peers` are kept, and do not change any more. Raises IngressFull where too many notices
        wait already.
        """
        self._ingress.notice(self._take, peers, classes, meta)

    def _take(self, peers: Present, classes: tuple[str, ...], meta: Mapping[str, object]) -> None:
        # One after the other where one is not a newcomer, or finds no place, or somebody looks at each
        # presence.
        states = self._peers
        alike = states.note is None and states.uplink.back is None and states.programs.are_own(classes, meta)
        at = {peer: (peer_address(peer),) for peer, _, _ in peers}
        said = {
            peer: Presence(True, epoch or None, classes, at[peer], meta, session=session)
            for peer, epoch, session in peers
        }
        if not (alike and 0 < len(said) == len(peers) and states.presences.take_newcomers(said, classes)):
            for peer, epoch, session in peers:
                states.presence(peer, True, epoch, classes, at[peer], meta, session)
            return
        states.limits.take_alike(said, meta)
        states.address_book.learn_ids(at)
        self._runtime.count("peers.up", len(said))
        for peer, epoch, _ in peers:
            states.health.success(peer)
            states.backoff.succeeded(peer)
            if self._links.trip_of(peer) is not None:  # else it gets a link when it is talked to: few are
                self._links.peer_up(peer, epoch, self._runtime.now_ns)
            states.failing.answers.restarted(peer)
            states.unheard.come(peer)
            change = steps.PeerUp(peer, classes)
            self._runtime.emit(change)
            self._runtime.bus.publish(Bus.PEER_UP)
            states.changes.append(change)
