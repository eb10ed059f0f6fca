"""Bootstraps: installed, not armed; the host starts them (semantics §5).

    NONE (no bootstrap: done at install)
    READY │ DONE │ FAILED ──run_bootstrap──► QUEUED ──touch set free and claimed──► RUNNING ──► DONE │ FAILED

A target's bootstrap is a function, `<target>__bootstrap`; a component's is its `bootstrap` method, the one of
slot "index" is called "index" here. While one runs, body ops that touch a component of its touch set wait.
Disjoint bootstraps run at the same time, overlapping ones one after the other, in install order.

A bootstrap claims the unshared components of its touch set before it starts: an execution that is at work
on one of them comes to its end first, and none can hold one while it waits for the bootstrap.

**Kept going.** A host that runs unattended asks for all of them at once (`keep_going`): then a failed one is
tried again after 1 s, doubling to 60 s, by a timer of the engine's, and until it is done

* the entries of every target that shares a component with it wait (Pulse, Interval, Repeat, `started`),
* body ops that touch its components fail with `NotBootstrapped` between two tries, where nobody knows how
  long a wait would be, and wait while it runs,
* remote ops of its components are refused unmarked, so that their senders repeat them,
* what overlaps with it waits for its turn behind it.

Before each further try its components are constructed anew. So is what shares components with them: a
bootstrap that was done there runs again first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.entries.bootstrap_requests import (
    AlreadyTransitivelyQueued,
    BootstrapAll,
    BootstrapState,
    BootstrapStatus,
    BootstrapTarget,
    MissingInput,
    ModuleNames,
    ModuleRequests,
    UnknownInput,
    UnknownTarget,
)
from bb_edge.engine.entries.sources import Sources
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.ir.suggestions import suggestion


class NotBootstrapped(OpError):
    """An op touches a component whose bootstrap is not done; its branch ends, the node goes on."""


FIRST_WAIT_NS, LONGEST_WAIT_NS = 1_000_000_000, 60_000_000_000
"""Between a failed try and the next: doubling, as the back-off of rounds and peers."""


def seconds(duration_ns: int) -> str:
    """A wait as people read it, rounded up: `4 s`."""
    return f"{max(0, -(-duration_ns // 1_000_000_000))} s"


@dataclass(slots=True)
class Planned:
    """One bootstrap: what it touches, and how it runs, by a graph or by a component's method.

    `start(execution)` puts its first ops on the frontier.
    """

    target: str
    slot: str  # of a component's bootstrap; "" for a target's
    touch_set: tuple[int, ...]
    graph: BoundGraph | None
    start: Callable[[Execution, Mapping[str, object]], None]
    status: BootstrapStatus = BootstrapStatus.READY
    staged: bool = False  # admitted, or about to be; its touch set is taken
    inputs: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, object] = field(default_factory=dict)  # kept for the next try
    wait_ns: int = 0  # before the next try
    next_try_ns: int = 0  # 0: nobody tries again
    reason: str = ""  # why the last try failed
    lost: bool = False  # it was done before a restart, and its component saves no state: it runs first of all

    @property
    def done(self) -> bool:
        return self.status is BootstrapStatus.DONE

    @property
    def name(self) -> str:
        return self.slot or self.target

    def refusal(self, now_ns: int) -> NotBootstrapped:
        """Why an op of a component cannot run before the bootstrap is done."""
        whose = f"slot {self.slot!r}" if self.slot else f"{self.target}'s"
        why = f" ({self.reason})" if self.reason else ""
        when = f"in {seconds(self.next_try_ns - now_ns)}" if self.next_try_ns else "as soon as it can"
        return NotBootstrapped(f"the bootstrap of {whose} is not done{why}", hint=f"it is tried {when}")

    def op_failed(self, failure: steps.OpFailed) -> None:
        """An op of the bootstrap failed: the first one is why."""
        if not self.reason:
            where = f"{failure.op} ({failure.source})" if failure.source else failure.op
            self.reason = f"{where}: {failure.text}"

    @property
    def formals(self) -> Mapping[str, int]:
        return {} if self.graph is None else self.graph.slot.inputs


class Bootstraps:
    """The bootstraps of one node, in install order; a component's stands before those of its targets."""

    def __init__(
        self,
        engine: Scheduler,
        ingress: Ingress,
        targets: Sequence[str],
        of_targets: Mapping[str, Planned],
        of_slots: Mapping[str, Planned],
        decode: Callable[[BoundGraph, str, object], object],
        sources: Sources,
        renew: Callable[[Sequence[int]], None],
        want_snapshot: Callable[[str], None],
    ) -> None:
        """`sources` are the entries that wait for bootstraps; `renew(components)` constructs components anew;
        `want_snapshot` hears that a bootstrap is done that should not run again.
        """
        self._engine = engine
        self._runtime = engine.runtime
        self._ingress = ingress
        self._targets = tuple(targets)
        self._of_targets = dict(of_targets)
        self._of_slots = dict(of_slots)
        self._order = tuple(
            planned
            for target in self._targets
            for planned in (
                *(p for p in self._of_slots.values() if p.target == target),
                *(p for name, p in self._of_targets.items() if name == target),
            )
        )
        self._decode = decode
        self._sources = sources
        self._renew = renew
        self._want_snapshot = want_snapshot
        self._keeps_going = False
        for name, action in (
            ("fill", self._fill),
            ("begin", self._begin),
            ("ended", self._ended),
            ("retry", self._retry),
        ):
            engine.runtime.callbacks.register(f"bootstrap.{name}", action)

    @property
    def order(self) -> tuple[Planned, ...]:
        """All bootstraps, in install order."""
        return self._order

    @property
    def states(self) -> tuple[BootstrapState, ...]:
        """All of them as they stand, in install order."""
        return tuple(BootstrapState(p.target, p.slot, p.status, p.next_try_ns, p.reason) for p in self._order)

    def planned(self, target: str, slot: str) -> Planned:
        """The bootstrap of a slot's component, or of a target where the slot is empty."""
        return self._of_slots[slot] if slot else self._of_targets[target]

    def status(self, name: str) -> BootstrapStatus:
        """Of a target, else of a slot's component. UnknownTarget where neither is installed."""
        planned = self._of_targets.get(name)
        if planned is None and name not in self._targets:
            planned = self._of_slots.get(name)
            if planned is None:
                raise UnknownTarget(
                    f"no installed target {name!r}, and no slot with a bootstrap",
                    "bootstrap",
                    suggestion(name, self._targets, "installed: "),
                )
        return BootstrapStatus.NONE if planned is None else planned.status

    def bootstrapped(self, target: str) -> bool:
        return self.status(target) in (BootstrapStatus.NONE, BootstrapStatus.DONE)

    def request(self, what: BootstrapTarget) -> None:
        """Checks everything first, then queues all of it.

        Raises UnknownTarget, UnknownInput, MissingInput, AlreadyTransitivelyQueued, InvokeError.
        """
        self._stage(self._checked(self._wanted(what)))

    def keep_going(self, inputs: Mapping[str, Mapping[str, object]]) -> None:
        """Starts every bootstrap that is not done, and tries again what fails until it is done.

        `inputs` are those of targets' bootstraps, by target; those of one that is done already are checked
        and not used. For hosts that run unattended; before the first poll. Raises what `request` raises,
        having staged nothing.
        """
        for target in inputs:
            self._find(self._of_targets, target)
        underway = (BootstrapStatus.QUEUED, BootstrapStatus.RUNNING)
        every = [(p, inputs.get(p.target, {}) if not p.slot else {}) for p in self._order]
        found = self._checked(every, again=True)
        self._keeps_going = True
        for planned, given in found:
            planned.given = given
        for planned in [p for p, _ in found if p.status is BootstrapStatus.FAILED]:
            self._start_anew(planned)  # of a snapshot: its components are as the failure left them
        fresh = [(p, given) for p, given in found if not p.done and p.status not in underway]
        for target in self._targets:
            if not self._free(target):
                self._sources.hold_target(target)
        self._stage(fresh)
        pool = self._engine.pool
        if pool.entries + len(self._ingress.entries) <= pool.max_entries:  # all of them find a place
            # What a restart has brought back waits for them.
            for planned, _ in fresh:
                if planned.lost:
                    self._engine.waiting.lock(planned.touch_set, planned.name)

    def _checked(
        self, wanted: Sequence[tuple[Planned, Mapping[str, object]]], again: bool = False
    ) -> list[tuple[Planned, Mapping[str, object]]]:
        """The same with decoded inputs; `again`: one that is on its way or done is no mistake."""
        staged: list[tuple[Planned, Mapping[str, object]]] = []
        seen: set[int] = set()
        for planned, inputs in wanted:
            name = planned.name
            underway = planned.status in (BootstrapStatus.QUEUED, BootstrapStatus.RUNNING)
            if id(planned) in seen or (underway and not again):
                raise AlreadyTransitivelyQueued(f"the bootstrap of {name!r} is on its way", "bootstrap")
            seen.add(id(planned))
            formals = planned.formals
            unknown = [given for given in inputs if given not in formals]
            missing = [formal for formal in formals if formal not in inputs]
            if unknown:
                raise UnknownInput(
                    f"{name!r} has no input {unknown[0]!r}",
                    "bootstrap",
                    suggestion(unknown[0], formals, "it has: ") or "it has none",
                )
            if missing and not (again and planned.done):
                raise MissingInput(
                    f"{name!r} needs input {missing[0]!r}",
                    "bootstrap",
                    f"give it: --bootstrap {name}.{missing[0]}=VALUE, or run_bootstrap(ModuleRequests(…))",
                )
            graph = planned.graph
            decoded = {} if graph is None else {n: self._decode(graph, n, v) for n, v in inputs.items()}
            staged.append((planned, decoded))
        return staged

    def _stage(self, staged: Sequence[tuple[Planned, Mapping[str, object]]]) -> None:
        for planned, decoded in staged:
            planned.inputs = decoded
            planned.status = BootstrapStatus.QUEUED
        self._start_what_can()

    def _wanted(self, what: BootstrapTarget) -> list[tuple[Planned, Mapping[str, object]]]:
        if isinstance(what, BootstrapAll):
            open_states = (BootstrapStatus.READY, BootstrapStatus.FAILED)
            return [(planned, {}) for planned in self._order if planned.status in open_states]
        if isinstance(what, ModuleNames):
            return [(self._find(self._of_targets, name), {}) for name in what.names]
        if isinstance(what, ModuleRequests):
            return [(self._find(self._of_targets, one.target), one.inputs) for one in what.requests]
        return [(self._find(self._of_slots, name), {}) for name in what.slots]

    def _find(self, among: Mapping[str, Planned], name: str) -> Planned:
        planned = among.get(name)
        if planned is None:
            what = "target" if among is self._of_targets else "slot"
            raise UnknownTarget(
                f"no bootstrap of {what} {name!r} here",
                "bootstrap",
                suggestion(name, among, "there are: ") or "there are none",
            )
        return planned

    def _start_what_can(self) -> None:
        taken: set[int] = set()
        for planned in self._order:
            if planned.staged or (planned.status is BootstrapStatus.FAILED and planned.next_try_ns):
                taken.update(planned.touch_set)
        for planned in self._order:
            if planned.status is BootstrapStatus.QUEUED and not planned.staged:
                if not taken.intersection(planned.touch_set):
                    planned.staged = True
                    name = (planned.target, planned.slot)
                    self._ingress.offer(Entry(planned.target, self._fill, name, internal=True))
                taken.update(planned.touch_set)
        self._tell()

    def _tell(self) -> None:
        """Tells the engine what must not be touched yet, while somebody keeps the bootstraps going."""
        if self._keeps_going:
            still = [p for p in self._order if not p.done and p.status is not BootstrapStatus.RUNNING]
            self._engine.waiting.refuse({component: p for p in still for component in p.touch_set})

    def _free(self, target: str) -> bool:
        """Whether nothing that a target's slots are bound to waits for a bootstrap."""
        own = {index for (name, _), index in self._engine.components.slots.items() if name == target}
        return all(p.done or (p.target != target and own.isdisjoint(p.touch_set)) for p in self._order)

    # --- trying again ---------------------------------------------------------------------------------

    def _retry(self, _now_ns: int, target: str, slot: str) -> None:
        planned = self.planned(target, slot)
        if planned.status is not BootstrapStatus.FAILED or not self._keeps_going:
            return  # of a snapshot: it was started at once
        planned.next_try_ns = 0
        if self._start_anew(planned):
            self._stage([(planned, planned.given)])

    def _start_anew(self, planned: Planned) -> bool:
        """Constructs anew what a failed bootstrap has touched, and queues again whatever was done with that.

        False where that fails, which is one more failed try.
        """
        components = set(planned.touch_set)
        undone: list[Planned] = []
        for _ in self._order:  # at most so many can be drawn in
            more = [
                p for p in self._order if p.done and p not in undone and components.intersection(p.touch_set)
            ]
            if not more:
                break
            undone += more
            components.update(c for p in more for c in p.touch_set)
        try:
            self._renew(sorted(components))
        # The border to users' components: what `construct` raises is a failed try.
        except Exception as error:  # noqa: BLE001
            planned.reason = steps.failure_text(error)
            self._again_later(planned)
            self._runtime.emit(
                steps.BootstrapComplete(planned.target, True, planned.slot, planned.reason, planned.wait_ns)
            )
            self._tell()
            return False
        for other in undone:
            other.inputs, other.status = other.given, BootstrapStatus.QUEUED
        return True

    def _again_later(self, planned: Planned) -> None:
        planned.wait_ns = min(2 * planned.wait_ns or FIRST_WAIT_NS, LONGEST_WAIT_NS)
        planned.next_try_ns = self._runtime.now_ns + planned.wait_ns
        planned.status = BootstrapStatus.FAILED
        self._runtime.timers.at(planned.next_try_ns, self._retry, planned.target, planned.slot, reserved=True)

    # --- one bootstrap --------------------------------------------------------------------------------

    def _fill(self, execution: Execution, target: str, slot: str) -> None:
        engine = self._engine
        planned = self.planned(target, slot)
        execution.bootstrap = planned
        if not planned.lost:  # else who holds them waits for the bootstrap
            execution.will_claim(tuple(c for c in planned.touch_set if not engine.components[c].shared))
        execution.on_end = self._ended
        engine.waiting.claim(execution, self._begin)

    def _begin(self, execution: Execution) -> None:
        planned = _bootstrap_of(execution)
        planned.status, planned.reason, planned.lost = BootstrapStatus.RUNNING, "", False
        self._tell()
        self._runtime.emit(steps.BootstrapStarted(planned.target, planned.slot))
        self._engine.waiting.lock(planned.touch_set, planned.name)
        planned.start(execution, planned.inputs)

    def _ended(self, execution: Execution) -> None:
        planned, failed = _bootstrap_of(execution), execution.failed
        planned.status = BootstrapStatus.FAILED if failed else BootstrapStatus.DONE
        planned.inputs, planned.staged = {}, False
        engine = self._engine
        if failed:
            planned.reason = planned.reason or "an op of it never got all its inputs"
            if self._keeps_going:
                self._again_later(planned)
        else:
            planned.wait_ns, planned.reason = 0, ""
        self._tell()
        engine.waiting.unlock(planned.touch_set)
        wait = planned.wait_ns if planned.next_try_ns else 0
        self._runtime.emit(
            steps.BootstrapComplete(planned.target, failed, planned.slot, planned.reason, wait)
        )
        self._runtime.bus.publish(Bus.BOOTSTRAP_COMPLETE)
        if self._keeps_going:
            for target in self._targets:
                if not failed and self._free(target):
                    self._sources.start_target(target)
            if not failed:
                self._want_snapshot("a bootstrap")
        elif not failed and not planned.slot:
            self._sources.start_target(planned.target)
        self._start_what_can()


def _bootstrap_of(execution: Execution) -> Planned:
    assert isinstance(execution.bootstrap, Planned)
    return execution.bootstrap


def of_target(engine: Scheduler, graph: BoundGraph, touch_set: tuple[int, ...]) -> Planned:
    """The bootstrap of a target: a function."""

    def start(execution: Execution, inputs: Mapping[str, object]) -> None:
        frame = execution.frame_of(graph.regions[0])
        for name, value in inputs.items():
            engine.write(frame, graph.slot.inputs[name], value)
        engine.pull_unreached(frame)

    return Planned(graph.target, "", touch_set, graph, start)


def of_component(target: str, slot: str, graph: BoundGraph, component: int) -> Planned:
    """The bootstrap of a slot's component: a graph of one op that calls its method."""

    def start(execution: Execution, inputs: Mapping[str, object]) -> None:
        execution.ready.append((execution.frame_of(graph.regions[0]), graph.ops[0]))

    return Planned(target, slot, (component,), None, start)
