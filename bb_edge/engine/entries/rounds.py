"""`Repeat`: rounds, one after the other.

The next round starts when the execution of the last one has ended, and the peers are there that it needs
(`quorum`): until then nothing of it runs. They end after a number, or where a round that counts says so. A
round that reached nobody is not counted: it asked and sent, and did so to nobody, or all that it asked are
missing. Such a round, and one that failed, is followed by a back-off that doubles and that a PeerUp ends.

Rule E12 of the specification.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.entries.quorum import Lack, Quorum
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.wire.outbox import ROUNDS, Cause


def number(op: BoundOp, attribute: str, default: int = 0) -> int:
    """A number attribute of the op. Raises ValueError or TypeError if it is not a number."""
    value: Any = op.spec.attrs.get(attribute, default)
    return int(value)


def start_entry(
    scheduler: Scheduler, execution: Execution, graph: BoundGraph, op: BoundOp, value: object
) -> None:
    """Begins an execution at an entry op, which yields `value` there."""
    execution.will_claim(graph.claims.get(op.index, ()))
    frame = execution.frame_of(graph.regions[op.spec.region])
    if op.out >= 0:
        scheduler.write(frame, op.out, value)
    if graph.starts:
        scheduler.start_outputs(frame, op.index)


FIRST_ATTEMPT = 1
"""Of a round. Older versions wrote the number of the attempt into their records."""
SAID_AGAIN_NS = 5_000_000_000
"""So long a wait between two counts has lasted for as long again: who is missing then is said once more."""


class Rounds:
    """The state of one `Repeat` op: `round` is the number that runs or comes next, from 1."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        ingress: Ingress,
        quorum: Quorum,
        graph: BoundGraph,
        op: BoundOp,
    ) -> None:
        self._scheduler = scheduler
        self._runtime = runtime
        self._ingress = ingress
        self._quorum = quorum
        self._graph = graph
        self._op = op
        self.target = op.target
        self.times = number(op, "times")
        self._pause_ns = number(op, "pause_ns")
        self.round = 1
        self.attempt = FIRST_ATTEMPT  # of this round
        self.running = False
        self.finished = False
        self.backoff_ns = 0
        self._failures = 0  # rounds in a row in which an op has failed, of this run of the node
        self.timer = 0
        self.wait_ns = 0  # until peers are counted again, while the round waits for them
        self._said: tuple[Lack, bool] | None = None  # of that, and whether it was said again
        self.ends = bool(self.times) or any(o.spec.op_type == "StopRounds" for o in graph.ops)
        # A round is the same after a restart.
        self.own_number = ROUNDS | graph.index << 32 | op.index
        where = f"{graph.index}/{op.index}"
        for name, action in (("start", self.start), ("fill", self._fill), ("ended", self._ended)):
            runtime.callbacks.register(f"round.{name}/{where}", action)

    def start(self, _now_ns: int = 0) -> None:
        """Queues the entry of the next round; nothing where one runs or all are done."""
        self.timer = 0
        if self.running or self.finished:
            return
        lack = self._quorum.lack()
        if lack is not None:
            self._wait(lack)
            return
        self.wait_ns = 0
        self.running = True
        self._ingress.offer(Entry(self.target, self._fill, internal=True))

    def _wait(self, lack: Lack) -> None:
        """Nothing of the round runs; a PeerUp has the peers counted again, and so does a timer: a view that
        is gossiped, and a failing peer that may be tried again, come up without one.
        """
        if not self.wait_ns:
            self._runtime.count("rounds.waited")
        again = self.wait_ns >= SAID_AGAIN_NS
        if not self.wait_ns or (again and (lack, again) != self._said):
            tries = self._quorum.next_try_ns(lack.failing)
            self._runtime.emit(
                steps.RoundWaits(
                    *(self.target, self.round, lack.peer_class, lack.there, lack.wanted),
                    lack.failing,
                    lack.offline,
                    again,
                    tries,
                    lack.op,
                )
            )
            self._said = lack, again
        config = self._runtime.config
        self.wait_ns = min(self.wait_ns * 2 or config.round_backoff_ns, config.round_backoff_max_ns)
        when = self._runtime.now_ns + self.wait_ns
        self.timer = self._runtime.timers.at(when, self.start, reserved=True)

    @property
    def _which(self) -> int:
        """Tells what this round sends from what others send; its attempts are the same.

        One that has told anybody is the last of its round, whenever it ran: after a crash the round may need
        more of them, or fewer, and finds what it has sent.
        """
        return self.round << 32 | FIRST_ATTEMPT

    def may_run(self, which: int) -> bool:
        """Whether the round of a cause runs, or is still to come."""
        return not self.finished and which >> 32 >= self.round

    def peer_up(self) -> None:
        """Ends a back-off, and a wait for peers where there are enough of them now."""
        if not self.timer or self.running or not (self.backoff_ns or self.wait_ns):
            return
        if self.wait_ns and self._quorum.lack() is not None:
            return
        self._runtime.timers.cancel(self.timer)
        self.start()

    def _fill(self, execution: Execution) -> None:
        execution.tell_end(self._ended)
        execution.cause = Cause(self._runtime.own_peer, self.own_number, self._which)
        number_of_it = np.asarray(self.round, dtype=np.int64)
        start_entry(self._scheduler, execution, self._graph, self._op, number_of_it)

    def _ended(self, execution: Execution) -> None:
        self.running = False
        idle = execution.reached_nobody
        self._failures = self._failures + 1 if execution.failed and not idle else 0
        if idle or execution.failed:
            config = self._runtime.config
            self.backoff_ns = min(self.backoff_ns * 2 or config.round_backoff_ns, config.round_backoff_max_ns)
            last = self.round == self.times or execution.ends_rounds
            if idle or not last:  # after the last one nothing waits
                reason, in_a_row = (idle, self.attempt) if idle else (steps.ROUND_FAILED, self._failures)
                waits, name = self.backoff_ns, self._op.spec.name
                self._runtime.emit(
                    steps.RoundBackedOff(self.target, self.round, waits, reason, in_a_row, name)
                )
                self._runtime.count("rounds.backed_off")
        else:
            self.backoff_ns = 0
        if idle:
            self.attempt += 1
        else:
            self.round, self.attempt = self.round + 1, FIRST_ATTEMPT
            self._runtime.count("rounds.ended")
            if execution.failed:
                self._runtime.count("rounds.failed")
            if execution.ends_rounds or (self.times and self.round > self.times):
                self.finished = True
                self._runtime.emit(steps.RoundsCompleted(self.target, self.round - 1))
                return
        # Never twice in one poll: the next round is a timer's, due at the earliest in the next one.
        wait = max(self.backoff_ns, self._pause_ns)
        self.timer = self._runtime.timers.at(self._runtime.now_ns + max(wait, 1), self.start, reserved=True)

    def save(self) -> list[Any]:
        """Where the rounds stand, as plain values."""
        flags = (self.running, self.finished)
        return [self.round, self.attempt, *flags, self.backoff_ns, self.timer, self.wait_ns]

    def restore(self, row: Any) -> None:
        """Goes on where the rounds of a snapshot stood."""
        self.round, self.attempt, self.running, self.finished, self.backoff_ns, self.timer, wait = row
        self.wait_ns = wait
