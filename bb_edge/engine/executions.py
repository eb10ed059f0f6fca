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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bb_edge.engine.graph_slot import EAGER_MASK, OUTPUT_OP, GraphSlot, OpSpec, Region
from bb_edge.ir import keys
from bb_edge.ir.opsets import OpKind

if TYPE_CHECKING:
    from bb_edge.engine.direct import Direct
    from bb_edge.ir.ids import PeerId
    from bb_edge.wire.outbox import Cause


INVOKE = -1
"""Key of `BoundGraph.claims` for executions that start without any value."""


Lane = tuple[Callable[..., Any], int, int, int]
"""(run, first input site, second one or -1, output site) of an op that computes one value from one or two:
`run(None, …)` needs no context, touches no component, and always gives a value at once.
"""


class State(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"


class BoundOp:
    """An op of one node: its spec, and what `bind` made of it.

    `gather(values)` gives the data inputs; `run(ctx, *inputs)` does the work. `mode` says what happens to the
    result: 0 nothing, 1 write it to `out`, 2 spread it over `outs`. `touches` is the component that the op
    calls (-1: none), which a bootstrap may lock and an execution may have to claim; `busy_key` the component
    that takes one op at a time (-1: none). `takes_first` says that a tuple that comes later has the op's
    several outputs, of which the node names the first. `later_ns` is the deadline of a `Later` (0: the
    node's default). `lane` is the short way through the loop, where there is one. `is_plain_call` says of a
    backend call that `run(None, …)` needs no context and always gives its values at once; `emits` is the
    topic of an op that does nothing but emit an app event.
    `check` holds a component's result against what the op declares, where there is something to hold.
    """

    __slots__ = (
        "busy_key",
        "check",
        "component",
        "emits",
        "frees",
        "gather",
        "index",
        "is_plain_call",
        "lane",
        "later_ns",
        "mode",
        "out",
        "outs",
        "pulls",
        "run",
        "spec",
        "takes_first",
        "target",
        "touches",
        "writes",
        "yields_command",
    )

    def __init__(self, spec: OpSpec, target: str) -> None:
        self.spec = spec
        self.index = spec.index
        self.target = target
        self.pulls = spec.pulls
        outs = spec.outputs
        self.outs = outs
        self.out = outs[0] if outs else -1
        self.mode = 0 if not any(s >= 0 for s in outs) else (1 if len(outs) == 1 else 2)
        self.run: Callable[..., Any] = _unbound
        self.gather: Callable[[list[Any]], Sequence[Any]] = _no_inputs
        self.component = -1
        self.touches = -1
        self.busy_key = -1
        self.writes = False
        self.yields_command = False
        self.takes_first = False
        self.later_ns = 0
        self.lane: Lane | None = None
        self.is_plain_call = False
        self.check: Callable[[object], Any] | None = None
        self.emits: str | None = None
        # Sites that nobody but this op reads: their values go as soon as it has run.
        self.frees: tuple[int, ...] = ()


def _unbound(*_: object) -> object:
    raise AssertionError("an op was run before it was bound")


def _no_inputs(_: list[Any]) -> Sequence[Any]:
    return ()


class BoundRegion:
    """A region of one node: consumers resolved to bound ops, and the pool of its frames."""

    __slots__ = ("consumers", "free", "graph", "imports", "joins", "region")

    def __init__(self, graph: BoundGraph, region: Region) -> None:
        self.graph = graph
        self.region = region
        ops = graph.ops
        self.consumers = tuple(tuple((ops[i], weight) for i, weight in entry) for entry in region.consumers)
        self.imports = region.imports
        self.joins = region.joins
        self.free: list[Frame] = []

    def fill(self, count: int) -> None:
        """Grows the pool to `count` frames; called at install."""
        self.free.extend(Frame(self) for _ in range(count - len(self.free)))

    def take(self) -> Frame:
        """A clean frame. The pool covers every bound of the config; a call beyond it makes one more, once."""
        return self.free.pop() if self.free else Frame(self)


class BoundGraph:
    """A graph of one node.

    `claims` tells for an entry op (by index, INVOKE for an invoke without inputs) which components an
    execution that starts there must claim: the unshared ones that its flow writes. `input_claims` tells the
    same for a value at a function input, by site. `starts` are the outputs that are constants, or computed
    from constants alone, and the syscalls that read nothing else: they come with each invoke and, where it is
    the only way in, each firing of the only entry (by index); what `g.on_invoke()` holds, with invokes alone.
    `direct` is the short way of an invoke, where there is one.
    """

    __slots__ = ("claims", "direct", "index", "input_claims", "ops", "regions", "slot", "starts", "target")

    def __init__(self, slot: GraphSlot, index: int, target: str) -> None:
        self.slot = slot
        self.index = index
        self.target = target
        self.ops = tuple(BoundOp(spec, target) for spec in slot.ops)
        self.regions = tuple(BoundRegion(self, region) for region in slot.regions)
        self.claims: dict[int, tuple[int, ...]] = {}
        self.input_claims: dict[int, tuple[int, ...]] = {}
        self.direct: Direct | None = None
        self.starts = self._find_starts()
        self._find_last_readers()

    def _find_starts(self) -> dict[int, tuple[BoundOp, ...]]:
        slot = self.slot
        found = tuple(op for op in self.ops if op.spec.region == 0 and self._starts_by_itself(op))
        if not found:
            return {}
        entries = [op.index for op in self.ops if op.spec.kind is OpKind.ENTRY and op.spec.region == 0]
        only = entries if len(entries) == 1 and not slot.inputs else []
        with_entry = tuple(op for op in found if keys.ON_INVOKE_KEY not in op.spec.meta)
        return {INVOKE: found, **dict.fromkeys(only, with_entry)}

    def _starts_by_itself(self, op: BoundOp) -> bool:
        """Whether an op is an output or a syscall that nobody reads, and constants are all that it needs."""
        if op.spec.domain != keys.SYSCALL_DOMAIN:
            return False
        if op.spec.op_type == OUTPUT_OP and self.slot.values[op.spec.inputs[0]] is not None:
            return True
        return bool(op.pulls) and all(self._is_constant(self.ops[n].spec) for n in op.pulls)

    def _is_constant(self, spec: OpSpec) -> bool:
        """Whether an op that waits for nothing computes on constants, or is a syscall over constants."""
        if spec.domain == keys.SYSCALL_DOMAIN:
            return bool(spec.inputs or spec.controls)
        return spec.proto is not None or spec.domain == keys.BACKEND_DOMAIN

    def _find_last_readers(self) -> None:
        """Fills `frees`: memory comes back with the only reader, not with the execution's end.

        Left alone are constants, what children may read later, and what first-arrival ops look at.
        """
        slot = self.slot
        kept = set(slot.forwarded)
        kept.update(s for op in slot.ops if op.port >= 0 for s in op.outputs)
        readers: dict[int, list[int]] = {}
        for region in slot.regions:
            for site, entry in enumerate(region.consumers):
                readers.setdefault(site, []).extend(index for index, _ in entry)
        freed: dict[int, list[int]] = {}
        for site, found in readers.items():
            if len(found) == 1 and site not in kept and slot.values[site] is None:
                freed.setdefault(found[0], []).append(site)
        for index, sites in freed.items():
            self.ops[index].frees = tuple(sites)


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

    def __init__(self) -> None:
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
        frame = region.take()
        frame.execution = self
        self.frames.append(frame)
        return frame


class ExecutionPool:
    """All executions of a node; `entries` counts those that entries started, `max_entries` bounds them."""

    __slots__ = ("_free", "_lock", "active", "entries", "max_entries", "next_id", "peak")

    def __init__(self, max_entries: int, max_children: int) -> None:
        self.max_entries = max_entries
        self._free = [Execution() for _ in range(max_entries * (1 + max_children))]
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
        execution = self._free.pop() if self._free else Execution()
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
        execution = self._free.pop() if self._free else Execution()
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
        for frame in execution.frames:
            region = frame.region
            frame.reset()
            region.free.append(frame)
        execution.clear()
        self._free.append(execution)
