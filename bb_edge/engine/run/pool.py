"""The pool of executions, and the queue of those that can run.

Ids are never reused; the records are. One is made where all others are in use: a record takes 1.4 KB, and
most nodes never need a tenth of the eighty that they may have.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from bb_edge.engine.callbacks import Callbacks
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.body_run import BodyRun
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame, FreeFrames, ReplyPort
from bb_edge.engine.run.life import LIFE, RUNNING, Event, Hold, State
from bb_edge.engine.run.naming import Naming, frame_name, names_of, op_name, region_name
from bb_edge.ir.ids import PeerId
from bb_edge.wire.envelope_records import Failure


@dataclass(slots=True, eq=False)
class ExecutionPool:
    """All executions of a node; `entries` counts those that entries started, `max_entries` bounds them."""

    max_entries: int
    frames: FreeFrames = field(default_factory=FreeFrames)
    next_id: int = 1
    active: dict[int, Execution] = field(default_factory=dict)
    runnable: list[Execution] = field(default_factory=list)
    entries: int = 0
    peak: int = 0
    _free: list[Execution] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def full(self) -> bool:
        """Whether no entry may start an execution now."""
        return self.entries >= self.max_entries

    def mint(self) -> int:
        """A fresh ExecId, for an entry that is queued before it runs; from any thread."""
        with self._lock:
            number = self.next_id
            self.next_id += 1
        return number

    def start(
        self,
        target: str,
        number: int | None = None,
        parent: Execution | None = None,
        source: PeerId | None = None,
        size: int = 0,
    ) -> Execution:
        """A clean record. The caller has checked `full` (entries) or `max_children` (children).

        `size` bytes stay charged to `source`, a peer or nobody, until the end.
        """
        execution = self._free.pop() if self._free else Execution(self.frames)
        execution.state = LIFE.rows[execution.state, Event.START]
        execution.id = self.mint() if number is None else number
        execution.target = target
        execution.parent = parent
        execution.source = source
        execution.bytes_held = size
        self.active[execution.id] = execution
        if parent is None:
            self.entries += 1
            if self.entries > self.peak:
                self.peak = self.entries
        return execution

    def end(self, execution: Execution) -> None:
        """Gives the record and its frames back."""
        execution.state = LIFE.rows[execution.state, Event.END]
        del self.active[execution.id]
        if execution.parent is None:
            self.entries -= 1
        execution.clear()
        self._free.append(execution)

    # --- what can run ---------------------------------------------------------------------------------

    def wake(self, execution: Execution) -> None:
        """Puts an execution into the run queue, unless it stands there already."""
        if execution.state is not RUNNING:
            execution.state = LIFE.rows[execution.state, Event.WAKE]
            self.runnable.append(execution)

    def ready(self, frame: Frame, op: BoundOp) -> None:
        """Makes an op ready to run. Nothing happens where the frame's execution has ended."""
        execution = frame.execution
        if execution is not None:
            execution.ready.append((frame, op))
            self.wake(execution)

    def ready_again(self, entry: tuple[Frame, BoundOp], why: Hold) -> None:
        """Makes an op ready that was held back, and takes its hold away."""
        execution = entry[0].execution
        assert execution is not None  # its hold kept it alive
        execution.let_go(why)
        execution.ready.append(entry)
        self.wake(execution)

    # --- snapshot -------------------------------------------------------------------------------------

    def save(self, callbacks: Callbacks) -> list[Any]:
        """[next id, peak, rows, runnable ids]. UnsavableError where a value has no written form."""
        rows = [_row(execution, callbacks) for execution in self.active.values()]
        return [self.next_id, self.peak, rows, [e.id for e in self.runnable]]

    def restore(self, plain: Any, shift: Shift, naming: Naming, callbacks: Callbacks) -> None:
        """Takes what `save` gave; for a pool without executions.

        ValueError, TypeError or LookupError for rows that fit another artifact.
        """
        next_id, peak, rows, runnable = plain
        for row in rows:
            execution = self._free.pop() if self._free else Execution(self.frames)
            execution.id, execution.target = row["id"], row["target"]
            self.active[execution.id] = execution
            if not row["parent"]:
                self.entries += 1
            execution.state = State[row["state"].upper()]
            failed, expired, _, acknowledged, _, claimed, notify, asked_somebody, _, *reached = row["flags"]
            execution.told_anybody, execution.heard_somebody = reached
            execution.failed, execution.expired, execution.claimed = failed, expired, claimed
            execution.notify, execution.asked_somebody = notify, asked_somebody
            claim_timer, execution.bytes_held, execution.answer_bytes, *more = row["numbers"]
            execution.claim_timer, (execution.requests_made, execution.until_timer) = claim_timer, more
            execution.came_from(
                load(row["source"]),
                load(row["cause"]),
                shift.time(row["deadline_ns"]),
                acknowledged,
                until_ns=shift.time(row["until_ns"]),
            )
            execution.ends_rounds = row.get("ends_rounds", False)
            execution.claim_set = tuple(row["claim_set"])
            execution.cohorts.extend(row["cohorts"])
            for frame_row in row["frames"]:
                execution.new_frame(naming.region(frame_row[0]))
        for row in rows:  # afterwards, because frames refer to each other in circles
            _tie(naming.execution(row["id"]), row, callbacks, naming)
        self.runnable.extend(naming.execution(number) for number in runnable)
        self.next_id, self.peak = next_id, peak


UNUSED = False
"""The place of a flag that older versions wrote and never set, so that rows keep their form."""


def _row(execution: Execution, callbacks: Callbacks) -> dict[str, Any]:
    return {
        "id": execution.id,
        "target": execution.target,
        "state": execution.state.name.lower(),
        "flags": [
            execution.failed,
            execution.expired,
            UNUSED,
            execution.acknowledged,
            execution.bootstrap is not None,
            execution.claimed,
            execution.notify,
            execution.asked_somebody,
            execution.state is State.RUNNING,
            execution.told_anybody,
            execution.heard_somebody,
        ],
        "numbers": [
            execution.claim_timer,
            execution.bytes_held,
            execution.answer_bytes,
            execution.requests_made,
            execution.until_timer,
        ],
        "deadline_ns": execution.deadline_ns,
        "until_ns": execution.until_ns,
        "claim_set": list(execution.claim_set),
        "parent": execution.parent.id if execution.parent is not None else 0,
        "source": dump(execution.source),
        "cause": dump(execution.cause),
        "cohorts": list(execution.cohorts),
        "bootstrap_of": None if execution.bootstrap is None else list(execution.bootstrap),
        "owes": _owed(execution),
        "on_end": callbacks.name_of(execution.on_end),
        "on_claimed": callbacks.name_of(execution.on_claimed),
        "permits": [callbacks.name_of(release) for release in execution.permits],
        "frames": [_frame_row(frame) for frame in execution.frames],
        "ready": names_of(execution.ready),
        "parked": names_of(execution.parked),
        **({"ends_rounds": True} if execution.ends_rounds else {}),
    }


def _owed(execution: Execution) -> list[Any] | None:
    """What an execution owes that a request started, and what went wrong in it or in a child."""
    if not execution.owes and execution.fault is None:
        return None
    reply, fault = execution.reply, execution.fault
    return [
        execution.owes,
        execution.replied,
        None if reply is None else [op_name(reply.op), reply.wire_id, reply.defers],
        None if fault is None else [fault.code, fault.detail],
    ]


def _frame_row(frame: Frame) -> list[Any]:
    template = frame.region.graph.slot.values
    values = [
        [site, dump(value)]
        for site, (value, known) in enumerate(zip(frame.values, template, strict=True))
        if value is not known and value is not None
    ]
    return [
        region_name(frame.region),
        values,
        list(frame.waiting),
        None if frame.parent is None else frame_name(frame.parent),
        [frame_name(child) for child in frame.children or ()],
        None if frame.caller is None else frame_name(frame.caller),
        None if frame.call is None else op_name(frame.call),
        frame.forwards_writes,
        *([] if frame.body is None else [_body_row(frame.body)]),
    ]


def _body_row(body: BodyRun) -> list[Any]:
    return [body.trips, body.iteration, dump(body.kept), dump(body.rows), body.row_bytes]


def _tie(execution: Execution, row: Any, callbacks: Callbacks, naming: Naming) -> None:
    get: Any = callbacks.get
    if row["parent"]:
        execution.parent = naming.execution(row["parent"])
        execution.parent.hold(Hold.CHILD)
    if row["bootstrap_of"] is not None:
        target, slot = row["bootstrap_of"]
        execution.bootstrap = target, slot
    if row["on_claimed"] is not None:
        execution.on_claimed = get(row["on_claimed"])
        execution.hold(Hold.BOOTSTRAP)
    execution.on_end = None if row["on_end"] is None else get(row["on_end"])
    if row["owes"] is not None:
        execution.owes, execution.replied, reply, fault = row["owes"]
        execution.reply = None if reply is None else ReplyPort(naming.op(reply[0]), *reply[1:])
        execution.fault = None if fault is None else Failure(*fault)
    execution.permits.extend(get(name) for name in row["permits"])
    for frame, frame_row in zip(execution.frames, row["frames"], strict=True):
        _tie_frame(frame, frame_row, naming)
    execution.ready.extend(naming.entries(row["ready"]))
    for frame, op in naming.entries(row["parked"]):
        execution.park(frame, op)


def _tie_frame(frame: Frame, row: Any, naming: Naming) -> None:
    _, values, waiting, parent, children, caller, call, forwards_writes, *body = row
    for site, value in values:
        frame.values[site] = load(value)
    if len(waiting) != len(frame.waiting):
        raise ValueError("a frame of another graph")
    frame.waiting[:] = waiting
    frame.parent = None if parent is None else naming.frame(parent)
    frame.children = [naming.frame(child) for child in children] or None
    if caller is not None:
        frame.called_by(naming.frame(caller), naming.op(call))
    frame.forwards_writes = forwards_writes
    for trips, iteration, kept, rows, row_bytes in body:
        frame.body = BodyRun(trips, load(kept), load(rows), iteration, row_bytes)
