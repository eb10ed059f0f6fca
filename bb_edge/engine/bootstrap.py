"""Bootstraps: installed, not armed; the host starts them (semantics §5).

    NONE (no bootstrap: done at install)
    READY │ DONE │ FAILED ──run_bootstrap──► QUEUED ──touch set free and claimed──► RUNNING ──► DONE │ FAILED

A target's bootstrap is a function, `<target>__bootstrap`; a component's is its `bootstrap` method, the one of
slot "index" is called "index" here. While one runs, body ops that touch a component of its touch set wait.
Disjoint bootstraps run at the same time, overlapping ones one after the other, in install order.

A bootstrap claims the unshared components of its touch set before it starts: an execution that is at work
on one of them comes to its end first, and none can hold one while it waits for the bootstrap.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.core import Engine
from bb_edge.engine.executions import BoundGraph, Execution
from bb_edge.engine.ingress import Entry, Ingress
from bb_edge.ir.errors import BBError


class BootstrapError(BBError):
    """A request that cannot be staged; nothing of it was."""


class UnknownTarget(BootstrapError):
    """No installed target of that name has a bootstrap."""


class UnknownInput(BootstrapError):
    """An input that the bootstrap does not declare."""


class MissingInput(BootstrapError):
    """A declared input that was not given."""


class AlreadyTransitivelyQueued(BootstrapError):
    """The bootstrap waits or runs already."""


class BootstrapStatus(enum.Enum):
    NONE = "none"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BootstrapAll:
    """Every bootstrap that is not done, components' and targets', in install order."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """These targets' bootstraps, without inputs."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """One target's bootstrap with values for its inputs."""

    target: str
    inputs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModuleRequests:
    """Several targets' bootstraps with inputs."""

    requests: tuple[BootstrapRequest, ...]


@dataclass(frozen=True, slots=True)
class Slots:
    """The bootstraps of the components in these slots."""

    slots: tuple[str, ...]


BootstrapTarget = BootstrapAll | ModuleNames | ModuleRequests | Slots


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

    @property
    def name(self) -> str:
        return self.slot or self.target

    @property
    def formals(self) -> Mapping[str, int]:
        return {} if self.graph is None else self.graph.slot.inputs


class Bootstraps:
    """The bootstraps of one node, in install order; a component's stands before those of its targets."""

    def __init__(
        self,
        engine: Engine,
        ingress: Ingress,
        targets: Sequence[str],
        of_targets: Mapping[str, Planned],
        of_slots: Mapping[str, Planned],
        decode: Callable[[BoundGraph, str, object], object],
        on_done: Callable[[str], None],
    ) -> None:
        self._engine = engine
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
        self._on_done = on_done
        for name, action in (("fill", self._fill), ("begin", self._begin), ("ended", self._ended)):
            engine.actions.register(f"bootstrap.{name}", action)

    @property
    def order(self) -> tuple[Planned, ...]:
        """All bootstraps, in install order."""
        return self._order

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
                    f"installed: {', '.join(self._targets)}",
                )
        return BootstrapStatus.NONE if planned is None else planned.status

    def bootstrapped(self, target: str) -> bool:
        return self.status(target) in (BootstrapStatus.NONE, BootstrapStatus.DONE)

    def request(self, what: BootstrapTarget) -> None:
        """Checks everything first, then queues all of it. Raises the errors of semantics §5."""
        staged: list[tuple[Planned, dict[str, object]]] = []
        seen: set[int] = set()
        for planned, inputs in self._wanted(what):
            name = planned.name
            if id(planned) in seen or planned.status in (BootstrapStatus.QUEUED, BootstrapStatus.RUNNING):
                raise AlreadyTransitivelyQueued(f"the bootstrap of {name!r} is on its way", "bootstrap")
            seen.add(id(planned))
            formals = planned.formals
            unknown = [given for given in inputs if given not in formals]
            missing = [formal for formal in formals if formal not in inputs]
            if unknown:
                raise UnknownInput(
                    f"{name!r} has no input {unknown[0]!r}", "bootstrap", f"it has: {', '.join(formals)}"
                )
            if missing:
                raise MissingInput(f"{name!r} needs input {missing[0]!r}", "bootstrap")
            graph = planned.graph
            decoded = {} if graph is None else {n: self._decode(graph, n, v) for n, v in inputs.items()}
            staged.append((planned, decoded))
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
                f"there are: {', '.join(among) or 'none'}",
            )
        return planned

    def _start_what_can(self) -> None:
        taken: set[int] = set()
        for planned in self._order:
            if planned.staged:
                taken.update(planned.touch_set)
        for planned in self._order:
            if planned.status is BootstrapStatus.QUEUED and not planned.staged:
                if not taken.intersection(planned.touch_set):
                    planned.staged = True
                    name = (planned.target, planned.slot)
                    self._ingress.offer(Entry(planned.target, self._fill, name, internal=True))
                taken.update(planned.touch_set)

    def _fill(self, execution: Execution, target: str, slot: str) -> None:
        engine = self._engine
        planned = self.planned(target, slot)
        execution.bootstrap = True
        execution.bootstrap_of = planned
        execution.claim_set = tuple(c for c in planned.touch_set if not engine.components[c].shared)
        execution.on_end = self._ended
        execution.pending += 1  # holds the execution open until it has begun
        if engine.claims.acquire(execution):
            self._begin(execution)
        else:
            execution.on_claimed = self._begin

    def _begin(self, execution: Execution) -> None:
        planned = execution.bootstrap_of
        execution.on_claimed = None
        execution.pending -= 1
        planned.status = BootstrapStatus.RUNNING
        self._engine.locked.update(dict.fromkeys(planned.touch_set, planned.name))
        planned.start(execution, planned.inputs)

    def _ended(self, execution: Execution) -> None:
        planned, failed = execution.bootstrap_of, execution.failed
        planned.status = BootstrapStatus.FAILED if failed else BootstrapStatus.DONE
        planned.inputs = {}
        planned.staged = False
        engine = self._engine
        engine.unlock(planned.touch_set)
        engine.emit(steps.BootstrapComplete(planned.target, failed, planned.slot))
        engine.bus.publish(Bus.BOOTSTRAP_COMPLETE)
        if not failed and not planned.slot:
            self._on_done(planned.target)
        self._start_what_can()


def of_target(engine: Engine, graph: BoundGraph, touch_set: tuple[int, ...]) -> Planned:
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
