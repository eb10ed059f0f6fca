"""The bootstraps of a node: installed, not started; the host starts them.

While one runs, body ops that touch a component of its touch set wait. Disjoint bootstraps run at the same
time, overlapping ones one after the other, in install order. The life of each is a table (`bootstrap.py`).

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

Rules E27 to E29 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.entries.bootstrap import (
    AlreadyTransitivelyQueued,
    Bootstrap,
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
from bb_edge.engine.errors import failure_text
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import BOOTSTRAP_OP_FAILED, Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.component import Component

Request = tuple[Bootstrap, Mapping[str, object]]
"""A bootstrap that is to run, and its inputs."""


@dataclass(slots=True, eq=False)
class Bootstraps:
    """The bootstraps of one node, in install order; a component's stands before those of its targets.

    `sources` are the entries that wait for bootstraps; `renew(components)` constructs components anew;
    `want_snapshot` hears that a bootstrap is done that should not run again.
    """

    _runtime: Runtime
    _scheduler: Scheduler
    _ingress: Ingress
    _targets: Sequence[str]
    _of_targets: Mapping[str, Bootstrap]
    _of_slots: Mapping[str, Bootstrap]
    _decode: Callable[[BoundGraph, str, object], object]
    _sources: Sources
    _renew: Callable[[Sequence[int]], None]
    _want_snapshot: Callable[[str], None]
    order: list[Bootstrap] = field(default_factory=list)
    _keeps_going: bool = False

    def __post_init__(self) -> None:
        for target in self._targets:
            self.order += [p for p in self._of_slots.values() if p.target == target]
            if target in self._of_targets:
                self.order.append(self._of_targets[target])
        register = self._runtime.callbacks.register
        register("bootstrap.fill", self._fill)
        register("bootstrap.begin", self._begin)
        register("bootstrap.ended", self._ended)
        register("bootstrap.retry", self._retry)
        register(BOOTSTRAP_OP_FAILED, self._op_failed)

    @property
    def states(self) -> tuple[BootstrapState, ...]:
        """All of them as they stand, in install order."""
        return tuple(bootstrap.state for bootstrap in self.order)

    def find(self, target: str, slot: str) -> Bootstrap:
        """The bootstrap of a slot's component, or of a target where the slot is empty."""
        return self._of_slots[slot] if slot else self._of_targets[target]

    def request(self, what: BootstrapTarget) -> None:
        """Checks everything first, then queues all of it.

        Raises UnknownTarget, UnknownInput, MissingInput, AlreadyTransitivelyQueued, InvokeError.
        """
        self._stage(self._checked(self._wanted(what)))

    def keep_going(self, inputs: Mapping[str, Mapping[str, object]]) -> None:
        """See `Node.keep_bootstrapping`. Inputs of one that is done already are checked, and not used.

        Raises what `request` raises, having staged nothing.
        """
        for target in inputs:
            self._find(self._of_targets, target)
        every = [(p, inputs.get(p.target, {}) if not p.slot else {}) for p in self.order]
        requests = self._checked(every, again=True)
        self._keeps_going = True
        for bootstrap, given in requests:
            bootstrap.given = given
        for bootstrap in [p for p, _ in requests if p.status is BootstrapStatus.FAILED]:
            self._start_anew(bootstrap)  # of a snapshot: its components are as the failure left them
        fresh = [(p, given) for p, given in requests if not p.done and not p.underway]
        for target in self._targets:
            if not self._free(target):
                self._sources.hold_target(target)
        self._stage(fresh)
        pool = self._scheduler.pool
        if pool.entries + len(self._ingress.entries) <= pool.max_entries:  # all of them find a place
            # What a restart has brought back waits for them.
            for bootstrap, _ in fresh:
                if bootstrap.lost:
                    self._scheduler.waiting.lock(bootstrap.touch_set, bootstrap.name)

    def _checked(self, wanted: Sequence[Request], again: bool = False) -> list[Request]:
        """The same with decoded inputs; `again`: one that is on its way or done is not a mistake."""
        staged: list[Request] = []
        seen: set[int] = set()
        for bootstrap, inputs in wanted:
            name = bootstrap.name
            if id(bootstrap) in seen or (bootstrap.underway and not again):
                raise AlreadyTransitivelyQueued(f"the bootstrap of {name!r} is on its way", "bootstrap")
            seen.add(id(bootstrap))
            formals = bootstrap.formals
            unknown = [given for given in inputs if given not in formals]
            missing = [formal for formal in formals if formal not in inputs]
            if unknown:
                raise UnknownInput(
                    f"{name!r} has no input {unknown[0]!r}",
                    "bootstrap",
                    suggestion(unknown[0], formals, "it has: ") or "it has none",
                )
            if missing and not (again and bootstrap.done):
                raise MissingInput(
                    f"{name!r} needs input {missing[0]!r}",
                    "bootstrap",
                    f"give it: --bootstrap {name}.{missing[0]}=VALUE, or run_bootstrap(ModuleRequests(…))",
                )
            graph = bootstrap.graph
            decoded = {} if graph is None else {n: self._decode(graph, n, v) for n, v in inputs.items()}
            staged.append((bootstrap, decoded))
        return staged

    def _stage(self, staged: Sequence[Request]) -> None:
        for bootstrap, decoded in staged:
            bootstrap.ask(decoded)
        self._start_what_can()

    def _wanted(self, what: BootstrapTarget) -> list[Request]:
        if isinstance(what, BootstrapAll):
            return [(p, {}) for p in self.order if not (p.done or p.underway)]
        if isinstance(what, ModuleNames):
            return [(self._find(self._of_targets, name), {}) for name in what.names]
        if isinstance(what, ModuleRequests):
            return [(self._find(self._of_targets, one.target), one.inputs) for one in what.requests]
        return [(self._find(self._of_slots, name), {}) for name in what.slots]

    def _find(self, among: Mapping[str, Bootstrap], name: str) -> Bootstrap:
        bootstrap = among.get(name)
        if bootstrap is None:
            what = "target" if among is self._of_targets else "slot"
            raise UnknownTarget(
                f"no bootstrap of {what} {name!r} here",
                "bootstrap",
                suggestion(name, among, "there are: ") or "there are none",
            )
        return bootstrap

    def _start_what_can(self) -> None:
        taken: set[int] = set()
        for bootstrap in self.order:
            if bootstrap.staged or (bootstrap.status is BootstrapStatus.FAILED and bootstrap.next_try_ns):
                taken.update(bootstrap.touch_set)
        for bootstrap in self.order:
            if bootstrap.status is BootstrapStatus.QUEUED and not bootstrap.staged:
                if not taken.intersection(bootstrap.touch_set):
                    bootstrap.staged = True
                    name = (bootstrap.target, bootstrap.slot)
                    self._ingress.offer(Entry(bootstrap.target, self._fill, name, internal=True))
                taken.update(bootstrap.touch_set)
        self._tell()

    def _tell(self) -> None:
        """Tells the engine what must not be touched yet, while somebody keeps the bootstraps going."""
        if self._keeps_going:
            still = [p for p in self.order if not p.done and p.status is not BootstrapStatus.RUNNING]
            self._scheduler.waiting.refuse({component: p.refusal for p in still for component in p.touch_set})

    def _free(self, target: str) -> bool:
        """Whether nothing that a target's slots are bound to waits for a bootstrap."""
        own = {index for (name, _), index in self._scheduler.components.slots.items() if name == target}
        return all(p.done or (p.target != target and own.isdisjoint(p.touch_set)) for p in self.order)

    def _retry(self, _now_ns: int, target: str, slot: str) -> None:
        bootstrap = self.find(target, slot)
        if bootstrap.status is not BootstrapStatus.FAILED or not self._keeps_going:
            return  # of a snapshot: it was started at once
        bootstrap.next_try_ns = 0
        if self._start_anew(bootstrap):
            self._stage([(bootstrap, bootstrap.given)])

    def _start_anew(self, bootstrap: Bootstrap) -> bool:
        """Constructs anew what a failed bootstrap has touched, and queues again whatever was done with that.

        False where that fails, which is one more failed try.
        """
        components = set(bootstrap.touch_set)
        undone: list[Bootstrap] = []
        for _ in self.order:  # at most so many can be drawn in
            more = [
                p for p in self.order if p.done and p not in undone and components.intersection(p.touch_set)
            ]
            if not more:
                break
            undone += more
            components.update(c for p in more for c in p.touch_set)
        try:
            self._renew(sorted(components))
        # The border to users' components: what `construct` raises is a failed try.
        except Exception as error:  # noqa: BLE001
            bootstrap.fail(failure_text(error))
            self._again_later(bootstrap)
            self._runtime.emit(_complete(bootstrap, failed=True))
            self._tell()
            return False
        for other in undone:
            other.ask(other.given)
        return True

    def _again_later(self, bootstrap: Bootstrap) -> None:
        when = bootstrap.put_off(self._runtime.now_ns)
        self._runtime.timers.at(when, self._retry, bootstrap.target, bootstrap.slot, reserved=True)

    def _fill(self, execution: Execution, target: str, slot: str) -> None:
        scheduler = self._scheduler
        bootstrap = self.find(target, slot)
        execution.bootstrap = target, slot
        if not bootstrap.lost:  # else who holds them waits for the bootstrap
            execution.will_claim(tuple(c for c in bootstrap.touch_set if not scheduler.components[c].shared))
        execution.on_end = self._ended
        scheduler.waiting.claim(execution, self._begin)

    def _of(self, execution: Execution) -> Bootstrap:
        assert execution.bootstrap is not None
        return self.find(*execution.bootstrap)

    def _op_failed(self, target: str, slot: str, failure: steps.OpFailed) -> None:
        self.find(target, slot).op_failed(failure)

    def _begin(self, execution: Execution) -> None:
        bootstrap = self._of(execution)
        self._runtime.emit(steps.BootstrapStarted(bootstrap.target, bootstrap.slot))
        self._scheduler.waiting.lock(bootstrap.touch_set, bootstrap.name)
        bootstrap.begin(execution)
        self._tell()

    def _ended(self, execution: Execution) -> None:
        bootstrap, failed = self._of(execution), execution.failed
        if failed:
            bootstrap.fail(bootstrap.reason or "an op of it never got all its inputs")
            if self._keeps_going:
                self._again_later(bootstrap)
        else:
            bootstrap.succeed()
        self._tell()
        self._scheduler.waiting.unlock(bootstrap.touch_set)
        self._runtime.emit(_complete(bootstrap, failed))
        self._runtime.bus.publish(Bus.BOOTSTRAP_COMPLETE)
        if self._keeps_going:
            for target in self._targets:
                if not failed and self._free(target):
                    self._sources.start_target(target)
            if not failed:
                self._want_snapshot("a bootstrap")
        elif not failed and not bootstrap.slot:
            self._sources.start_target(bootstrap.target)
        self._start_what_can()

    def save(self) -> list[Any]:
        """All of them, as plain values."""
        return [bootstrap.save() for bootstrap in self.order]

    def restore(self, plain: Any) -> None:
        """Goes on where the bootstraps of a snapshot stood; for a node that has not been polled."""
        for target, slot, status, staged, inputs in plain:
            bootstrap = self.find(target, slot)
            component = self._scheduler.components[bootstrap.touch_set[0]] if slot else None
            forgotten = component is not None and type(component).serialize is Component.serialize
            bootstrap.restore(status, staged, inputs, forgotten)


def _complete(bootstrap: Bootstrap, failed: bool) -> steps.BootstrapComplete:
    wait = bootstrap.wait_ns if bootstrap.next_try_ns else 0
    return steps.BootstrapComplete(bootstrap.target, failed, bootstrap.slot, bootstrap.reason, wait)
