"""`Interval`: ticks, one per period, each of which begins an execution.

Ticks are numbered, and the number is the cause of what they send durably: after a crash those since the last
snapshot come again under their numbers, as rounds do, and what tells the same again finds its record.

A tick is left out where the one before still waits to begin, and where executions of earlier ones hold their
share of the node's: half of them, of which each interval has its part. The other half is for what peers and
the host begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.callbacks import Written
from bb_edge.engine.entries.rounds import number, start_entry
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.wire.outbox import TICKS, Cause

Place = tuple[int, int]
"""The numbers of a graph and of its op."""


@dataclass(slots=True, eq=False)
class _Interval:
    """The state of one op: how many ticks have been offered, whether the last of them waits, how many run."""

    graph: BoundGraph
    op: BoundOp
    period_ns: int
    ticks: int = 0
    waits: bool = False
    running: int = 0
    told: bool = False
    """Whether it has been said that ticks are left out, since the last one that was not."""


@dataclass(slots=True, eq=False)
class Intervals:
    """The intervals of one node."""

    _runtime: Runtime
    _scheduler: Scheduler
    _ingress: Ingress
    _all: dict[Place, _Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._runtime.callbacks.register("interval.tick", self._tick, Written(dump, _load_tick))
        self._runtime.callbacks.register("interval.fill", self._fill)
        self._runtime.callbacks.register("interval.ended", self._ended)

    def add(self, graph: BoundGraph, op: BoundOp) -> Callable[[], None]:
        """Takes an op; what this returns has its first tick come in a period."""
        place = graph.index, op.index
        self._all[place] = _Interval(graph, op, max(1, number(op, "period_ns", 1)))
        return lambda: self._arm(place, self._runtime.now_ns)

    def may_run(self, cause: Cause) -> bool | None:
        """Whether the tick of a cause of this node is still to come; None for a cause of another kind."""
        found = self._all.get(_place(cause)) if cause.epoch & TICKS == TICKS else None
        return None if found is None else cause.seq > found.ticks

    @property
    def _most(self) -> int:
        """So many executions may the ticks of one interval hold. A node of one has nothing to share:
        there the next tick waits for its end."""
        of_node = self._runtime.config.max_executions
        return max(1, of_node // 2 // len(self._all)) if of_node > 1 else of_node + 1

    def _arm(self, place: Place, from_ns: int) -> None:
        when = from_ns + self._all[place].period_ns
        self._runtime.timers.at(when, self._tick, *place, from_ns, reserved=True)

    def _tick(self, now_ns: int, graph_index: int, op_index: int, from_ns: int) -> None:
        place = graph_index, op_index
        one = self._all[place]
        if one.waits:
            self._runtime.count("ticks.skipped")
        elif one.running >= self._most:
            self._runtime.count("ticks.skipped")
            if not one.told:
                one.told = True
                self._runtime.emit(steps.TicksLeftOut(one.graph.target, one.op.spec.name, one.running))
        else:
            one.waits, one.told = True, False
            one.ticks += 1
            # Every Timestamp is wall time, so that any two have a difference.
            args = (*place, now_ns + self._runtime.clock_offset_ns)
            entry = Entry(one.graph.target, self._fill, args, internal=True)
            entry.cause = Cause(self._runtime.own_peer, TICKS | graph_index << 32 | op_index, one.ticks)
            self._ingress.offer(entry)
        self._arm(place, from_ns + (now_ns - from_ns) // one.period_ns * one.period_ns)

    def _fill(self, execution: Execution, graph_index: int, op_index: int, value: int) -> None:
        one = self._all[graph_index, op_index]
        one.waits = False
        one.running += 1
        execution.on_end = self._ended
        start_entry(self._scheduler, execution, one.graph, one.op, value)

    def _ended(self, execution: Execution) -> None:
        assert execution.cause is not None
        self._all[_place(execution.cause)].running -= 1

    def began_waiting_one(self, graph_index: int, op_index: int) -> None:
        """A tick that waited in a snapshot of an older version, which knew no numbers, has begun."""
        self._all[graph_index, op_index].waits = False

    def save(self) -> dict[str, Any]:
        """Where they stand, as plain values. `ticks` has those of which one waits, as older versions read."""
        rows = [[*place, one.ticks, one.running] for place, one in self._all.items() if one.ticks]
        return {
            "ticks": sorted(list(place) for place, one in self._all.items() if one.waits),
            "intervals": rows,
        }

    def restore(self, data: Any) -> None:
        """Goes on where those of a snapshot stood; an older version wrote down which of them wait alone."""
        for graph_index, op_index in data["ticks"]:
            self._all[graph_index, op_index].waits = True
        for graph_index, op_index, ticks, running in data.get("intervals", ()):
            one = self._all[graph_index, op_index]
            one.ticks, one.running = ticks, running


def _place(cause: Cause) -> Place:
    number_of_op = cause.epoch ^ TICKS
    return number_of_op >> 32, number_of_op & 0xFFFFFFFF


def _load_tick(plain: Any, shift: Shift) -> tuple[Any, ...]:
    graph_index, op_index, from_ns = load(plain)
    return graph_index, op_index, from_ns + shift.delta_ns
