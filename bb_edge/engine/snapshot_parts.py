"""What the parts of a snapshot share: the node's tables, and units of the outbound queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bb_edge.engine.context import ControlContext, OpContext
from bb_edge.engine.engine import Engine
from bb_edge.engine.entries.bootstraps import Bootstraps
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.naming import Naming
from bb_edge.engine.run.op_states import OpStates
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.wire.envelope import Fill


@dataclass(frozen=True, slots=True)
class Parts:
    """A node, as whoever writes it down sees it."""

    engine: Scheduler
    cycle: Engine
    bootstraps: Bootstraps
    naming: Naming
    states: OpStates
    contexts: tuple[OpContext | ControlContext, ...]  # in install order, the ops' own first


def dump_unit(unit: Unit) -> list[Any]:
    fills = [[f.dest_suffix, bytes(f.payload), f.trigger_only, f.type_hash] for f in unit.fills]
    group = dump(unit.group)
    return [
        dump(unit.peer),
        fills,
        unit.kind,
        unit.wire_req_id,
        unit.deadline_ns,
        unit.durable,
        group,
        unit.wire_id,
        dump(unit.cause),
    ]


def load_unit(row: Any, shift: Shift) -> Unit:
    peer, fills, kind, req_id, deadline_ns, durable, group, wire_id, cause = row
    return Unit(
        load(peer),
        [Fill(*fill) for fill in fills],
        kind,
        req_id,
        shift.time(deadline_ns),
        durable,
        load(group),
        wire_id,
        load(cause),
    )
