"""Whether what this node sends leaves it, as its transport tells: no peer is blamed for a lost connection."""

from __future__ import annotations

from collections.abc import Iterable

from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.backoff import S

OTHERS_NS = 45 * S
"""A broker that was away was away for others too: they dial again within 30 s, more or less a half."""


class Uplink:
    """The connection of this node. Where no transport tells of one, it has always been there.

    Nothing of it is saved: a process begins with what its transport tells.
    """

    __slots__ = ("_answered", "_blames_from_ns", "_news", "_runtime", "back", "connected", "stretch")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._blames_from_ns = 0
        self._news = False
        self.connected = True
        self.back: set[PeerId] | None = None
        """Of whom something has come since it was found again; None once that is long ago."""
        self._answered: set[PeerId] = set()  # whose answer has counted since then
        self.stretch = 0
        """How often that has changed: what is made and over in one stretch had one state all the time."""

    def tell(self, connected: bool) -> None:
        """Takes what the transport tells; what was so before changes nothing."""
        if connected == self.connected:
            return
        self.connected = connected
        self.stretch += 1
        self._news, self.back = connected, None
        self._answered.clear()
        if connected and self.stretch > 2:  # not the first connection of a process
            self._blames_from_ns = self._runtime.now_ns + OTHERS_NS
            self.back = set()

    @property
    def returning(self) -> bool:
        """Whether it is away, or was until just now: whom it reaches is still to be seen."""
        if self.back is not None and self._runtime.now_ns >= self._blames_from_ns:
            self.back = None
        return not self.connected or self.back is not None

    def met(self, peer: PeerId) -> None:
        """Something of the peer has come, be it its presence; to be called while there is a `back`."""
        back = self.back
        if back is not None and peer not in back and len(back) < self._runtime.config.max_peers:
            back.add(peer)
            self._news = True

    def reaches(self, peer: PeerId) -> bool:
        """Whether the peer is there, as far as the connection tells."""
        return not self.returning or (self.back is not None and peer in self.back)

    def take_news(self) -> bool:
        """Whether it has come back, or reaches more peers than at the last call."""
        news, self._news = self._news, False
        return news

    def held_since(self, stretch: int) -> bool:
        """Whether it has been there all the time since that stretch."""
        return self.connected and self.stretch == stretch

    def lost_since(self, stretch: int) -> bool:
        """Whether it has been away all the time since that stretch: nothing that was sent in it has left."""
        return not self.connected and self.stretch == stretch

    def answered(self, stretch: int, peers: Iterable[PeerId]) -> None:
        """Answers of these peers, to a request of that stretch, count: they are connected again. To be
        called while there is a `back`.
        """
        if self.held_since(stretch):
            self._answered |= {*peers} & (self.back or set())

    def blames(self, stretch: int, peer: PeerId) -> bool:
        """Whether it is the peer's fault that nothing has come of it since that stretch."""
        if not self.held_since(stretch):
            return False
        return self._runtime.now_ns >= self._blames_from_ns or peer in self._answered
