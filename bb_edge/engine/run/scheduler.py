"""The scheduler: the loop that runs ops, and whatever writes values into frames.

`drain` takes one runnable execution after the other and runs its ready ops, first in, first out, until
nothing is ready. Entries, answers, completions and timers go through `write` and `resume`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.engine import steps
from bb_edge.engine.errors import OpError
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.program.program import EAGER_MASK
from bb_edge.engine.run.bound import BoundOp, OutputMode
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.ending import Endings, with_empty_input
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.life import RUNNING
from bb_edge.engine.run.pool import ExecutionPool
from bb_edge.engine.run.turns import Turns
from bb_edge.engine.run.waiting import PENDING, Running, WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.values import TRIGGER
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ContributionRefused
from bb_edge.wire.envelope_records import FailureCode

Outputs = Iterable[tuple[int, object]]
"""Values by site."""

BOOTSTRAP_OP_FAILED: Final = "bootstrap.op_failed"
"""The registered callback `(target, slot, failure)`: an op of a bootstrap has failed."""


@dataclass(slots=True, eq=False)
class Scheduler:
    """Runs the ops of one node. It alone starts, runs and ends executions.

    `ctx` is what ops see while they run. `depth_peak` is the largest number of ops that were ready at once.
    """

    runtime: Runtime
    components: Components
    pool: ExecutionPool
    waiting: WaitingRoom
    ledger: Ledger
    turns: Turns
    _ctx: Running
    runnable: list[Execution] = field(init=False)
    endings: Endings = field(init=False)
    depth_peak: int = 0
    next_command: int = 1

    def __post_init__(self) -> None:
        self.runnable = self.pool.runnable
        self.endings = Endings(self.runtime, self.components, self.pool, self.waiting, self.ledger)
        self.runtime.callbacks.register("parked.fire", self.fire)

    # --- the loop -------------------------------------------------------------------------------------

    def drain(self, limit: int) -> int:
        """Runs at most `limit` ops, while the poll has time; returns how many ran."""
        runnable, turns = self.runnable, self.turns
        timed, done = turns.clock is not None, 0
        while runnable and done < limit:
            execution = runnable[0]
            # The frontier: this execution's ready ops, and at least one of every other runnable one.
            depth = len(execution.ready) + len(runnable) - 1
            if depth > self.depth_peak:
                self.depth_peak = depth
            number = execution.id
            began_ns = turns.begins(number) if turns.watched else -1
            done += self._run(execution, limit - done)
            left = bool(execution.ready)  # the budget is spent
            if not left:
                runnable.pop(0)
                self.endings.settle(execution)
            if began_ns >= 0:
                turns.ran(number, began_ns, execution.id != number)
            if timed and turns.over():
                if left:  # whoever takes long lets the others have their turn
                    runnable.append(runnable.pop(0))
                break
            if left:
                break
        return done

    def _run(self, execution: Execution, limit: int) -> int:
        ready = execution.ready
        popleft, append = ready.popleft, ready.append
        ctx, waiting_room, watched = self._ctx, self.waiting, self.waiting.watched
        ctx.execution = execution
        trace = self.runtime.config.trace
        turns = None if self.turns.clock is None else self.turns
        # Claims come while it runs, and go when it does not: most ops are not even asked about.
        unclaimed = not execution.claimed and bool(execution.claim_set)
        careful = False  # the poll's time is over: nothing more that may take long
        pending, one, spread, mask = PENDING, OutputMode.ONE, OutputMode.SPREAD, EAGER_MASK
        done = 0
        following: BoundOp | None = None  # the next op, of the same frame, while nothing else is ready
        while done < limit:
            if following is not None:
                op, following = following, None
            elif ready:
                frame, op = popleft()
                values, waiting, consumers = frame.values, frame.waiting, frame.consumers
            else:
                break
            if careful and op.component >= 0:
                ready.appendleft((frame, op))
                break
            done += 1
            plain = op.plain
            try:
                if plain is not None:
                    run, first, second = plain
                    if second < 0:
                        result = run(None, values[first])
                    else:
                        result = run(None, values[first], values[second])
                else:
                    ctx.frame = frame
                    ctx.op = op
                    if (unclaimed or op.touches in watched) and op.touches >= 0:
                        if waiting_room.holds_back(execution, frame, op):
                            continue
                        unclaimed = unclaimed and not execution.claimed
                    gather = op.gather  # a method call would look for a method first, at each op
                    result = op.run(ctx, *gather(values))
                    # What alone reads what it gives would come next: it runs without a turn of the loop.
                    then = None if unclaimed or trace else op.then
                    while then is not None:
                        if ready or watched or result is pending or done >= limit or (turns and turns.over()):
                            break
                        if op.mode is one:
                            if result is None:
                                if not op.yields_command:
                                    break
                                result = self.next_command
                                self.next_command = result + 1
                            values[op.out] = result
                        else:
                            if result is None or len(result) != 2 or result[0] is None or result[1] is None:
                                break
                            first, second = op.outs
                            values[first], values[second] = result
                        for site in op.frees:
                            values[site] = None
                        waiting[then.index] = 0
                        done += 1
                        ctx.op = op = then
                        gather, then = op.gather, op.then
                        result = op.run(ctx, *gather(values))
                    if turns is not None and turns.over():
                        careful = True
                        if turns.late:
                            limit = done  # the rest waits for the next poll
            # The border to users' components: whatever they raise ends this branch only.
            except BaseException as error:  # noqa: BLE001
                self.op_failed(execution, op, with_empty_input(frame, op, contained(error)))
                continue
            if trace:
                self._trace(execution, op, result)
            for site in op.frees:
                values[site] = None
            if plain is None:
                if result is pending:
                    continue
                mode = op.mode
                if mode is not one:
                    if mode is spread and result is not None:
                        self.write_all(frame, zip(op.outs, result))  # noqa: B905 (trailing outputs may be left out)
                    continue
                if result is None:
                    if not op.yields_command:
                        continue
                    result = self.next_command
                    self.next_command = result + 1
            site = op.out
            values[site] = result
            for consumer, weight in consumers[site]:
                index = consumer.index
                left = waiting[index] - weight
                waiting[index] = left
                if not left:
                    if following is None and not ready:
                        following = consumer
                    else:
                        append((frame, consumer))
                elif not left & mask:
                    self.pull(frame, consumer)
            if frame.forwards_writes:
                self._pass_on(frame, site, result)
        if following is not None:
            ready.appendleft((frame, following))
        return done

    def passes(self, ready: int) -> None:
        """Counts an execution that runs from its start to its end without a record; `ready` is its depth."""
        self.pool.peak = max(self.pool.peak, self.pool.entries + 1)
        if ready > self.depth_peak:
            self.depth_peak = ready

    def _trace(self, execution: Execution, op: BoundOp, result: object) -> None:
        step: type[steps.OpStep] = steps.OpCompleted if op.mode else steps.OpSink
        if result is PENDING:
            step = steps.AsyncSuspended
        elif result is TRIGGER:
            step = steps.OpTrigger
        self.runtime.emit(step(op.target, execution.id, op.spec.name))

    def op_failed(self, execution: Execution, op: BoundOp, error: BaseException) -> None:
        """Ends a branch: a step, a counter, a bus event; the node goes on."""
        if self.endings.declined(execution, op, error):
            return
        execution.failed = True
        peer = (isinstance(error, ContributionRefused) and error.peer) or execution.source
        failure = self.endings.branch_failed(op, execution.id, error, peer)
        why = (isinstance(error, ContributionRefused) and error.why) or failure.text
        execution.went_wrong(FailureCode.OP_FAILED, f"{op.spec.name}: {why}")
        if execution.bootstrap is not None:
            self.runtime.callbacks.get(BOOTSTRAP_OP_FAILED)(*execution.bootstrap, failure)

    # --- values ---------------------------------------------------------------------------------------

    def write(self, frame: Frame, site: int, value: object) -> None:
        """Writes a value from outside the loop and readies whoever waited for it."""
        self.write_all(frame, ((site, value),))

    def write_all(self, frame: Frame, outputs: Outputs) -> None:
        """Writes values in their order, as `write` does, but for those that are None or at a site below 0."""
        execution = frame.execution
        if execution is None:
            return
        values, waiting, consumers = frame.values, frame.waiting, frame.consumers
        running, mask = RUNNING, EAGER_MASK
        for site, value in outputs:
            if value is None or site < 0:
                continue
            values[site] = value
            for consumer, weight in consumers[site]:
                index = consumer.index
                left = waiting[index] - weight
                waiting[index] = left
                if not left:
                    execution.ready.append((frame, consumer))
                elif not left & mask:
                    self.pull(frame, consumer)
            if frame.forwards_writes:
                self._pass_on(frame, site, value)
            if execution.state is not running:
                self.pool.wake(execution)

    def _pass_on(self, frame: Frame, site: int, value: object) -> None:
        """Hands a value to running children that read it, and out of a called function to its caller."""
        if frame.children and site in frame.forwarded:
            for child in tuple(frame.children):
                if site in child.region.imports:
                    self.write(child, site, value)
        if frame.caller is not None and frame.call is not None:
            for target in frame.call.forward.get(site, ()):
                self.write(frame.caller, target, value)

    def pull(self, frame: Frame, op: BoundOp) -> None:
        """Fires the sources that an otherwise ready op waits for, each at most once per execution."""
        ops = frame.region.graph.ops
        for number in op.spec.pulls:
            source = ops[number]
            at: Frame | None = frame
            while at is not None and at.region.region.index != source.spec.region:
                at = at.parent
            if at is not None and at.execution is not None and at.waiting[number]:
                at.waiting[number] = 0
                self.pool.ready(at, source)

    def pull_unreached(self, frame: Frame) -> None:
        """Starts the flows that no entry reaches: ops that read sources alone."""
        for op in frame.region.graph.ops:
            left = frame.waiting[op.index]
            lacks_sources_alone = left and not left & EAGER_MASK
            if op.spec.pulls and lacks_sources_alone and op.spec.region == frame.region.region.index:
                self.pull(frame, op)

    def start_outputs(self, frame: Frame, entry: int) -> None:
        """Readies the outputs that are constant, where that entry (or INVOKE) brings them."""
        waiting = frame.waiting
        for op in frame.region.graph.starts.get(entry, ()):
            if op.spec.pulls:
                self.pull(frame, op)
            elif waiting[op.index] and frame.execution is not None:
                waiting[op.index] = 0
                frame.execution.ready.append((frame, op))

    # --- parked ops -----------------------------------------------------------------------------------

    def resume(self, token: int, result: object) -> bool:
        """Gives a parked op its result; False where none waits under that token (any more)."""
        parked = self.waiting.unpark(token)
        if parked is None:
            return False
        op, execution = parked.op, parked.execution
        try:
            checked = result if op.check is None else op.check(result)
        except OpError as error:
            self.op_failed(execution, op, error)
        else:
            self._deliver(parked.frame, op, checked)
        self.pool.wake(execution)
        return True

    def fail(self, token: int, error: BaseException) -> bool:
        """Ends a parked op's branch with an error; False where none waits under that token (any more)."""
        parked = self.waiting.unpark(token)
        if parked is None:
            return False
        self.op_failed(parked.execution, parked.op, with_empty_input(parked.frame, parked.op, error))
        self.pool.wake(parked.execution)
        return True

    def _deliver(self, frame: Frame, op: BoundOp, result: Any) -> None:
        """Writes an op's result as the loop would."""
        if self.runtime.config.trace and frame.execution is not None:
            self._trace(frame.execution, op, result)
        if op.mode is OutputMode.ONE:
            if result is None and op.yields_command:
                result = self.next_command
                self.next_command += 1
            if op.takes_first and isinstance(result, tuple):
                result = result[0]
            if result is not None:
                self.write(frame, op.out, result)
        elif op.mode is OutputMode.SPREAD and result is not None:
            self.write_all(frame, zip(op.outs, result))  # noqa: B905 (trailing outputs may be left out)

    def fire(self, _now_ns: int, token: int) -> None:
        """A delay is over: the op that waits for it goes on."""
        self.resume(token, TRIGGER)

    def save(self) -> dict[str, int]:
        """Its own numbers, as plain values; `restore` takes them."""
        return {"depth_peak": self.depth_peak, "next_command": self.next_command}

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave."""
        self.depth_peak, self.next_command = plain["depth_peak"], plain["next_command"]
