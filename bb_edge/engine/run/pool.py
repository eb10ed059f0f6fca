"""The pool of executions, filled at install, and the queue of those that can run.

Ids are never reused; the records are.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import InitVar, dataclass, field

from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame, FreeFrames
from bb_edge.engine.run.life import LIFE, Event, Hold, State
from bb_edge.ir.ids import PeerId


@dataclass(slots=True, eq=False)
class ExecutionPool:
    """All executions of a node; `entries` counts those that entries started, `max_entries` bounds them."""

    max_entries: int
    max_children: InitVar[int]
    frames: FreeFrames = field(default_factory=FreeFrames)
    next_id: int = 1
    active: dict[int, Execution] = field(default_factory=dict)
    runnable: deque[Execution] = field(default_factory=deque)
    entries: int = 0
    peak: int = 0
    _free: list[Execution] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self, max_children: int) -> None:
        self._free = [Execution(self.frames) for _ in range(self.max_entries * (1 + max_children))]

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
        execution.state = LIFE.rows[execution.state, Event.END]
        del self.active[execution.id]
        if execution.parent is None:
            self.entries -= 1
        execution.clear()
        self._free.append(execution)

    def passed(self) -> None:
        """Counts an execution that ran straight from its start to its end, without a record."""
        if self.entries >= self.peak:
            self.peak = self.entries + 1

    # --- what can run ---------------------------------------------------------------------------------

    def wake(self, execution: Execution) -> None:
        """Puts an execution into the run queue, unless it stands there already."""
        if execution.state is not State.RUNNING:
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
