"""Requests to peers that nobody waits for, because they are down or failing and are tried once more.

Whoever is never asked never answers again. A trial's answer that comes while its request is open counts as
any other; one that comes later, within the deadline, lets the next request wait for the peer.
"""

from __future__ import annotations

from bb_edge.engine.net.cohort import Cohort
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason


class Trials:
    """The trials of a node; of those whose requests are over, `max_requests` at most are remembered."""

    def __init__(self, runtime: Runtime, outgoing: Outgoing, peers: PeerStates) -> None:
        self._runtime = runtime
        self._outgoing = outgoing
        self._peers = peers
        self._open: dict[int, tuple[PeerId, int]] = {}

    def begin(self, cohort: Cohort) -> None:
        """Nobody waits for failing peers, nor for those that are down, unless these are all that is asked."""
        peers = self._peers
        down = [peer for peer in cohort.gated if not peers.is_up(peer)]
        for peer in down if len(down) < len(cohort.gated) else ():
            cohort.try_out(peer, MissingReason.DOWN)
            if peers.uplink.connected:  # else it is not a try
                peers.tried(peer)
        for peer in cohort.gated if peers.failing else ():
            if peers.failing.on_trial(peer):
                cohort.try_out(peer, MissingReason.FAILING)
                if peers.uplink.connected:
                    peers.failing.tried(peer)

    def keep(self, number: int, peer: PeerId, until_ns: int) -> None:
        """The request of a trial has closed without the peer's answer, which may still come."""
        now_ns = self._runtime.now_ns
        for old in [old for old, (_, until) in self._open.items() if until <= now_ns]:
            self._forget(old)
        if len(self._open) >= self._runtime.config.max_requests:
            self._forget(next(iter(self._open)))
        self._open[number] = peer, until_ns

    def _forget(self, number: int) -> None:
        del self._open[number]
        self._outgoing.forget_ask(number)

    def answered(self, number: int, peer: PeerId) -> bool:
        """A reply has come that no open request waits for. Returns whether it is one to a trial."""
        tried, until_ns = self._open.get(number, (None, 0))
        if tried != peer:
            return False
        self._forget(number)
        if self._runtime.now_ns < until_ns:
            self._peers.failing.answered_late(peer)
        return True
