"""`bb.PresenceSelector`: chooses among the peers of a class that are up, or among all that are known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from hashlib import sha256
from heapq import nsmallest
from typing import TYPE_CHECKING, ClassVar

from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import PeerSelector
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.roles.context import Ctx

__all__ = ["PresenceSelector", "ViewSelector", "load_generators", "near_of", "sample_of"]


def load_generators() -> None:
    """Loads NumPy's random generators, which `sample_of` needs: some 4 MB that the first round need not find.

    They are used once, else the system reads their code when the first round calls them. For `construct`;
    importing a selector alone does not load them.
    """
    from numpy.random import PCG64, Generator

    Generator(PCG64(0)).permutation(2)


def sample_of(ctx: Ctx, peers: tuple[PeerId, ...], n: int, minimum: int) -> tuple[PeerId, ...]:
    """Returns at most `n` of `peers`, each once, in random order; none if there are fewer than `minimum`."""
    if len(peers) < minimum or n <= 0:
        return ()
    if len(peers) == 1:
        return peers
    order = ctx.rng.permutation(len(peers))[:n]
    return tuple(peers[i] for i in order.tolist())


def near_of(peers: Iterable[PeerId], key: bytes, n: int) -> tuple[PeerId, ...]:
    """Returns the `n` peers nearest to a key, nearest first, by Kademlia's metric.

    That is XOR over the SHA-256 of key and id. Nodes that see the same peers find the same ones, and each
    newcomer changes little.
    """
    at = int.from_bytes(sha256(key).digest(), "big")

    def distance(peer: PeerId) -> int:
        return int.from_bytes(sha256(peer.to_bytes()).digest(), "big") ^ at

    return tuple(nsmallest(n, peers, key=distance))


class ViewSelector(PeerSelector):
    """Chooses among the peers of `current_view`, which such a selector knows at once."""

    @abstractmethod
    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]: ...

    def sample(self, ctx: Ctx, *, n: int, min: int = 0) -> tuple[PeerId, ...]:
        return sample_of(ctx, self.current_view(ctx), n, min)

    def near_key(self, ctx: Ctx, key: bytes, *, n: int) -> tuple[PeerId, ...]:
        return near_of(self.current_view(ctx), key, n)


class PresenceSelector(ViewSelector):
    """Has the peers in view that are up and whose presence lists the slot's class.

    The node itself is in view only where that class is not the asking partition's: a node that gossips does
    not gossip to itself.

    Configuration: `known`, false. With true, all peers of the class that the node remembers are in view, up
    or not. That is for durable sends, which wait for whoever is away; requests and other sends refuse such
    peers, when the program is compiled or the node starts.
    """

    TYPE_NAME: ClassVar[str] = "bb.PresenceSelector"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"known": Setting.flag(False)}

    def __init__(self, peer_class: str, own_class: str, known: bool = False) -> None:
        self._peer_class = peer_class
        self._same_class = peer_class == own_class
        self.sees_absent = known

    @classmethod
    def construct(cls, env: ComponentEnv) -> PresenceSelector:
        load_generators()
        return cls(env.peer_class, env.own_class, env.settings(cls)["known"])

    def sample(self, ctx: Ctx, *, n: int, min: int = 0) -> tuple[PeerId, ...]:
        return super().sample(ctx, n=n, min=min - self.resting(ctx) if min else 0)

    def resting(self, ctx: Ctx) -> int:
        return 0 if self.sees_absent else ctx.peers.resting(self._peer_class)

    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]:
        peers = (ctx.peers.known_peers if self.sees_absent else ctx.peers.up_peers)(self._peer_class)
        if not self._same_class:
            return peers
        own = ctx.own_peer
        return tuple(peer for peer in peers if peer != own)
