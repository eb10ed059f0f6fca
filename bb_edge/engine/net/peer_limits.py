"""What peers accept, as their presences say.

Rule W9 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire.caps import PeerLimits

LIMITS_META = "limits"
"""Where a node's presence says what it accepts (`PeerLimits.meta`)."""


class LimitsOfPeers:
    """The limits of the peers whose presence tells them, and the node's own."""

    __slots__ = ("_read", "known", "own")

    def __init__(self, own: PeerLimits) -> None:
        self.own = own
        self.known: dict[PeerId, PeerLimits] = {}
        self._read: tuple[object, PeerLimits | None] = None, None  # what was told last

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self.known)

    def get(self, peer: PeerId) -> PeerLimits | None:
        """What the peer says, None where it says nothing."""
        return self.known.get(peer)

    def told(self, peer: PeerId) -> PeerLimits:
        """What a peer takes: as it says, and what the node itself does where it says nothing."""
        return self.known.get(peer, self.own)

    def take(self, peer: PeerId, meta: Mapping[str, object]) -> None:
        """Takes what a presence says in place of what the peer said before."""
        self.known.pop(peer, None)
        self.take_alike((peer,), meta)

    def take_alike(self, newcomers: Iterable[PeerId], meta: Mapping[str, object]) -> None:
        """Takes what the presences of all these say, of whom nothing is known."""
        told = meta.get(LIMITS_META)
        if told is not self._read[0]:  # a simulation tells the same of all peers of a class
            self._read = told, PeerLimits.from_meta(told)
        limits = self._read[1]
        if limits is not None:
            self.known.update(dict.fromkeys(newcomers, limits))

    def forget(self, peer: PeerId) -> None:
        """The peer has no place any more."""
        self.known.pop(peer, None)

    def save(self) -> list[list[Any]]:
        """All of them as plain values; `restore` takes them."""
        return [[peer.to_bytes(), limits.meta()] for peer, limits in self.known.items()]

    def restore(self, rows: Iterable[Any], has_place: Callable[[PeerId], bool]) -> None:
        """Takes what `save` gave of the peers that have a place."""
        for raw, meta in rows:
            peer = PeerId.from_bytes(raw)
            if has_place(peer):
                self.take(peer, {LIMITS_META: meta})
