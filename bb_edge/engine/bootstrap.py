"""Bootstraps: installed, not armed; the host starts them (semantics §5).

    NONE (no bootstrap: done at install)
    READY ──run_bootstrap──► QUEUED ──touch set free──► RUNNING ──execution ended──► DONE │ FAILED
    ──run_bootstrap──► QUEUED

While one runs, body ops that touch a component of its touch set wait. Disjoint bootstraps run at the same
time,
overlapping ones one after the other, in install order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.core import Engine
from bb_edge.engine.executions import INVOKE, BoundGraph, Execution
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
    """Every bootstrap that is not done, in install order."""


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
class _State:
    graph: BoundGraph
    touch_set: tuple[int, ...]
    status: BootstrapStatus = BootstrapStatus.READY
    inputs: Mapping[str, object] = field(default_factory=dict)


class Bootstraps:
    """The bootstraps of one node, in install order."""

    def __init__(
        self,
        engine: Engine,
        ingress: Ingress,
        targets: Sequence[str],
        graphs: Mapping[str, tuple[BoundGraph, tuple[int, ...]]],
        decode: Callable[[BoundGraph, str, object], object],
        on_done: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._ingress = ingress
        self._targets = tuple(targets)
        self._states = {t: _State(*graphs[t]) for t in targets if t in graphs}
        self._decode = decode
        self._on_done = on_done

    def status(self, target: str) -> BootstrapStatus:
        """UnknownTarget for a target that is not installed."""
        if target not in self._targets:
            raise UnknownTarget(
                f"no installed target {target!r}", "bootstrap", f"installed: {', '.join(self._targets)}"
            )
        state = self._states.get(target)
        return BootstrapStatus.NONE if state is None else state.status

    def bootstrapped(self, target: str) -> bool:
        return self.status(target) in (BootstrapStatus.NONE, BootstrapStatus.DONE)

    def request(self, what: BootstrapTarget) -> None:
        """Checks everything first, then queues all of it. Raises the errors of semantics §5."""
        if isinstance(what, BootstrapAll):
            open_states = (BootstrapStatus.READY, BootstrapStatus.FAILED)
            wanted = [BootstrapRequest(t) for t, s in self._states.items() if s.status in open_states]
        elif isinstance(what, ModuleNames):
            wanted = [BootstrapRequest(name) for name in what.names]
        elif isinstance(what, ModuleRequests):
            wanted = list(what.requests)
        else:
            raise UnknownTarget(f"no component bootstrap in slots {', '.join(what.slots)}", "bootstrap")
        staged: list[tuple[_State, dict[str, object]]] = []
        seen: set[str] = set()
        for one in wanted:
            state = self._states.get(one.target)
            if state is None:
                raise UnknownTarget(f"{one.target!r} has no bootstrap here", "bootstrap")
            if one.target in seen or state.status in (BootstrapStatus.QUEUED, BootstrapStatus.RUNNING):
                raise AlreadyTransitivelyQueued(f"the bootstrap of {one.target!r} is on its way", "bootstrap")
            seen.add(one.target)
            formals = state.graph.slot.inputs
            unknown = [name for name in one.inputs if name not in formals]
            missing = [name for name in formals if name not in one.inputs]
            if unknown:
                raise UnknownInput(
                    f"{one.target!r} has no input {unknown[0]!r}",
                    "bootstrap",
                    f"it has: {', '.join(formals)}",
                )
            if missing:
                raise MissingInput(f"{one.target!r} needs input {missing[0]!r}", "bootstrap")
            staged.append((state, {n: self._decode(state.graph, n, v) for n, v in one.inputs.items()}))
        for state, inputs in staged:
            state.inputs = inputs
            state.status = BootstrapStatus.QUEUED
        self._start_what_can()

    def _start_what_can(self) -> None:
        taken = set(self._engine.locked)
        for target, state in self._states.items():
            if state.status is BootstrapStatus.QUEUED:
                if not taken.intersection(state.touch_set):
                    state.status = BootstrapStatus.RUNNING
                    self._engine.locked.update(dict.fromkeys(state.touch_set, target))
                    self._ingress.offer(Entry(target, self._filler(target, state), internal=True))
                taken.update(state.touch_set)

    def _filler(self, target: str, state: _State) -> Callable[[Execution], None]:
        def fill(execution: Execution) -> None:
            region = state.graph.regions[0]
            execution.bootstrap = True
            execution.claim_set = state.graph.claims.get(INVOKE, ())
            execution.on_end = lambda ended: self._ended(target, state, ended.failed)
            frame = execution.frame_of(region)
            for name, value in state.inputs.items():
                self._engine.write(frame, state.graph.slot.inputs[name], value)
            self._engine.pull_unreached(frame)

        return fill

    def _ended(self, target: str, state: _State, failed: bool) -> None:
        state.status = BootstrapStatus.FAILED if failed else BootstrapStatus.DONE
        state.inputs = {}
        self._engine.unlock(state.touch_set)
        self._engine.emit(steps.BootstrapComplete(target, failed))
        self._engine.bus.publish(Bus.BOOTSTRAP_COMPLETE)
        if not failed:
            self._on_done(target)
        self._start_what_can()
