"""A node that comes back: its snapshot, then its outbox on disk (docs/design/durability.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bb_edge.engine import snapshot
from bb_edge.wire.outbox import OutboxRecord

if TYPE_CHECKING:
    from bb_edge.engine.engine import Engine
    from bb_edge.engine.snapshot_parts import Parts


def restore(parts: Parts, body: dict[str, object], now_ns: int) -> None:
    """Gives a fresh node the state of a snapshot, and asks again what would not be answered any more.

    SnapshotDamagedError: the node is useless then.
    """
    snapshot.restore(parts, body, now_ns)
    parts.cycle.requests.ask_again()


def adopt_outbox(cycle: Engine, records: Sequence[OutboxRecord], now_ns: int, wall_ns: int) -> None:
    """Takes the records of the outbox on disk; see `Node.adopt_outbox`."""
    cycle.outgoing.adopt(records, now_ns, wall_ns, cycle.requests.awaits)
