"""Whether what this node sends leaves it, as its transport tells: no peer is blamed for a lost connection."""

from __future__ import annotations

from bb_edge.engine.runtime import Runtime
from bb_edge.wire.backoff import S

OTHERS_NS = 45 * S
"""A broker that was away was away for others too: they dial again within 30 s, more or less a half."""


class Uplink:
    """The connection of this node. Where no transport tells of one, it has always been there.

    Nothing of it is saved: a process begins with what its transport tells.
    """

    __slots__ = ("_blames_from_ns", "_runtime", "connected", "stretch")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._blames_from_ns = 0
        self.connected = True
        self.stretch = 0
        """How often that has changed: what is made and over in one stretch had one state all the time."""

    def tell(self, connected: bool) -> None:
        """Takes what the transport tells; what was so before changes nothing."""
        if connected == self.connected:
            return
        self.connected = connected
        self.stretch += 1
        if connected and self.stretch > 2:  # not the first connection of a process
            self._blames_from_ns = self._runtime.now_ns + OTHERS_NS

    def held_since(self, stretch: int) -> bool:
        """Whether it has been there all the time since that stretch."""
        return self.connected and self.stretch == stretch

    def lost_since(self, stretch: int) -> bool:
        """Whether it has been away all the time since that stretch: nothing that was sent in it has left."""
        return not self.connected and self.stretch == stretch

    def blames(self, stretch: int) -> bool:
        """Whether it is a peer's fault that nothing has come of it since that stretch."""
        return self.held_since(stretch) and self._runtime.now_ns >= self._blames_from_ns
