"""The poll cycle (semantics §4): eight phases, each draining what it made ready.

1 ingress · 2 frontier · 3 bus events · 4 matured timers · 5 completions · 6 frontier · 7 lifecycle ·
8 outbound
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from bb_edge.engine import steps
from bb_edge.engine.budget import payload_bytes
from bb_edge.engine.entries.rounds import Rounds
from bb_edge.engine.errors import CapacityError
from bb_edge.engine.net.admission import Admission
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.net.outgoing import Outbound
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.direct import run_direct
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.roles import TRIGGER
from bb_edge.wire.delivery import Links

EntryOp = tuple[BoundGraph, BoundOp]


class Engine:
    """One node's heartbeat over its engine, queues and tables."""

    def __init__(
        self,
        engine: Scheduler,
        ingress: Ingress,
        admission: Admission,
        outbound: Outbound,
        requests: Requests,
        links: Links,
        entries: Mapping[str, Sequence[EntryOp]],
        graphs: tuple[BoundGraph, ...],
    ) -> None:
        self.engine = engine
        self.runtime = engine.runtime
        self.ingress = ingress
        self.admission = admission
        self.outbound = outbound
        self.requests = requests
        self.links = links
        self.graphs = graphs
        self._events: dict[int, list[EntryOp]] = {}
        self._phases: dict[int, list[EntryOp]] = {}
        self._pulses: dict[str, list[EntryOp]] = {}
        self._intervals: dict[str, list[EntryOp]] = {}
        self.rounds: dict[str, list[Rounds]] = {}
        self.due_phases: deque[int] = deque()
        self.ticks_waiting: set[tuple[int, int]] = set()
        self.started: set[str] = set()
        self.to_start: list[str] = []
        engine.runtime.callbacks.register("entry.op", self._fill_op)
        engine.runtime.callbacks.register("interval.tick", self._tick)
        for graph, op in entries.get("EventSource", ()):
            kind = int(op.spec.attrs.get("kind", 0))  # type: ignore[call-overload]
            self._events.setdefault(kind, []).append((graph, op))
            engine.runtime.bus.subscribed.add(kind)
        for graph, op in entries.get("LifecyclePhase", ()):
            self._phases.setdefault(int(op.spec.attrs.get("phase", 0)), []).append((graph, op))  # type: ignore[call-overload]
        for graph, op in entries.get("Pulse", ()):
            self._pulses.setdefault(graph.target, []).append((graph, op))
        for graph, op in entries.get("Interval", ()):
            self._intervals.setdefault(graph.target, []).append((graph, op))
        for graph, op in entries.get("Repeat", ()):
            self.rounds.setdefault(graph.target, []).append(Rounds(engine, ingress, graph, op))

    # --- entries of the graphs ------------------------------------------------------------------------

    def start_at_first_poll(self, target: str) -> None:
        """For targets that need no bootstrap: at install nobody knows yet what time it is."""
        parts = (self._pulses, self._intervals, self.rounds, self.engine.control.targets)
        if any(target in found for found in parts):
            self.to_start.append(target)

    def hold_target(self, target: str) -> None:
        """A target's entries wait until `start_target`, whatever install said; nothing for one that runs."""
        if target in self.to_start:
            self.to_start.remove(target)

    def start_target(self, target: str) -> None:
        """A target is bootstrapped: its pulses, intervals and rounds begin. Once per node."""
        if target in self.started:
            return
        self.started.add(target)
        for graph, op in self._pulses.get(target, ()):
            self._offer(graph, op, TRIGGER)
        for graph, op in self._intervals.get(target, ()):
            self._arm(graph, op, self.runtime.now_ns)
        for rounds in self.rounds.get(target, ()):
            rounds.start()
        self.engine.control.start(target)

    def _offer(
        self,
        graph: BoundGraph,
        op: BoundOp,
        value: object,
        internal: bool = True,
        tick: bool = False,
    ) -> None:
        args = (graph.index, op.index, value, tick)
        self.ingress.offer(Entry(graph.target, self._fill_op, args, internal=internal))

    def _fill_op(
        self, execution: Execution, graph_index: int, op_index: int, value: object, tick: bool
    ) -> None:
        graph = self.graphs[graph_index]
        op = graph.ops[op_index]
        if tick:
            self.ticks_waiting.discard((graph_index, op_index))
        execution.will_claim(graph.claims.get(op.index, ()))
        frame = execution.frame_of(graph.regions[op.spec.region])
        if op.out >= 0:
            self.engine.write(frame, op.out, value)
        if graph.starts:
            self.engine.start_outputs(frame, op.index)

    def _arm(self, graph: BoundGraph, op: BoundOp, from_ns: int) -> None:
        self.runtime.timers.at(
            from_ns + _period(op), self._tick, graph.index, op.index, from_ns, reserved=True
        )

    def _tick(self, now_ns: int, graph_index: int, op_index: int, from_ns: int) -> None:
        graph = self.graphs[graph_index]
        op = graph.ops[op_index]
        key = (graph_index, op_index)
        if key in self.ticks_waiting:
            self.runtime.count("ticks.skipped")
        else:
            self.ticks_waiting.add(key)
            # Every Timestamp is wall time, so that any two have a difference.
            self._offer(graph, op, now_ns + self.runtime.clock_offset_ns, tick=True)
        period = _period(op)
        self._arm(graph, op, from_ns + (now_ns - from_ns) // period * period)

    def has_phase(self, phase: int) -> bool:
        """Whether an op of the program waits for that phase."""
        return phase in self._phases

    def fire_lifecycle(self, phase: int) -> None:
        self.due_phases.append(phase)

    def peer_up(self) -> None:
        """Ends the back-off of rounds."""
        for several in self.rounds.values():
            for rounds in several:
                rounds.peer_up()

    # --- the cycle ------------------------------------------------------------------------------------

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        """Runs one cycle at `now_ns`; returns its steps, none when there was nothing to do."""
        backends = self.engine.components.backends
        if len(backends) == 1:
            (only,) = backends
            token = only.enter()
            try:
                return self._cycle(now_ns)
            finally:
                only.leave(token)
        entered = [(backend, backend.enter()) for backend in backends]
        try:
            return self._cycle(now_ns)
        finally:
            for backend, token in reversed(entered):
                backend.leave(token)

    def _cycle(self, now_ns: int) -> list[steps.EngineStep]:
        engine, entries = self.engine, self.ingress.entries
        self.runtime.advance(now_ns)
        self._left = self.runtime.config.cycle_op_budget
        if len(entries) == 1 and entries[0].direct is not None and self._nothing_else(now_ns):
            self._admit(now_ns)  # the short way alone: what a node that serves a model does all day
            if not (entries or engine.runnable or self.runtime.bus.events):
                return self.runtime.take_steps()
        while self.to_start:
            self.start_target(self.to_start.pop(0))
        if self.ingress.waiting or self.admission.waits or self.requests.needs_snapshot.ready:
            self._take_in(now_ns)
        if engine.runnable or entries:
            self._run(now_ns)
        for kind in self.runtime.bus.take() if self.runtime.bus.events else ():
            for graph, op in self._events.get(kind, ()):
                if self.ingress.ledger.full:
                    self.runtime.count("ingress.dropped")
                    self.runtime.emit(steps.IngressDropped(None, f"no place for bus event {kind}"))
                else:
                    self._offer(graph, op, kind, internal=False)
        if engine.runnable or entries:
            self._run(now_ns)
        while self._left > 0:
            due = self.runtime.timers.pop_due(now_ns)
            if due is None:
                break
            due.callback(now_ns, *due.args)
            # A callback counts as an op: one that arms the next for now would hold the poll for ever.
            self._left -= 1
            self._run(now_ns)
        if self.ingress.has_completions:
            self._complete()
        if engine.runnable or entries:
            self._run(now_ns)
        while self.due_phases:
            phase = self.due_phases.popleft()
            self.runtime.emit(steps.LifecycleFired(phase))
            for graph, op in self._phases.get(phase, ()):
                self._offer(graph, op, TRIGGER)
            if phase == steps.Phase.SHUTDOWN:
                engine.control.stop()
            elif phase == steps.Phase.SNAPSHOT and self.outbound.durable is not None:
                self.outbound.durable.want_snapshot("lifecycle")
        if engine.runnable or entries:
            self._run(now_ns)
        if self._left <= 0 and (engine.runnable or self._admissible or self.runtime.timers.due(now_ns)):
            self.runtime.count("cycles.over_budget")
            self.runtime.emit(steps.CycleBudgetExceeded(self.runtime.config.cycle_op_budget))
        self.outbound.flush(now_ns)
        if self.admission.noticed:
            self.admission.drained()
        return self.runtime.take_steps()

    def _nothing_else(self, now_ns: int) -> bool:
        """Whether all phases but the first frontier would find nothing to do."""
        engine, outbound = self.engine, self.outbound
        return not (
            self.to_start
            or self.due_phases
            or engine.runnable
            or self.runtime.bus.events
            or self.ingress.waiting
            or self.ingress.has_completions
            or self.admission.waits
            or self.requests.needs_snapshot.ready
            or self.admission.noticed
            or self.runtime.timers.may_be_due(now_ns)
            or outbound.units
            or outbound.durable
            or not self.links.quiet
        )

    def _take_in(self, now_ns: int) -> None:
        ingress = self.ingress
        while (notice := ingress.take_notice()) is not None:
            notice.act(*notice.args)
        self.requests.fire_saved()
        admission = self.admission
        if admission.waits and not admission.deliver_journaled(now_ns):
            return  # nothing new before what the journal still holds
        while (raw := ingress.take_raw()) is not None:
            arrival = admission.read(raw, now_ns)
            if arrival is not None:
                admission.decide(arrival, now_ns)

    def _complete(self) -> None:
        engine = self.engine
        while (done := self.ingress.take_completion()) is not None:
            token, result, error = done
            limit = self.runtime.config.completion_bytes
            if error is None and payload_bytes(result) > limit:
                error = CapacityError(
                    f"a result of {payload_bytes(result)} bytes, {limit} at most",
                    hint="raise NodeConfig.completion_bytes",
                )
            if token < 0:  # a remote op's
                known = engine.control.completed(token, result, error)
            elif error is None:
                known = engine.resume(token, result)
            else:
                known = engine.fail(token, error)
            if not known:
                self.runtime.count("completions.late")
        late = self.ingress.take_late()
        if late:
            self.runtime.count("completions.late", late)

    @property
    def _admissible(self) -> bool:
        return bool(self.ingress.entries) and not self.engine.pool.full

    def _run(self, now_ns: int) -> None:
        """Admits entries and drains, until nothing is ready or the budget is spent."""
        engine = self.engine
        entries, pool = self.ingress.entries, engine.pool
        while self._left > 0 and (engine.runnable or (entries and pool.entries < pool.max_entries)):
            before = self._left
            while entries and pool.entries < pool.max_entries:
                self._admit(now_ns)
            if engine.runnable or self._left == before:
                self._left -= max(1, engine.drain(self._left))

    def _admit(self, now_ns: int) -> None:
        entry = self.ingress.next_entry()
        assert entry is not None
        if entry.expires_ns and now_ns >= entry.expires_ns:
            self.runtime.count("deadlines.expired")
            if entry.size:
                self.ingress.ledger.release(entry.peer, entry.size)
            return
        direct, engine = entry.direct, self.engine
        if direct is not None and self._left >= direct.ops and not (engine.runnable or self.ingress.entries):
            self._left -= run_direct(engine, direct, entry.target, entry.number or 0, entry.args[-1])
            return
        execution = self.engine.pool.start(entry.target, entry.number)
        execution.charge(entry.peer, entry.size)
        entry.fill(execution, *entry.args)
        self.engine.pool.wake(execution)

    def next_deadline_ns(self) -> int | None:
        """When to poll at the latest:

        0 where something waits already, None where nothing will come by itself.
        """
        if (
            self.engine.runnable
            or self._admissible
            or self.ingress.waiting
            or self.due_phases
            or self.to_start
            or self.runtime.bus.waiting
            or self.outbound.waits
            or self.admission.waits
            or self.requests.needs_snapshot.ready
            or self.runtime.steps  # of a driver's answer, given between two polls
        ):
            return 0
        times = [t for t in (self.runtime.timers.next_ns(), self.links.next_deadline_ns()) if t is not None]
        return min(times) if times else None


def _period(op: BoundOp) -> int:
    """Nanoseconds between two ticks of an `Interval`."""
    period: int = int(op.spec.attrs.get("period_ns", 1))  # type: ignore[call-overload]
    return max(1, period)
