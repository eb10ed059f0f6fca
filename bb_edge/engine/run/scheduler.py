"""The engine: its tables, and the loop that runs ops (semantics §3).

`drain` takes one runnable execution after the other and runs its ready ops, FIFO, until nothing is ready.
Everything else that writes values (entries, answers, completions, timers) goes through `write` and `resume`.
No IO, no clock, no entropy: `now_ns`, `rng` and inbound bytes are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.context import ComponentTimers, OpContext
from bb_edge.engine.errors import OpError
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.program.graph_slot import EAGER_MASK
from bb_edge.engine.run.bound import BoundGraph, BoundOp, BoundRegion
from bb_edge.engine.run.claims import Claims
from bb_edge.engine.run.components import observers, origin_of
from bb_edge.engine.run.frames import Execution, ExecutionPool, Frame, State
from bb_edge.engine.run.lanes import run_lane
from bb_edge.engine.run.waiting import PENDING, Parking, traced
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import Component
from bb_edge.roles.containment import contained
from bb_edge.wire.caps import RaisedSite
from bb_edge.wire.outbox import Cause


class Scheduler:
    """One node's state over a Program. `Node` is its public face, `poll` (poll.py) its heartbeat."""

    def __init__(
        self,
        runtime: Runtime,
        components: Sequence[Component],
        slots: Mapping[tuple[str, str], int],
        class_of_target: Mapping[str, str],
        ledger: Ledger,
        raised_sites: tuple[RaisedSite, ...] = (),
    ) -> None:
        config = runtime.config
        self.runtime = runtime
        self.components: tuple[Component, ...] = tuple(components)
        self.backends = tuple(c for c in self.components if isinstance(c, Backend))
        self.slots = dict(slots)
        self.class_of_target = dict(class_of_target)
        self.raised_sites = raised_sites
        self.ledger = ledger
        self.pool = ExecutionPool(config.max_executions, config.max_children)
        self.claims = Claims(len(self.components))
        self.busy: list[bool] = [False] * len(self.components)
        self.busy_waiters: list[deque[tuple[Frame, BoundOp]]] = [deque() for _ in self.components]
        self.runtime.callbacks.register("claim.expired", self._claim_expired)
        self.scheduler = ComponentTimers(self)
        self.graphs: tuple[BoundGraph, ...] = ()
        self.runnable: deque[Execution] = deque()
        self.depth_peak = 0
        self.neighbours: Any = None
        self.control: Any = None
        self.graph_of: dict[BoundOp, int] = {}  # the index of its graph
        self.forwards: dict[BoundOp, Mapping[int, tuple[int, ...]]] = {}  # of the calls of functions
        self.op_states: dict[str, dict[object, Any]] = {}  # by target: what belongs to ops
        # By region: what gates across executions take from one that ends.
        self.gates: dict[BoundRegion, list[Callable[[Frame], None]]] = {}
        self.rings: dict[str, deque[object]] = {}
        self.locked: dict[int, str] = {}  # component -> the bootstrap that holds it
        self.locked_ops: list[tuple[Frame, BoundOp]] = []
        self.unready: dict[int, Any] = {}  # component -> its bootstrap that is not done but kept going
        self.observer: Callable[[BoundOp], Callable[..., Any]] | None = None  # see `Node.observe_ops`
        self.on_bootstrap_failure: Callable[[Execution, steps.OpFailed], None] = _nothing
        self.execution_observers = observers(self.components)
        self.on_child_end: Callable[[Execution], None] = _nothing
        self.on_requests_over: Callable[[Execution], None] = _nothing
        self.next_command = 1
        self.parking = Parking(self)
        self.ctx = OpContext(self)

    def replace_components(self, fresh: Mapping[int, Component]) -> None:
        """Puts components that were constructed anew in their places; who calls it binds their ops again."""
        self.components = tuple(fresh.get(i, c) for i, c in enumerate(self.components))
        self.execution_observers = observers(self.components)

    def component_of(self, target: str, slot: str) -> Any:
        """The component that a target's slot is bound to; OpError where there is no such slot."""
        index = self.slots.get((target, slot))
        if index is None:
            raise OpError(f"no slot {slot!r}", where=target, hint="declare it in the module and bind it")
        return self.components[index]

    # --- generators -----------------------------------------------------------------------------------

    def _generator_owners(self) -> list[Any]:
        return [self.ctx, *(() if self.control is None else self.control.contexts)]

    def generator_states(self) -> list[Any]:
        """The states of NumPy's generators that components have used; None for those that nobody has."""
        return [owner.generator_state for owner in self._generator_owners()]

    def restore_generators(self, states: list[Any]) -> None:
        for owner, state in zip(self._generator_owners(), states, strict=True):
            owner.generator_state = state

    # --- running --------------------------------------------------------------------------------------

    def wake(self, execution: Execution) -> None:
        """Puts an execution among the runnable ones."""
        if not execution.queued:
            execution.queued = True
            execution.state = State.RUNNING
            self.runnable.append(execution)

    def drain(self, limit: int) -> int:
        """Runs at most `limit` ops; returns how many ran."""
        runnable = self.runnable
        done = 0
        while runnable and done < limit:
            execution = runnable[0]
            # The frontier: this execution's ready ops, and at least one of every other runnable one.
            depth = len(execution.ready) + len(runnable) - 1
            if depth > self.depth_peak:
                self.depth_peak = depth
            done += self._run(execution, limit - done)
            if execution.ready:
                break  # the budget is spent
            runnable.popleft()
            execution.queued = False
            self._settle(execution)
        return done

    def _run(self, execution: Execution, limit: int) -> int:
        ready = execution.ready
        popleft, append = ready.popleft, ready.append
        ctx = self.ctx
        ctx.execution = execution
        trace = self.runtime.config.trace
        pending = PENDING
        mask = EAGER_MASK
        done = 0
        while ready and done < limit:
            done += 1
            frame, op = popleft()
            if op.lane is not None:
                done += run_lane(self, execution, frame, op, limit - done)
                continue
            if op.touches >= 0 and self._held_back(execution, frame, op):
                continue
            ctx.frame = frame
            ctx.op = op
            values = frame.values
            try:
                result = op.run(ctx, *op.gather(values))
            # The border to users' components: whatever they raise ends this branch only.
            except BaseException as error:  # noqa: BLE001
                self.op_failed(execution, op, contained(error))
                continue
            if trace:
                self._trace(execution, op, result)
            for site in op.frees:
                values[site] = None
            mode = op.mode
            if mode == 1:
                if result is None:
                    if not op.yields_command:
                        continue
                    result = self._mint_command()
                elif result is pending:
                    continue
                site = op.out
                values[site] = result
                waiting = frame.waiting
                for consumer, weight in frame.consumers[site]:
                    index = consumer.index
                    left = waiting[index] - weight
                    waiting[index] = left
                    if not left:
                        append((frame, consumer))
                    elif not left & mask:
                        self.pull(frame, consumer)
                if frame.special:
                    self.pass_on(frame, site, result)
            elif mode == 2 and result is not None and result is not pending:
                waiting = frame.waiting
                for site, value in zip(op.outs, result):  # noqa: B905 (an op may leave trailing outputs out)
                    if site < 0 or value is None:
                        continue
                    values[site] = value
                    for consumer, weight in frame.consumers[site]:
                        index = consumer.index
                        left = waiting[index] - weight
                        waiting[index] = left
                        if not left:
                            append((frame, consumer))
                        elif not left & mask:
                            self.pull(frame, consumer)
                    if frame.special:
                        self.pass_on(frame, site, value)
        return done

    def _mint_command(self) -> int:
        number = self.next_command
        self.next_command += 1
        return number

    def _held_back(self, execution: Execution, frame: Frame, op: BoundOp) -> bool:
        """Whether the op must wait for a bootstrap, its execution's claims or its component, or failed."""
        component = op.touches
        if self.locked and component in self.locked and not execution.bootstrap:
            self.locked_ops.append((frame, op))
            execution.pending += 1
            self.runtime.emit(steps.WaitingOnBootstrap(op.target, execution.id, op.spec.name))
            return True
        if self.unready and component in self.unready and not execution.bootstrap:
            self.op_failed(execution, op, self.unready[component].refusal(self.runtime.now_ns))
            return True
        if not execution.claimed and component in execution.claim_set and not self.claims.acquire(execution):
            self._await_claims(execution, frame, op)
            return True
        if op.busy_key >= 0 and self.busy[op.busy_key]:
            self.busy_waiters[op.busy_key].append((frame, op))
            execution.pending += 1
            return True
        return False

    def _await_claims(self, execution: Execution, frame: Frame, op: BoundOp) -> None:
        """Parks an op until its execution's claims are granted, or its deadline has passed."""
        deadline = execution.deadline_ns
        if deadline and not execution.claim_timer:
            execution.claim_timer = self.runtime.timers.at(
                deadline, self._claim_expired, execution.id, reserved=True
            )
        execution.parked.append((frame, op))

    def _claim_expired(self, _now_ns: int, number: int) -> None:
        execution = self.pool.active.get(number)
        if execution is not None and execution.claim_timer:
            execution.claim_timer = 0
            execution.expired = True
            execution.parked.clear()
            self.runtime.count("deadlines.expired")
            self._release_claims(execution)
            self.wake(execution)

    def _trace(self, execution: Execution, op: BoundOp, result: object) -> None:
        self.runtime.emit(traced(op, result)(op.target, execution.id, op.spec.name))

    def op_failed(self, execution: Execution, op: BoundOp, error: BaseException) -> None:
        """Ends a branch: a step, a counter, a bus event; the node goes on."""
        execution.failed = True
        failure = self.branch_failed(op, execution.id, error)
        if execution.bootstrap:
            self.on_bootstrap_failure(execution, failure)

    def branch_failed(self, op: BoundOp, execution: int, error: BaseException) -> steps.OpFailed:
        """What is said and counted of an op that failed in the execution of that number."""
        self.runtime.count("ops.failed")
        where = (origin_of(op, self.components), op.spec.meta.get(keys.SOURCE_LINE_KEY, ""))
        failure = steps.OpFailed(op.target, execution, op.spec.name, error, *where)
        self.runtime.emit(failure)
        self.runtime.bus.publish(Bus.OP_FAILURE)
        return failure

    def own_cause(self, execution: Execution) -> None:
        """An execution that outlives its node is told from all others by its number, if by nothing else."""
        if execution.cause is None:
            execution.cause = Cause(self.runtime.own_peer, 1 << 62, execution.id)

    # --- values ---------------------------------------------------------------------------------------

    def write(self, frame: Frame, site: int, value: object) -> None:
        """Writes a value from outside the loop and readies whoever waited for it."""
        execution = frame.execution
        if execution is None:
            return
        frame.values[site] = value
        waiting = frame.waiting
        for consumer, weight in frame.consumers[site]:
            index = consumer.index
            left = waiting[index] - weight
            waiting[index] = left
            if not left:
                execution.ready.append((frame, consumer))
            elif not left & EAGER_MASK:
                self.pull(frame, consumer)
        if frame.special:
            self.pass_on(frame, site, value)
        self.wake(execution)

    def pass_on(self, frame: Frame, site: int, value: object) -> None:
        """Hands a value to running children that read it, and out of a called function to its caller."""
        if frame.children and site in frame.forwarded:
            for child in tuple(frame.children):
                if site in child.region.imports:
                    self.write(child, site, value)
        if frame.forward is not None and frame.caller is not None:
            for target in frame.forward.get(site, ()):
                self.write(frame.caller, target, value)

    def pull(self, frame: Frame, op: BoundOp) -> None:
        """Fires the sources that an otherwise ready op waits for, each at most once per execution."""
        ops = frame.region.graph.ops
        for number in op.spec.pulls:
            source = ops[number]
            at: Frame | None = frame
            while at is not None and at.region.region.index != source.spec.region:
                at = at.parent
            if at is None or at.execution is None or not at.waiting[number]:
                continue
            at.waiting[number] = 0
            at.execution.ready.append((at, source))
            self.wake(at.execution)

    def pull_unreached(self, frame: Frame) -> None:
        """Starts the flows that no entry reaches: ops that read sources alone (semantics §3)."""
        region = frame.region.region.index
        for op in frame.region.graph.ops:
            left = frame.waiting[op.index]
            if op.spec.pulls and left and not left & EAGER_MASK and op.spec.region == region:
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

    def ready_again(self, entry: tuple[Frame, BoundOp]) -> None:
        execution = entry[0].execution
        assert execution is not None  # its `pending` kept it alive
        execution.pending -= 1
        execution.ready.append(entry)
        self.wake(execution)

    def deliver(self, frame: Frame, op: BoundOp, result: object) -> None:
        """Writes an op's result as the loop would."""
        if self.runtime.config.trace and frame.execution is not None:
            self._trace(frame.execution, op, result)
        if op.mode == 1:
            if result is None and op.yields_command:
                result = self._mint_command()
            if op.takes_first and isinstance(result, tuple):
                result = result[0]
            if result is not None:
                self.write(frame, op.out, result)
        elif op.mode == 2 and result is not None:
            for site, value in zip(op.outs, result):  # type: ignore[call-overload]  # noqa: B905
                if site >= 0 and value is not None:
                    self.write(frame, site, value)

    def unlock(self, components: Sequence[int]) -> None:
        """A bootstrap ended: its components serve body ops again."""
        for component in components:
            self.locked.pop(component, None)
        waiting, self.locked_ops = self.locked_ops, []
        for entry in waiting:
            self.ready_again(entry)

    # --- the end of an execution ----------------------------------------------------------------------

    def _settle(self, execution: Execution) -> None:
        """Called when nothing of it is ready: it waits, or it ends."""
        if execution.open:
            execution.state = State.WAITING
            only_outside = execution.pending == execution.waits_outside and not execution.parked
            # A bootstrap keeps what it has claimed: body ops that want it are held back all the while.
            if execution.claimed and only_outside and not execution.bootstrap:
                self._release_claims(execution)
            return
        if self.gates and not execution.failed and not execution.expired:
            for frame in tuple(execution.frames):
                for meet in self.gates.get(frame.region, ()):
                    meet(frame)
            if execution.queued:
                return  # a gate has let something through: it goes on
        self._end(execution)

    def _release_claims(self, execution: Execution) -> None:
        for holder in self.claims.release(execution):
            if holder.claim_timer:
                self.runtime.timers.cancel(holder.claim_timer)
                holder.claim_timer = 0
            if holder.on_claimed is not None:
                holder.on_claimed(holder)
            holder.ready.extend(holder.parked)
            holder.parked.clear()
            self.wake(holder)

    def _end(self, execution: Execution) -> None:
        if not execution.failed and not execution.expired:
            starved = execution.starved()
            if starved:
                execution.failed = True
                self.runtime.count("executions.starved")
                self.runtime.emit(steps.ExecutionStarved(execution.target, execution.id, starved))
        if execution.claim_set:
            self._release_claims(execution)
        for release in execution.permits:
            release(execution.id)
        if execution.bytes_held:
            self.ledger.release(execution.source, execution.bytes_held)
        if execution.answer_bytes:
            self.ledger.release(None, execution.answer_bytes)
        if execution.notify:
            self.runtime.emit(steps.ExecutionEnded(execution.target, execution.id, execution.failed))
        for component, observe in self.execution_observers:
            try:
                observe(execution.id)
            # The border to users' components, as in `_run`.
            except BaseException as error:  # noqa: BLE001
                name = f"{component.TYPE_NAME}.execution_ended"
                self.runtime.component_failed(execution.target, name, name, contained(error))
        if execution.cohorts:
            self.on_requests_over(execution)
        self.runtime.count("executions.ended")
        on_end = execution.on_end
        if on_end is not None:
            on_end(execution)
        if execution.parent is not None:
            self.on_child_end(execution)
        self.pool.end(execution)

    # --- children -------------------------------------------------------------------------------------

    def start_child(
        self, parent: Frame, region: BoundRegion, outputs: Sequence[tuple[int, object]]
    ) -> Execution:
        """Runs a region once: a child execution that sees the parent's values (semantics §2, §3)."""
        asking = parent.execution
        assert asking is not None
        child = self.pool.start(asking.target, parent=asking)
        child.claim_set = region.graph.claims.get(region.region.entry, ())
        child.deadline_ns = asking.deadline_ns
        asking.children += 1
        frame = child.frame_of(region)
        frame.parent = parent
        if parent.children is None:
            parent.children = []
        parent.children.append(frame)
        parent.special = True
        for site in region.imports:
            value = parent.values[site]
            if value is not None:
                self.write(frame, site, value)
        for site, value in outputs:
            self.write(frame, site, value)
        self.wake(child)
        return child


def _nothing(*_: Any) -> None:
    return None
