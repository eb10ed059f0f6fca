"""How many bytes a node's files may have; apart from what writes them, which not every node loads."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.state.errors import StateError

OLD_GENERATIONS = 8
"""So many generations that no recovery needs, if they are small, a node lets wait to be removed together."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits in bytes, each at least 1. The disk needs space for about twice their sum."""

    journal_bytes: int = 8 << 20
    """A journal of this length wants a snapshot; one of twice this length takes nothing more.

    It bounds what a start replays, and spreads the wear of one snapshot over as many bytes of input."""
    outbox_bytes: int = 64 << 20
    """Records that no snapshot has dropped: as many bytes as `LinkConfig.pending_bytes` lets wait."""
    snapshot_bytes: int = 64 << 20
    """One snapshot; it holds the parameters of the models that the node trains."""

    @classmethod
    def edge(cls) -> StoreLimits:
        """Limits for a board with a memory card: 4, 8 and 16 MiB, so that 64 MiB of space are enough."""
        return cls(4 << 20, 8 << 20, 16 << 20)

    def __post_init__(self) -> None:
        for name in ("journal_bytes", "outbox_bytes", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise StateError(f"{name}: a limit below 1 byte", "state", "leave it out, or give at least 1")
