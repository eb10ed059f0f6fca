"""The ops of a program that start executions by themselves: pulses, intervals, rounds, events, phases.

A target's pulses, intervals and rounds begin when it starts: in the first poll where it needs no bootstrap,
else once its bootstrap is done. Bus events and lifecycle phases fire whenever they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.bus import KINDS, Bus
from bb_edge.engine.entries.intervals import Intervals
from bb_edge.engine.entries.quorum import Quorum, RoundContext
from bb_edge.engine.entries.rounds import Rounds, number, start_entry
from bb_edge.engine.errors import LoadError
from bb_edge.engine.net.control_plane import ControlPlane
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.roles import TRIGGER

EntryOp = tuple[BoundGraph, BoundOp]


@dataclass(slots=True, eq=False)
class Sources:
    """The entry ops of one node, and which targets have started. `entries` are the entry ops by their type.

    `_ctx` is what selectors see, where rounds ask them how many peers there are, and `_class_of(target,
    slot)` the class of those peers.

    LoadError for a type that nothing here starts, or an event that it does not know, ValueError or TypeError
    for attributes of a wrong kind.
    """

    _runtime: Runtime
    _scheduler: Scheduler
    _ingress: Ingress
    _control: ControlPlane
    _want_snapshot: Callable[[str], None]
    _ctx: RoundContext
    _class_of: Callable[[str, str], str]
    _peers: PeerStates
    entries: InitVar[Mapping[str, Sequence[EntryOp]]]
    rounds: list[Rounds] = field(default_factory=list)
    intervals: Intervals = field(init=False)
    due_phases: list[int] = field(default_factory=list)
    to_start: list[str] = field(default_factory=list)
    _ops: dict[tuple[int, int], EntryOp] = field(default_factory=dict)
    _events: dict[int, list[EntryOp]] = field(default_factory=dict)
    _phases: dict[int, list[EntryOp]] = field(default_factory=dict)
    _beginnings: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)

    def __post_init__(self, entries: Mapping[str, Sequence[EntryOp]]) -> None:
        self._runtime.callbacks.register("entry.op", self._fill_op)
        self.intervals = Intervals(self._runtime, self._scheduler, self._ingress)
        kinds = {
            "EventSource": self._add_event,
            "LifecyclePhase": self._add_phase,
            "Pulse": self._add_pulse,
            "Interval": self._add_interval,
            "Repeat": self._add_rounds,
        }
        for kind in entries.keys() - kinds.keys():
            for graph, op in entries[kind]:
                raise LoadError(
                    f"the node starts no ops of type {kind!r}",
                    f"{graph.target}, {op.spec.name}",
                    "update the runtime, or compile the program again",
                )
        for kind, add in kinds.items():
            for graph, op in entries.get(kind, ()):
                self._ops[graph.index, op.index] = graph, op
                add(graph, op)

    def _add_event(self, graph: BoundGraph, op: BoundOp) -> None:
        kind = number(op, "kind")
        if kind < Bus.USER and kind not in KINDS.values():
            raise LoadError(
                f"the node publishes no event of kind {kind}",
                f"{graph.target}, {op.spec.name}",
                "update the runtime, or compile the program again",
            )
        self._events.setdefault(kind, []).append((graph, op))
        self._runtime.bus.subscribed.add(kind)

    def _add_phase(self, graph: BoundGraph, op: BoundOp) -> None:
        self._phases.setdefault(number(op, "phase"), []).append((graph, op))

    def _add_pulse(self, graph: BoundGraph, op: BoundOp) -> None:
        self._begins(graph, lambda: self._offer(graph, op, TRIGGER))

    def _add_interval(self, graph: BoundGraph, op: BoundOp) -> None:
        self._begins(graph, self.intervals.add(graph, op))

    def _add_rounds(self, graph: BoundGraph, op: BoundOp) -> None:
        components = self._scheduler.components
        quorum = Quorum(self._runtime, components, self._ctx, graph, op, self._class_of, self._peers)
        rounds = Rounds(self._runtime, self._scheduler, self._ingress, quorum, graph, op)
        self.rounds.append(rounds)
        self._begins(graph, rounds.start)

    def _begins(self, graph: BoundGraph, begin: Callable[[], None]) -> None:
        """Has `begin` called when the graph's target starts."""
        self._beginnings.setdefault(graph.target, []).append(begin)

    def start_at_first_poll(self, target: str) -> None:
        """For targets that need no bootstrap: at install nobody knows yet what time it is."""
        if target in self._beginnings or target in self._control.targets:
            self.to_start.append(target)

    def hold_target(self, target: str) -> None:
        """A target's entries wait until `start_target`, whatever install said; nothing for one that runs."""
        if target in self.to_start:
            self.to_start.remove(target)

    def start_due(self, _now_ns: int) -> None:
        """Starts the targets that wait for this poll."""
        while self.to_start:
            self.start_target(self.to_start.pop(0))

    def start_target(self, target: str) -> None:
        """Begins a target's pulses, intervals, rounds and components; once per node."""
        if target in self._started:
            return
        self._started.add(target)
        for begin in self._beginnings.get(target, ()):
            begin()
        self._control.start(target)

    def has_started(self, target: str) -> bool:
        """Whether the target's entries have begun."""
        return target in self._started

    def peer_up(self) -> None:
        """Ends the back-off of rounds."""
        for rounds in self.rounds:
            rounds.peer_up()

    def fire_events(self, _now_ns: int) -> None:
        """Starts what waits for the bus events of the last poll; without a place for one it is dropped."""
        for kind in self._runtime.bus.take():
            for graph, op in self._events.get(kind, ()):
                if self._ingress.ledger.full:
                    self._runtime.count("ingress.dropped")
                    self._runtime.emit(steps.IngressDropped(None, f"no place for bus event {kind}"))
                else:
                    self._offer(graph, op, kind, internal=False)

    def has_phase(self, phase: int) -> bool:
        """Whether an op of the program waits for that phase."""
        return phase in self._phases

    def fire_phases(self, _now_ns: int) -> None:
        """Starts what waits for the lifecycle phases that have come."""
        while self.due_phases:
            phase = self.due_phases.pop(0)
            self._runtime.emit(steps.LifecycleFired(phase))
            for graph, op in self._phases.get(phase, ()):
                self._offer(graph, op, TRIGGER)
            if phase == steps.Phase.SHUTDOWN:
                self._control.stop()
            elif phase == steps.Phase.SNAPSHOT:
                self._want_snapshot("lifecycle")

    def _offer(self, graph: BoundGraph, op: BoundOp, value: object, internal: bool = True) -> None:
        args = (graph.index, op.index, value, False)
        self._ingress.offer(Entry(graph.target, self._fill_op, args, internal=internal))

    def _fill_op(
        self, execution: Execution, graph_index: int, op_index: int, value: object, tick: bool
    ) -> None:
        """`tick` is True in snapshots of older versions, for a tick of an interval that waited."""
        if tick:
            self.intervals.began_waiting_one(graph_index, op_index)
        start_entry(self._scheduler, execution, *self._ops[graph_index, op_index], value)

    def save(self) -> dict[str, Any]:
        """What has started and what is due, as plain values."""
        return {
            "phases": list(self.due_phases),
            **self.intervals.save(),
            "started": sorted(self._started),
            "to_start": list(self.to_start),
            "rounds": [rounds.save() for rounds in self.rounds],
        }

    def restore(self, data: Any) -> None:
        """Goes on where the node of a snapshot stood; for a node that has not been polled."""
        self.due_phases.extend(data["phases"])
        self.intervals.restore(data)
        self._started.update(data["started"])
        self.to_start[:] = data["to_start"]
        for rounds, row in zip(self.rounds, data["rounds"], strict=True):
            rounds.restore(row)
