"""Whether the peers that a program needs at the same time have places at a node.

A place takes what a peer's presence says, in its CBOR form (`limits.peer_bytes`), and one of
`limits.max_peers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net import features
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.program.program import Program, Target
from bb_edge.ir.address import PEER_ADDRESS_BYTES
from bb_edge.ir.version import RUNTIME_VERSION
from bb_edge.wire import cbor
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.presence import Presence, presence_bytes
from bb_edge.wire.programs import ProgramClaim

USUAL_PLACE = 1024
"""Bytes of `peer_bytes` for each peer, as the budget `edge` has them: a presence, three times over."""
EPOCH = (1 << 56) - 1
"""Of the 56 bits of an epoch, which is drawn, one in 16 million takes fewer than 9 bytes."""


class Asked(NamedTuple):
    """That a target selects peers of a class, `least` of them at least."""

    target: Target
    peer_class: str
    least: int


class Needed(NamedTuple):
    """Peers that a node has to know at once, by class; peers of several classes are not reckoned with."""

    by_class: Mapping[str, int]
    bytes: int
    """What their presences have at least."""

    @property
    def peers(self) -> int:
        """How many they are."""
        return sum(self.by_class.values())

    def __str__(self) -> str:
        return " and ".join(f"{count} of class {name}" for name, count in self.by_class.items() if count)


def least_presence(program: Program, peer_class: str = "") -> int:
    """The fewest bytes that the presence of a peer of this program has, as a node is charged with them.

    Such a peer has the usual id, no name, and the smallest limits, and its program lists no other; without a
    class it is of the shortest.
    """
    said = program.identity
    shared = {key: digest for key, digest in said.contracts.items() if peer_class in key.split(".")}
    meta = {
        "runtime": RUNTIME_VERSION,
        LIMITS_META: PeerLimits(1, 1, 1, 1).meta(),
        features.META: list(features.OWN),
        **ProgramClaim(said.program, contracts=shared).meta(),
    }
    presence = Presence(True, EPOCH, (peer_class or "C",), (bytes(PEER_ADDRESS_BYTES),))
    return presence_bytes(presence, len(cbor.dumps(meta)))


def needed(program: Program, targets: Sequence[Target], asked: Sequence[Asked]) -> Needed:
    """The fewest peers with which everything that the targets plan can come about.

    They are one of each class that sends to the node or is asked, and of those as many as are waited for.
    """
    count: dict[str, int] = {}
    for target in targets:
        for name in target.asks or ():
            count[name] = max(count.get(name, 0), others(Asked(target, name, 1), targets))
    for one in asked:
        if one.peer_class:
            count[one.peer_class] = max(count.get(one.peer_class, 0), others(one, targets))
    return Needed(count, sum(least_presence(program, name) * each for name, each in count.items()))


def others(asked: Asked, targets: Sequence[Target]) -> int:
    """How many of the peers that are waited for are not the node itself, which has no place of its own.

    It is in view where it is of the class because of another target.
    """
    itself = asked.peer_class != asked.target.peer_class and any(
        target.peer_class == asked.peer_class for target in targets
    )
    return asked.least - itself


def lacking(need: Needed, config: NodeConfig, least: int) -> Iterator[tuple[str, str]]:
    """What there are too few places for, and the hint; `least` bytes are in the smallest presence."""
    if need.peers > config.max_peers:
        yield (
            f"it deals with {need} at the same time, and max_peers is {config.max_peers}",
            f"raise limits.max_peers to {need.peers} at least",
        )
    if need.bytes > config.peer_bytes:
        what = f"it deals with {need} at the same time, whose presences have {need.bytes} bytes at least"
        hint = f"raise limits.peer_bytes to {usual_bytes(need.peers, least)}, or leave it out"
        yield f"{what}, and peer_bytes is {config.peer_bytes}", hint


def usual_bytes(peers: int, least: int) -> int:
    """The `peer_bytes` that so many peers should have."""
    return peers * max(USUAL_PLACE, 3 * least)
