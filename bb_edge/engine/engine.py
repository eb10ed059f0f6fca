"""The engine: what a node does in one poll.

A poll takes in what has arrived, runs what is ready, and hands out what is to be done. Its phases are a table
(`Engine.phases`), and all that knows of them is that table: a phase runs where it has work, a poll is due
where one has, and an invoke of tensor work runs straight where none has.
"""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine import steps
from bb_edge.engine.binding import Core
from bb_edge.engine.entries.bootstraps import Bootstraps
from bb_edge.engine.entries.sources import Sources
from bb_edge.engine.errors import CapacityError
from bb_edge.engine.net.admission import Admission
from bb_edge.engine.net.surroundings import Surroundings
from bb_edge.engine.phases import Phase, While, never
from bb_edge.engine.plain import payload_bytes
from bb_edge.engine.run.life import State
from bb_edge.engine.run.naming import Naming


@dataclass(frozen=True)
class Parts(Core):
    """All parts of a node, for those who look at all: the engine, snapshots, tools."""

    admission: Admission
    sources: Sources
    bootstraps: Bootstraps
    naming: Naming

    @property
    def contexts(self) -> tuple[Surroundings, ...]:
        """What ops and components see, in install order, the ops' own first."""
        return self.ctx, *self.control.contexts

    @property
    def counters(self) -> dict[str, int]:
        """A copy of all counters, and what the parts hold now."""
        runtime, scheduler, links = self.runtime, self.scheduler, self.links.counters
        return {
            **runtime.counters,
            "ingress.dropped": runtime.counters.get("ingress.dropped", 0),
            "bus.dropped": runtime.bus.dropped,
            "journal.waiting": len(self.admission.journal.replaying),
            "frontier.depth_peak": scheduler.depth_peak,
            "pending_async.count": len(scheduler.waiting.parked),
            "executions.active": len(scheduler.pool.active),
            "executions.peak": scheduler.pool.peak,
            "frames.grown": scheduler.pool.frames.grown,
            "ingress.bytes": scheduler.ledger.bytes,
            "outbound.unwritten": self.outgoing.durable.unkept().total(),
            "outbound.bytes": self.links.pending_bytes + self.outgoing.durable.open_bytes,
            "requests.open": len(self.requests),
            "wire.acks_forgotten": links["acks_forgotten"],
            "wire.foreign_acks": links["foreign_acks"],
            "wire.links_forgotten": links["links_forgotten"],
        }


class Engine:
    """One node's heartbeat over its parts."""

    def __init__(self, parts: Parts) -> None:
        self.runtime = runtime = parts.runtime
        self._scheduler = parts.scheduler
        self.ingress = ingress = parts.ingress
        self.links = parts.links
        self.peers = parts.peers
        self.outgoing = parts.outgoing
        self.requests = parts.requests
        self.control = parts.control
        self.calls = parts.control.calls
        self.admission = admission = parts.admission
        self.sources = sources = parts.sources
        self._left = 0  # of the poll's op budget
        self.phases = (
            Phase("start", sources.to_start, sources.start_due),
            Phase("notices", ingress.notices, self._take_notices),
            Phase("saved requests", self.requests.saved, self._fire_saved),
            Phase("journal", admission.journal.accepted, admission.deliver_accepted),
            Phase("replay", admission.journal.replaying, admission.deliver_replayed),
            Phase("envelopes", ingress.envelopes, self._take_envelopes, frontier=True),
            Phase("events", runtime.bus.events, sources.fire_events, frontier=True),
            Phase("timers", While(self._timers_may_be_due), self._fire, due=runtime.timers.next_ns),
            Phase("completions", ingress.completions, self._complete, frontier=True),
            Phase("late completions", ingress.late_completions, self._count_late, due=never),
            Phase("lifecycle", sources.due_phases, sources.fire_phases, frontier=True),
            Phase("budget", While(self._spent), self._tell_budget, due=never),
            Phase("send", While(self._may_send), self._send, due=self._send_due),
            Phase("relief", parts.peers.back_pressure.noticed, self._relieve, due=never),
        )
        """What a poll does, in this order."""
        # Plain tuples: they are taken apart in every poll, which takes a named one several times as long.
        self._turn = tuple(
            (
                phase.work,
                phase.work.holds if isinstance(phase.work, While) else None,
                phase.run,
                phase.frontier,
            )
            for phase in self.phases
        )
        first = next(place for place, phase in enumerate(self.phases) if phase.frontier)
        self._behind = self._turn[first + 1 :]
        self._queues = tuple(phase.work for phase in self.phases if not isinstance(phase.work, While))
        self._conditions = tuple(phase.work.holds for phase in self.phases if isinstance(phase.work, While))
        self._urgent = tuple(phase.work for phase in self.phases if phase.due is None)
        self._dues = tuple(phase.due for phase in self.phases if phase.due not in (None, never))

    # --- the poll -------------------------------------------------------------------------------------

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        """Runs one cycle at `now_ns`; returns its steps, none when there was nothing to do."""
        backends = self._scheduler.components.backends
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
        scheduler, entries = self._scheduler, self.ingress.entries
        self.runtime.advance(now_ns)
        self._left, turn = self.runtime.config.cycle_op_budget, self._turn
        if (turns := scheduler.turns).clock is not None:
            turns.begin()
        if not scheduler.runnable and not any(self._queues) and not self._holds_any():
            if not entries:
                return self.runtime.take_steps()
            if len(entries) == 1 and entries[0].schedule is not None:
                self._admit(now_ns)  # straight: what a node that serves a model does all day
                if not (entries or scheduler.runnable or self.runtime.bus.events):
                    return self.runtime.take_steps()
            else:  # no phase before the first frontier has anything to do, and hardly one behind it
                self._run(now_ns)
                if not (scheduler.runnable or entries or any(self._queues) or self._holds_any()):
                    return self.runtime.take_steps()
                turn = self._behind
        for work, holds, run, frontier in turn:
            if work if holds is None else holds():
                run(now_ns)
            if frontier and (scheduler.runnable or entries):
                self._run(now_ns)
        return self.runtime.take_steps()

    def _holds_any(self) -> bool:
        """Whether a phase without a queue has work; asked at each poll, so without `__bool__` between."""
        for holds in self._conditions:  # noqa: SIM110 (a generator costs as much as all of them)
            if holds():
                return True
        return False

    def next_deadline_ns(self) -> int | None:
        """When to poll at the latest: 0 where something waits already, None where nothing comes by itself."""
        # Steps wait where a driver's answer made them, between two polls.
        if self._scheduler.runnable or self._admissible or self.runtime.steps or any(self._urgent):
            return 0
        times = [when for due in self._dues if due is not None and (when := due()) is not None]
        return min(times) if times else None

    # --- the frontier ---------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether something is ready that the last poll left."""
        return bool(self._scheduler.runnable) or self._admissible

    @property
    def _admissible(self) -> bool:
        return bool(self.ingress.entries) and not self._scheduler.pool.full

    def _run(self, now_ns: int) -> None:
        """Admits entries and drains, until nothing is ready or the budget is spent."""
        scheduler, entries, pool = self._scheduler, self.ingress.entries, self._scheduler.pool
        turns = scheduler.turns
        while (
            self._left > 0
            and not turns.spent
            and (scheduler.runnable or (entries and pool.entries < pool.max_entries))
        ):
            before = self._left
            while entries and pool.entries < pool.max_entries:
                self._admit(now_ns)
                if turns.clock is not None and scheduler.runnable:
                    break  # the next one stays where its deadline is looked at
            if scheduler.runnable or self._left == before:
                self._left -= max(1, scheduler.drain(self._left))
                if self.outgoing.unsent.lost or self.peers.changes:
                    self._hand_on()

    def _admit(self, now_ns: int) -> None:
        entry = self.ingress.entries.popleft()
        if not entry.internal:
            self.ingress.ledger.entry_admitted(entry.peer)
        if entry.expires_ns and now_ns >= entry.expires_ns:
            self.runtime.count("deadlines.expired")
            if entry.size:
                self.ingress.ledger.release(entry.peer, entry.size)
            return
        schedule, scheduler = entry.schedule, self._scheduler
        alone = not (scheduler.runnable or self.ingress.entries)
        if schedule is not None and entry.cause is None and self._left >= schedule.ops and alone:
            self._left -= schedule.run(scheduler, entry.target, entry.number or 0, entry.args[-1])
            return
        pool = scheduler.pool
        execution = pool.start(entry.target, entry.number, source=entry.peer, size=entry.size)
        entry.fill(execution, *entry.args)
        if execution.cause is None:
            execution.cause = entry.cause
        turns = scheduler.turns
        timed = entry.expires_ns and turns.clock is not None
        if timed and not turns.admits(execution, bool(self.ingress.entries)):
            scheduler.endings.too_late(execution)
        if execution.state is State.STARTED:  # nothing was written
            pool.wake(execution)

    def _hand_on(self) -> None:
        """Tells those who wait for peers what has changed, and those who asked what was never sent."""
        peers, news = self.peers, self.peers.uplink.take_news()
        for change in peers.take_changes() if peers.changes else ():
            if isinstance(change, steps.PeerDown):
                self.requests.peer_down(change.peer)
                self.calls.peer_down(change.peer)
                self.outgoing.durable.peer_down(change.peer)
            else:
                news = True
                self.outgoing.durable.peer_up(change.peer)
        if news:
            self.sources.peer_up()
        while peers.restarted:
            self.requests.peer_restarted(peers.restarted.pop())
        unsent = self.outgoing.unsent
        for req_id, peer, why in unsent.take_lost() if unsent.lost else ():
            if not self.calls.lost(req_id, peer):
                self.requests.settle_peer(req_id, peer, why)
        if self.calls.overdue:
            self.calls.tell_overdue()

    def _spent(self) -> bool:
        return self._left <= 0 or self._scheduler.turns.spent

    def _tell_budget(self, now_ns: int) -> None:
        """Something is still to be done: reports that the op budget is spent, or counts that the time is."""
        if not (self._scheduler.runnable or self._admissible or self.runtime.timers.due(now_ns)):
            return
        if self._scheduler.turns.spent:
            self.runtime.count("cycles.over_time")
        else:
            self.runtime.count("cycles.over_budget")
            self.runtime.emit(steps.CycleBudgetExceeded(self.runtime.config.cycle_op_budget))

    # --- phases ---------------------------------------------------------------------------------------

    def _take_notices(self, _now_ns: int) -> None:
        """Takes in presence, and what the transport has to say of peers."""
        notices = self.ingress.notices
        while notices:
            act, args = notices.popleft()
            act(*args)
            self._hand_on()

    def _fire_saved(self, _now_ns: int) -> None:
        """Ends durable requests that a snapshot on disk holds."""
        self.requests.fire_saved()

    def _take_envelopes(self, now_ns: int) -> None:
        """Reads envelopes, and decides which are taken; none while a journal is replayed."""
        if self.admission.journal.replaying:
            return  # nothing new before what the journal still holds
        envelopes, admission = self.ingress.envelopes, self.admission
        while envelopes:
            arrival = admission.read(envelopes.popleft(), now_ns)
            if self.peers.changes:
                self._hand_on()
            if arrival is not None:
                admission.decide(arrival, now_ns)
        if self.peers.changes:  # an answer tells that its peer answers again
            self._hand_on()

    def _fire(self, now_ns: int) -> None:
        """Calls the timers that are due, and runs what each of them makes ready."""
        while self._left > 0 and (due := self.runtime.timers.pop_due(now_ns)) is not None:
            due.callback(now_ns, *due.args)
            self._hand_on()
            # A callback counts as an op: one that arms the next for now would hold the poll for ever.
            self._left -= 1
            self._run(now_ns)

    def _complete(self, _now_ns: int) -> None:
        """Gives ops and remote ops the results that they wait for."""
        limit = self.runtime.config.completion_bytes
        completions = self.ingress.completions
        while completions:
            token, result, error = completions.pop(0)
            if error is None and payload_bytes(result) > limit:
                error = CapacityError(
                    f"a result of {payload_bytes(result)} bytes, {limit} at most",
                    hint="raise limits.completion_bytes (--config; in Python NodeConfig)",
                )
            if token < 0:  # a remote op's
                known = self.control.replies.completed(token, result, error)
            elif error is None:
                known = self._scheduler.resume(token, result)
            else:
                known = self._scheduler.fail(token, error)
            if not known:
                self.runtime.count("completions.late")

    def _count_late(self, _now_ns: int) -> None:
        """Counts results that nobody waits for any more."""
        late = self.ingress.late_completions
        while late:
            late.pop(0)
            self.runtime.count("completions.late")

    def _timers_may_be_due(self) -> bool:
        heap = self.runtime.timers.heap
        return bool(heap) and heap[0][0] <= self.runtime.now_ns

    def _may_send(self) -> bool:
        outgoing = self.outgoing
        return bool(outgoing.units or outgoing.held) or not (outgoing.durable.quiet and self.links.quiet)

    def _send(self, now_ns: int) -> None:
        """Packs what ops have sent into envelopes; repeats and acknowledges what is due."""
        self.outgoing.flush(now_ns)
        if self.outgoing.unsent.lost:
            self._hand_on()

    def _send_due(self) -> int | None:
        return 0 if self.outgoing.waits else self.outgoing.next_deadline_ns()

    def _relieve(self, _now_ns: int) -> None:
        """Lets peers send again that were asked to slow down, once the queue has drained."""
        self.admission.drained()
