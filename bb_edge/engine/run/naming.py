"""How snapshots name ops, regions and frames, and how the names are looked up on another node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bb_edge.engine.run.bound import BoundGraph, BoundOp, BoundRegion
from bb_edge.engine.run.frames import Execution, Frame


@dataclass(frozen=True)
class Naming:
    """Finds what a snapshot names: an op or region by its graph and place there, a frame by its execution.

    Graphs have the same numbers on every node of the same artifact and targets. KeyError, IndexError or
    TypeError for a name that fits nothing here.
    """

    _graphs: Mapping[int, BoundGraph]
    _executions: Mapping[int, Execution]
    sends: Sequence[tuple[bytes, str]] = ()
    """What components give of what the node sends durably, by its site; for programs that take its place."""

    def graphs(self) -> Iterable[BoundGraph]:
        """All graphs of the node."""
        return self._graphs.values()

    def op(self, name: Sequence[int]) -> BoundOp:
        """The op of an `op_name`."""
        graph, index = name
        return self._graphs[graph].ops[index]

    def region(self, name: Sequence[int]) -> BoundRegion:
        """The region of a `region_name`."""
        graph, index = name
        return self._graphs[graph].regions[index]

    def frame(self, name: Sequence[int]) -> Frame:
        """The frame of a `frame_name`."""
        number, place = name
        return self._executions[number].frames[place]

    def execution(self, number: int) -> Execution:
        """The execution of a number."""
        return self._executions[number]

    def entries(self, rows: Any) -> list[tuple[Frame, BoundOp]]:
        """The ops of `names_of`."""
        return [(self.frame(frame), self.op(op)) for frame, op in rows]


def op_name(op: BoundOp) -> list[int]:
    """[graph, op]."""
    return [op.graph_index, op.index]


def region_name(region: BoundRegion) -> list[int]:
    """[graph, region]."""
    return [region.graph.index, region.region.index]


def frame_name(frame: Frame) -> list[int]:
    """[execution, place among its frames]."""
    execution = frame.execution
    assert execution is not None
    return [execution.id, next(i for i, other in enumerate(execution.frames) if other is frame)]


def names_of(entries: Iterable[tuple[Frame, BoundOp]]) -> list[list[list[int]]]:
    """Names of ops that are ready or wait, each with its frame."""
    return [[frame_name(frame), op_name(op)] for frame, op in entries]
