"""The nodes of most tests: one that is looked at, its peers, and where all of them are."""

from __future__ import annotations

from bb_edge import PeerId

HERE = b"\xe2\x01" + bytes(8)
"""An address of one process's own transport."""

SELF, A, B, C = (PeerId.from_name(name) for name in ("node", "a", "b", "c"))
