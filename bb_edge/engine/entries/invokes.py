"""Invokes: what an execution begins with that a host starts at the inputs of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.engine.program.program import INVOKE
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime


class Invokes:
    """Fills the executions of invokes; `fill` is what their entries call."""

    __slots__ = ("_graphs", "_scheduler")

    def __init__(self, runtime: Runtime, scheduler: Scheduler, graphs: Sequence[BoundGraph]) -> None:
        """`graphs` are all of the node, each at its index."""
        self._scheduler = scheduler
        self._graphs = graphs
        runtime.callbacks.register("invoke", self.fill)

    def fill(
        self, execution: Execution, graph_index: int, claim_set: tuple[int, ...], values: Mapping[int, object]
    ) -> None:
        """Writes the inputs, by site; without any, starts what runs without."""
        scheduler = self._scheduler
        execution.tell_end()
        execution.will_claim(claim_set)
        graph = self._graphs[graph_index]
        frame = execution.frame_of(graph.regions[0])
        scheduler.write_all(frame, values.items())
        if not values:
            scheduler.pull_unreached(frame)
        if graph.starts:
            scheduler.start_outputs(frame, INVOKE)
