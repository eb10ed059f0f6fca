"""What peers accept, as their presences say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire.caps import UNTOLD_LIMITS, PeerLimits

LIMITS_META = "limits"
"""Where a node's presence says what it accepts (`PeerLimits.meta`)."""


class LimitsOfPeers:
    """The limits of the peers whose presence tells them, and the node's own."""

    __slots__ = ("_own_peer", "_told", "own")

    def __init__(self, own_peer: PeerId, own: PeerLimits) -> None:
        self._own_peer = own_peer
        self.own = own
        self._told: dict[PeerId, PeerLimits] = {}

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._told)

    def get(self, peer: PeerId) -> PeerLimits | None:
        """What the peer says, None where it says nothing."""
        return self._told.get(peer)

    def of(self, peer: PeerId) -> PeerLimits:
        """What a peer takes: as it says, as the node itself does, or whatever any node does."""
        return self.own if peer == self._own_peer else self._told.get(peer, UNTOLD_LIMITS)

    def told(self, peer: PeerId) -> PeerLimits:
        """The same, but of a peer that says nothing what the node itself takes."""
        return self._told.get(peer, self.own)

    def take(self, peer: PeerId, meta: Mapping[str, object]) -> None:
        """Takes what a presence says in place of what the peer said before."""
        limits = PeerLimits.from_meta(meta.get(LIMITS_META))
        self.forget(peer)
        if limits is not None:
            self._told[peer] = limits

    def forget(self, peer: PeerId) -> None:
        """The peer has no place any more."""
        self._told.pop(peer, None)

    def save(self) -> list[list[Any]]:
        """All of them as plain values; `restore` takes them."""
        return [[peer.to_bytes(), limits.meta()] for peer, limits in self._told.items()]

    def restore(self, rows: Iterable[Any], has_place: Callable[[PeerId], bool]) -> None:
        """Takes what `save` gave of the peers that have a place."""
        for raw, meta in rows:
            peer = PeerId.from_bytes(raw)
            if has_place(peer):
                self.take(peer, {LIMITS_META: meta})
