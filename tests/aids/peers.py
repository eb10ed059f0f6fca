"""The nodes of most tests: one that is looked at, its peers, and where all of them are."""

from __future__ import annotations

from bb_edge import PeerId
from bb_edge.ir.ids import IDENTITY

HERE = b"\xe2\x01" + bytes(8)
"""An address of one process's own transport."""

SELF, A, B, C = (PeerId.from_name(name) for name in ("node", "a", "b", "c"))


def numbered(number: int) -> PeerId:
    """The peer whose id is the identity multihash of 8 big-endian bytes, so that ids sort as numbers do."""
    return PeerId(IDENTITY, number.to_bytes(8, "big"))
