"""What every part of a node may hold: clock, timers, counters, steps, randomness. It knows no part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy import ndarray

from bb_edge.engine.bus import Bus
from bb_edge.engine.callbacks import Callbacks, Timers
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.paces import Paces
from bb_edge.engine.plain import payload_bytes
from bb_edge.engine.steps import AppEvent, EngineStep, OpFailed
from bb_edge.ir.ids import PeerId
from bb_edge.wire.outbox import Cause


class Origin(NamedTuple):
    """A node of another program whose state was adopted: its module, its program, and how far it was then.

    `generation` is that of the snapshot in its folder, 0 where it is not known; `rounds` are those it had
    ended.
    """

    module: str
    program: bytes
    generation: int = 0
    rounds: int = 0


class Executor(Protocol):
    """Takes work that may leave the thread, such as `concurrent.futures.Executor`."""

    def submit(self, work: Callable[[], object], /) -> object:
        """Runs `work()` some time, on some thread."""


@dataclass(slots=True, eq=False)
class Runtime:
    """The services of one node, shared by all of its parts.

    `ids` gives epochs, request ids and tokens: what no two incarnations may share. `ids_go_on` says whether
    a snapshot holds its state, as it does for nodes that were installed without an incarnation. `executor`
    is None where offloaded work runs at once, on the poller's thread; `clock` gives the real monotonic time,
    and is None where time is simulated. `why_not_train()` says why the node does not train now, "" where it
    does; None where it always does.
    """

    config: NodeConfig
    own_peer: PeerId
    rng: Drawing
    ids: Drawing
    _: KW_ONLY
    ids_go_on: bool = False
    clock_offset_ns: int = 0
    local_addresses: tuple[bytes, ...] = ()
    executor: Executor | None = None
    clock: Callable[[], int] | None = None
    why_not_train: Callable[[], str] | None = None
    now_ns: int = 0
    timers: Timers = field(init=False)
    callbacks: Callbacks = field(default_factory=Callbacks)
    bus: Bus = field(default_factory=Bus)
    paces: Paces = field(init=False)
    counters: dict[str, int] = field(default_factory=dict)
    steps: list[EngineStep] = field(default_factory=list)
    origin: Origin | None = None
    """Whose state this one has adopted (bb_edge/adoption.py); or None."""
    _causes: tuple[int, int] = (0, 0)  # of this run: a number for the run, and how many causes it has made
    emit: Callable[[EngineStep], None] = field(init=False)
    """Adds a step to what the poll returns."""

    def __post_init__(self) -> None:
        self.paces = Paces(self.clock or time.monotonic_ns)
        self.timers = Timers(self.config.max_timers)
        self.emit = self.steps.append

    def advance(self, now_ns: int) -> None:
        """Sets the time; only a poll, a snapshot and a restore do that."""
        self.now_ns = now_ns

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a counter; names come from code and programs, so their number is bounded."""
        counters = self.counters
        if name in counters:
            counters[name] += n
        elif len(counters) < self.config.metric_names:
            counters[name] = n
        else:
            counters["counters.refused"] = counters.get("counters.refused", 0) + n

    def new_cause(self) -> Cause:
        """A cause for what no envelope and no round has set off, and a snapshot is to hold.

        No other run makes it again: records of a run that was lost may be on disk, with its causes.
        """
        run, made = self._causes
        if not run:  # looked ahead: a snapshot, which gives causes, leaves the node as it was
            run = 1 << 62 | self.ids.ahead(62)
        self._causes = run, made + 1
        return Cause(self.own_peer, run, made + 1)

    def emit_value(self, target: str, execution: int, topic: str, value: object) -> None:
        """Adds an app event; a value that is larger than the node lets it be is left out, counted."""
        size = value.nbytes if type(value) is ndarray else payload_bytes(value)
        if size <= self.config.app_event_bytes:
            self.steps.append(AppEvent(target, execution, topic, value))
        else:
            self.count("app_events.omitted")
            self.steps.append(AppEvent(target, execution, topic, None, size))

    def take_steps(self) -> list[EngineStep]:
        """All steps since the last call; for the end of a poll."""
        out = self.steps.copy()
        self.steps.clear()
        return out

    def component_failed(self, target: str, where: str, origin: str, error: BaseException) -> None:
        """Reports that a component's code failed outside of any op; the node goes on."""
        self.count("components.failed")
        self.emit(OpFailed(target, 0, where, error, origin))
        self.bus.publish(Bus.OP_FAILURE)

    # --- snapshot -------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Counters, generators, events on the bus and the origin, as plain values."""
        return {
            "counters": dict(self.counters),
            "rng": self.rng.save(),
            "ids": self.ids.save() if self.ids_go_on else None,
            "bus": [self.bus.dropped, list(self.bus.events)],
            "origin": None if self.origin is None else list(self.origin),
        }

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave."""
        self.counters = {str(name): int(value) for name, value in plain["counters"].items()}
        self.rng.restore(plain["rng"])
        # Those of a real node come from fresh entropy at each start, and are in no snapshot.
        if self.ids_go_on and plain.get("ids") is not None:
            self.ids.restore(plain["ids"])
        self.bus.dropped = plain["bus"][0]
        self.bus.events.extend(plain["bus"][1])
        origin = plain.get("origin")  # not there in older snapshots
        self.origin = None if origin is None else Origin(str(origin[0]), bytes(origin[1]), *origin[2:])
