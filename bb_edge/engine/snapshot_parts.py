"""What the parts of a snapshot share: the node's tables, names of frames and ops, and the shift of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bb_edge.engine.engine import Engine
from bb_edge.engine.entries.bootstrap import Bootstraps
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.bound import BoundGraph, BoundOp, BoundRegion
from bb_edge.engine.run.frames import Frame
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.wire.envelope import Fill


@dataclass(frozen=True, slots=True)
class Parts:
    """A node, as whoever writes it down sees it. `graphs` are all of its graphs, by index."""

    engine: Scheduler
    cycle: Engine
    bootstraps: Bootstraps
    graphs: Mapping[int, BoundGraph]

    def op(self, row: Any) -> BoundOp:
        graph, index = row
        found: BoundOp = self.graphs[graph].ops[index]
        return found

    def region(self, row: Any) -> BoundRegion:
        graph, index = row
        found: BoundRegion = self.graphs[graph].regions[index]
        return found

    def frame(self, row: Any) -> Frame:
        """The frame of a name; KeyError or IndexError where there is none."""
        number, position = row
        found: Frame = self.engine.pool.active[number].frames[position]
        return found


def op_name(parts: Parts, op: BoundOp) -> list[int]:
    """(graph, op)."""
    return [parts.engine.graph_of[op], op.index]


def region_name(region: BoundRegion) -> list[int]:
    return [region.graph.index, region.region.index]


def frame_name(frame: Frame) -> list[int]:
    """(execution, its how manieth frame)."""
    execution = frame.execution
    assert execution is not None
    return [execution.id, next(i for i, other in enumerate(execution.frames) if other is frame)]


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
