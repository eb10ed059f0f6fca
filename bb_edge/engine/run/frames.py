"""Executions, their frames, and the pools that both come from (semantics §3).

An execution is one cascade. It owns a frame per graph and region that it runs in; frames come from pools that
are filled at install and go back when the execution ends. Ids are never reused; the records are.

The life of an execution is this table, and nothing else changes `state`:

    IDLE ──start──► RUNNING ──drained, something open──► WAITING ──resumed──► RUNNING
                       │                                    │
                       └──────────drained, nothing open─────┴──► IDLE (ended)

"Something open" is a pending op, an open request, a running child, or ops that wait for a claim.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bb_edge.engine.program.graph_slot import EAGER_MASK
from bb_edge.engine.run.bound import BoundOp, BoundRegion

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.wire.outbox import Cause


class State(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"


class Frame:
    """The slot table of one execution in one region of one graph."""

    __slots__ = (
        "call",
        "caller",
        "children",
        "consumers",
        "execution",
        "forward",
        "forwarded",
        "parent",
        "region",
        "special",
        "values",
        "waiting",
    )

    def __init__(self, region: BoundRegion) -> None:
        slot = region.graph.slot
        self.region = region
        self.consumers = region.consumers
        self.forwarded = slot.forwarded
        self.values: list[Any] = list(slot.values)
        self.waiting: list[int] = list(slot.waiting)
        self.execution: Execution | None = None
        self.parent: Frame | None = None
        self.children: list[Frame] | None = None
        # A called function's frame: the call, and where its outputs go in the caller's.
        self.caller: Frame | None = None
        self.call: BoundOp | None = None
        self.forward: Mapping[int, tuple[int, ...]] | None = None
        # Whether writes must be passed on: to children, or to a caller.
        self.special = False

    def reset(self) -> None:
        slot = self.region.graph.slot
        self.values[:] = slot.values
        self.waiting[:] = slot.waiting
        self.execution = self.parent = self.children = self.caller = self.call = self.forward = None
        self.special = False


class Execution:
    """One cascade. `ready` holds (frame, op); `parked` those that wait for a claim."""

    __slots__ = (
        "_frame_pool",
        "acknowledged",
        "answer_bytes",
        "asked_somebody",
        "asking",
        "bootstrap",
        "bootstrap_of",
        "bytes_held",
        "cause",
        "children",
        "claim_set",
        "claim_timer",
        "claimed",
        "cohort",
        "cohorts",
        "deadline_ns",
        "expired",
        "failed",
        "frames",
        "id",
        "notify",
        "on_claimed",
        "on_end",
        "parent",
        "parked",
        "pending",
        "permits",
        "queued",
        "ready",
        "requests_made",
        "source",
        "state",
        "target",
        "waits_outside",
    )

    def __init__(self, frame_pool: FramePool) -> None:
        self._frame_pool = frame_pool
        self.ready: deque[tuple[Frame, BoundOp]] = deque()
        self.parked: list[tuple[Frame, BoundOp]] = []
        self.frames: list[Frame] = []
        self.permits: list[Callable[[int], None]] = []
        self.cohorts: list[int] = []
        self.clear()

    def clear(self) -> None:
        self.id = 0
        self.target = ""
        self.state = State.IDLE
        self.pending = 0  # parked ops: timers, Laters, permits
        self.waits_outside = 0  # of these, the ones that wait for permits or the host
        self.asking = 0  # open requests
        self.children = 0  # running children
        self.failed = False
        self.expired = False
        self.acknowledged = (
            False  # its envelope is durable: its sender will not repeat it, so no gate stops it
        )
        self.bootstrap = False
        self.bootstrap_of: Any = None  # which one
        self.queued = False
        self.claimed = False
        self.claim_set: tuple[int, ...] = ()
        self.claim_timer = 0  # ends the wait for a claim at the execution's deadline
        self.on_claimed: Callable[[Execution], None] | None = None  # called instead of running `parked`
        self.parent: Execution | None = None
        self.cohort: Any = None
        self.source: PeerId | None = None
        self.cause: Cause | None = None  # what tells its durable sends from those of a later execution
        self.deadline_ns = 0
        self.bytes_held = 0  # of the envelope that started it, charged to `source`
        self.answer_bytes = 0  # of the answers to its requests
        self.requests_made = 0
        self.asked_somebody = False
        self.notify = False
        self.on_end: Callable[[Execution], None] | None = None
        self.ready.clear()
        self.parked.clear()
        self.frames.clear()
        self.permits.clear()
        self.cohorts.clear()

    @property
    def open(self) -> bool:
        """Whether something can still come."""
        return bool(self.pending or self.asking or self.children or self.parked)

    def starved(self) -> tuple[str, ...]:
        """Names of ops that got an input in this execution and miss another one (semantics §3).

        What a child sees of its parent did not arrive in the child; constants and sources don't count.
        """
        names: list[str] = []
        for frame in self.frames:
            graph = frame.region.graph
            waiting, template = frame.waiting, graph.slot.waiting
            for index in frame.region.joins:
                left = waiting[index] & EAGER_MASK
                if left and left != template[index] & EAGER_MASK:
                    spec = graph.ops[index].spec
                    imports = frame.region.imports
                    if not imports or any(
                        frame.values[s] is not None and s not in imports
                        for s in (*spec.inputs, *spec.controls)
                        if s >= 0 and graph.slot.values[s] is None
                    ):
                        names.append(spec.name)
        return tuple(names)

    def frame_of(self, region: BoundRegion) -> Frame:
        """The execution's frame in that region, taken from the pool on first use."""
        for frame in self.frames:
            if frame.region is region and frame.caller is None:
                return frame
        return self.new_frame(region)

    def new_frame(self, region: BoundRegion) -> Frame:
        """One more frame of the execution in that region: of a called function, or of a snapshot."""
        frame = self._frame_pool.take(region)
        frame.execution = self
        self.frames.append(frame)
        return frame

    def release_frames(self) -> None:
        """Gives all frames back, clean."""
        for frame in self.frames:
            self._frame_pool.give_back(frame)
        self.frames.clear()


class FramePool:
    """Clean frames of every region, filled at install."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[BoundRegion, list[Frame]] = {}

    def fill(self, region: BoundRegion, count: int) -> None:
        """Grows a region's pool to `count` frames; called at install."""
        free = self._free.setdefault(region, [])
        free.extend(Frame(region) for _ in range(count - len(free)))

    def take(self, region: BoundRegion) -> Frame:
        """A clean frame; one more than the pool was filled with is made, and stays."""
        free = self._free.get(region)
        return free.pop() if free else Frame(region)

    def give_back(self, frame: Frame) -> None:
        region = frame.region
        frame.reset()
        self._free.setdefault(region, []).append(frame)


class ExecutionPool:
    """All executions of a node; `entries` counts those that entries started, `max_entries` bounds them."""

    __slots__ = ("_free", "_lock", "active", "entries", "frames", "max_entries", "next_id", "peak")

    def __init__(self, max_entries: int, max_children: int) -> None:
        self.max_entries = max_entries
        self.frames = FramePool()
        self._free = [Execution(self.frames) for _ in range(max_entries * (1 + max_children))]
        self._lock = threading.Lock()
        self.next_id = 1
        self.active: dict[int, Execution] = {}
        self.entries = 0
        self.peak = 0

    @property
    def full(self) -> bool:
        return self.entries >= self.max_entries

    def mint(self) -> int:
        """A fresh ExecId, for an entry that is queued before it runs; from any thread."""
        with self._lock:
            number = self.next_id
            self.next_id += 1
        return number

    def start(self, target: str, number: int | None = None, parent: Execution | None = None) -> Execution:
        """A clean record, RUNNING. The caller has checked `full` (entries) or `max_children` (children)."""
        execution = self._free.pop() if self._free else Execution(self.frames)
        execution.id = self.mint() if number is None else number
        execution.target = target
        execution.parent = parent
        execution.state = State.RUNNING
        self.active[execution.id] = execution
        if parent is None:
            self.entries += 1
            if self.entries > self.peak:
                self.peak = self.entries
        return execution

    def revive(self, number: int, target: str, is_child: bool) -> Execution:
        """The record of an execution that a snapshot brings, under its old number."""
        execution = self._free.pop() if self._free else Execution(self.frames)
        execution.id = number
        execution.target = target
        self.active[number] = execution
        if not is_child:
            self.entries += 1
        return execution

    def end(self, execution: Execution) -> None:
        """Gives the record and its frames back."""
        del self.active[execution.id]
        if execution.parent is None:
            self.entries -= 1
        execution.release_frames()
        execution.clear()
        self._free.append(execution)
