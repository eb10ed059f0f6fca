"""A node that comes back: its snapshot, then its outbox on disk (docs/design/durability.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bb_edge.engine import snapshot
from bb_edge.engine.snapshot_executions import ask_again
from bb_edge.wire import envelope
from bb_edge.wire.outbox import OutboxRecord

if TYPE_CHECKING:
    from bb_edge.engine.engine import Engine
    from bb_edge.engine.snapshot_parts import Parts


def restore(parts: Parts, body: dict[str, object], now_ns: int) -> None:
    """Gives a fresh node the state of a snapshot, and asks again what would not be answered any more.

    SnapshotDamagedError: the node is useless then.
    """
    snapshot.restore(parts, body, now_ns)
    ask_again(parts)


def adopt_outbox(cycle: Engine, records: Sequence[OutboxRecord], now_ns: int, wall_ns: int) -> None:
    """Takes the records of the outbox on disk; see `Node.adopt_outbox`."""
    durable, links = cycle.outbound.durable, cycle.links
    if durable is None:
        return
    for record in records:
        asked = envelope.decode(record.encoded, cycle.engine.runtime.config.caps)
        is_request = asked.kind == envelope.REQUEST
        awaited = not is_request or cycle.requests.sites(asked.wire_req_id) is not None
        durable.adopt(record, now_ns, wall_ns, awaited)
        if is_request and awaited:
            cycle.outbound.asks_again(asked.wire_req_id, record.key)
    for key in links.durable_keys():
        if key not in durable.outbox:
            links.cancel(key)
