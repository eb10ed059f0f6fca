"""One bootstrap: what may be asked of it, its life as a table, what it touches, and how it runs.

A target's bootstrap is a function, `<target>__bootstrap`; a component's is its `bootstrap` method, the one of
slot "index" is called "index" here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.engine import steps
from bb_edge.engine.errors import OpError
from bb_edge.engine.plain import dump, load
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.ir.errors import BBError
from bb_edge.ir.transitions import Table


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
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing has to run any more."""
        return self is BootstrapStatus.DONE


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


@dataclass(frozen=True, slots=True)
class BootstrapState:
    """One bootstrap as the outside sees it: `slot` is empty for a target's own.

    `next_try_ns` is monotonic, 0 where nobody tries again; `reason` is why the last try failed.
    """

    target: str
    slot: str
    status: BootstrapStatus
    next_try_ns: int = 0
    reason: str = ""


class NotBootstrapped(OpError):
    """An op touches a component whose bootstrap is not done; its branch ends, the node goes on."""


class Event(enum.Enum):
    """What happens to a bootstrap."""

    ASK = "asked"  # by the host, by its timer, or because its components were constructed anew
    BEGIN = "begun"  # its touch set is free and claimed
    SUCCEED = "succeeded"
    FAIL = "failed"  # an op of it, or the construction of its components before the next try
    FORGET = "forgotten"  # it was done before a restart, and its component saves no state


LIFE: Final = Table(
    "bootstrap",
    BootstrapStatus.READY,
    {
        (BootstrapStatus.READY, Event.ASK): BootstrapStatus.QUEUED,
        (BootstrapStatus.DONE, Event.ASK): BootstrapStatus.QUEUED,
        (BootstrapStatus.FAILED, Event.ASK): BootstrapStatus.QUEUED,
        (BootstrapStatus.QUEUED, Event.BEGIN): BootstrapStatus.RUNNING,
        (BootstrapStatus.RUNNING, Event.SUCCEED): BootstrapStatus.DONE,
        (BootstrapStatus.RUNNING, Event.FAIL): BootstrapStatus.FAILED,
        (BootstrapStatus.FAILED, Event.FAIL): BootstrapStatus.FAILED,
        (BootstrapStatus.DONE, Event.FORGET): BootstrapStatus.READY,
    },
)

FIRST_WAIT_NS, LONGEST_WAIT_NS = 1_000_000_000, 60_000_000_000
"""Between a failed try and the next: doubling, as the back-off of rounds and peers."""


def seconds(duration_ns: int) -> str:
    """A wait as people read it, rounded up: `4 s`."""
    return f"{max(0, -(-duration_ns // 1_000_000_000))} s"


@dataclass(slots=True)
class Bootstrap:
    """One bootstrap. `start(execution, inputs)` readies its first ops."""

    target: str
    slot: str  # of a component's bootstrap; "" for a target's
    touch_set: tuple[int, ...]
    graph: BoundGraph | None
    start: Callable[[Execution, Mapping[str, object]], None]
    status: BootstrapStatus = LIFE.start
    staged: bool = False  # admitted, or about to be; its touch set is taken
    inputs: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, object] = field(default_factory=dict)  # kept for the next try
    wait_ns: int = 0  # before the next try
    next_try_ns: int = 0  # 0: nobody tries again
    reason: str = ""  # why the last try failed
    lost: bool = False  # it has been forgotten: it runs first of all

    @property
    def name(self) -> str:
        """The slot of a component's bootstrap, else the target."""
        return self.slot or self.target

    @property
    def state(self) -> BootstrapState:
        """As the host sees it."""
        return BootstrapState(self.target, self.slot, self.status, self.next_try_ns, self.reason)

    @property
    def done(self) -> bool:
        return self.status is BootstrapStatus.DONE

    @property
    def underway(self) -> bool:
        """Whether it waits for its turn or runs, so that it cannot be asked for."""
        return not LIFE.allows(self.status, Event.ASK)

    @property
    def formals(self) -> Mapping[str, int]:
        """Its inputs by name."""
        return {} if self.graph is None else self.graph.slot.inputs

    def refusal(self, now_ns: int) -> NotBootstrapped:
        """Why an op of a component cannot run before the bootstrap is done."""
        whose = f"slot {self.slot!r}" if self.slot else f"{self.target}'s"
        why = f" ({self.reason})" if self.reason else ""
        when = f"in {seconds(self.next_try_ns - now_ns)}" if self.next_try_ns else "as soon as it can"
        return NotBootstrapped(f"the bootstrap of {whose} is not done{why}", hint=f"it is tried {when}")

    def _move(self, event: Event) -> None:
        self.status = LIFE.next(self.status, event)

    def ask(self, inputs: Mapping[str, object]) -> None:
        """It is to run with these inputs, once its touch set is free."""
        self._move(Event.ASK)
        self.inputs = inputs

    def begin(self, execution: Execution) -> None:
        """Readies its first ops."""
        self._move(Event.BEGIN)
        self.reason, self.lost = "", False
        self.start(execution, self.inputs)

    def op_failed(self, failure: steps.OpFailed) -> None:
        """An op of the bootstrap failed: the first one is why."""
        if not self.reason:
            where = f"{failure.op} ({failure.source})" if failure.source else failure.op
            self.reason = f"{where}: {failure.text}"

    def succeed(self) -> None:
        """It is done."""
        self._move(Event.SUCCEED)
        self.inputs, self.staged, self.wait_ns, self.reason = {}, False, 0, ""

    def fail(self, reason: str) -> None:
        """A try has failed; `reason` says why."""
        self._move(Event.FAIL)
        self.inputs, self.staged, self.reason = {}, False, reason

    def put_off(self, now_ns: int) -> int:
        """Says when the next try is: each wait is twice the last one."""
        self.wait_ns = min(2 * self.wait_ns or FIRST_WAIT_NS, LONGEST_WAIT_NS)
        self.next_try_ns = now_ns + self.wait_ns
        return self.next_try_ns

    def save(self) -> list[Any]:
        """Its state as plain values. Inputs for the next try are not kept: the host gives them again."""
        return [self.target, self.slot, self.status.value, self.staged, dump(dict(self.inputs))]

    def restore(self, status: str, staged: bool, inputs: Any, forgotten: bool) -> None:
        """Takes what `save` gave. `forgotten`: its component saves no state, so what it did is gone."""
        self.status = BootstrapStatus(status)
        self.staged = staged
        self.inputs = load(inputs)
        if self.done and forgotten:
            self._move(Event.FORGET)
            self.lost = True


def of_target(scheduler: Scheduler, graph: BoundGraph, touch_set: tuple[int, ...]) -> Bootstrap:
    """The bootstrap of a target: a function."""

    def start(execution: Execution, inputs: Mapping[str, object]) -> None:
        frame = execution.frame_of(graph.regions[0])
        for name, value in inputs.items():
            scheduler.write(frame, graph.slot.inputs[name], value)
        scheduler.pull_unreached(frame)

    return Bootstrap(graph.target, "", touch_set, graph, start)


def of_component(target: str, slot: str, graph: BoundGraph, component: int) -> Bootstrap:
    """The bootstrap of a slot's component: a graph of one op that calls its method."""

    def start(execution: Execution, inputs: Mapping[str, object]) -> None:
        execution.ready.append((execution.frame_of(graph.regions[0]), graph.ops[0]))

    return Bootstrap(target, slot, (component,), None, start)
