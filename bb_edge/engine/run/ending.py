"""The end of executions: what waits and what ends, once nothing of an execution is ready.

Rules E4 and E19 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.program.program import EAGER_MASK
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.given_up import tell_given_up
from bb_edge.engine.run.life import KEEPS_CLAIMS, LIFE, Event, Hold, State
from bb_edge.engine.run.pool import ExecutionPool
from bb_edge.engine.run.turns import TOO_LATE
from bb_edge.engine.run.waiting import WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import BackendRunError, RequestDeclined
from bb_edge.wire.envelope_records import FailureCode

OVERDUE: Final = "execution.overdue"
"""The registered callback `(now_ns, number)`: an asked execution waits, and its reply must be on its way."""


@dataclass(slots=True, eq=False)
class Endings:
    """Ends executions: gives back what they held, and tells whoever wants to know."""

    _runtime: Runtime
    _components: Components
    _pool: ExecutionPool
    _waiting: WaitingRoom
    _ledger: Ledger
    _gates: dict[BoundRegion, list[Callable[[Frame], None]]] = field(default_factory=dict)

    def add_gate(self, region: BoundRegion, meet: Callable[[Frame], None]) -> None:
        """Calls `meet(frame)` at the end of each execution that has a frame in that region."""
        self._gates.setdefault(region, []).append(meet)

    def declined(self, execution: Execution, op: BoundOp, error: BaseException) -> bool:
        """Whether an op has declined the request that is worked on: who asked hears it at the end."""
        asker = execution.source
        if not isinstance(error, RequestDeclined) or not execution.owes or asker is None:
            return False
        execution.went_wrong(FailureCode.DECLINED, error.what)
        execution.failed = True  # what waits for the op is not a riddle
        self._runtime.count("requests.declined")
        self._runtime.emit(steps.RequestDeclined(asker, op.target, error.what, op.spec.name))
        return True

    def branch_failed(
        self, op: BoundOp, execution: int, error: BaseException, peer: PeerId | None = None
    ) -> steps.OpFailed:
        """Reports and counts an op that failed in the execution of that number."""
        self._runtime.count("ops.failed")
        where = (self._components.origin_of(op), op.spec.meta.get(keys.SOURCE_LINE_KEY, ""))
        failure = steps.OpFailed(op.target, execution, op.spec.name, error, *where, peer)
        self._runtime.emit(failure)
        self._runtime.bus.publish(Bus.OP_FAILURE)
        return failure

    def too_late(self, execution: Execution) -> None:
        """Ends a request that has not begun, in whose place others can be answered: who asked hears it."""
        assert execution.source is not None
        execution.ready.clear()
        execution.expire()
        execution.went_wrong(FailureCode.DECLINED, TOO_LATE)
        self._runtime.count("requests.declined")
        self._runtime.emit(steps.RequestDeclined(execution.source, execution.target, TOO_LATE))

    def settle(self, execution: Execution) -> None:
        """Nothing of an execution is ready: it waits, or it ends."""
        held = execution.held
        execution.state = LIFE.rows[execution.state, Event.HELD if held else Event.DRAINED]
        if held:
            # A bootstrap keeps what it has claimed: body ops that want it are held back all the while.
            if execution.claimed and execution.bootstrap is None and KEEPS_CLAIMS.isdisjoint(held):
                self._waiting.release_claims(execution)
            if execution.until_ns and not execution.until_timer and execution.is_asked:
                timers, overdue = self._runtime.timers, self._runtime.callbacks.get(OVERDUE)
                when = execution.until_ns
                execution.until_timer = timers.at(when, overdue, execution.id, reserved=True)
            return
        if self._gates and not execution.failed and not execution.expired:
            for frame in tuple(execution.frames):
                for meet in self._gates.get(frame.region, ()):
                    meet(frame)
            if execution.state is State.RUNNING:
                return  # a gate has let something through: it goes on
        self._end(execution)

    def _end(self, execution: Execution) -> None:
        runtime = self._runtime
        if not execution.failed and not execution.expired:
            ops = starved(execution)
            if ops:
                execution.failed = True
                execution.went_wrong(FailureCode.STARVED, ", ".join(ops))
                runtime.count("executions.starved")
                runtime.emit(steps.ExecutionStarved(execution.target, execution.id, ops))
        if execution.until_timer:
            runtime.timers.cancel(execution.until_timer)
        if execution.claim_set:
            self._waiting.release_claims(execution)
        for release in execution.permits:
            release(execution.id)
        if execution.bytes_held:
            self._ledger.release(execution.source, execution.bytes_held)
        if execution.answer_bytes:
            self._ledger.release(None, execution.answer_bytes)
        if execution.notify:
            runtime.emit(steps.ExecutionEnded(execution.target, execution.id, execution.failed))
        if self._components.observers:
            self._tell_observers(execution.target, execution.id)
        runtime.count("executions.ended")
        if execution.on_end is not None:
            execution.on_end(execution)
        if execution.parent is not None or execution.asker is not None:
            self._leave_parent(execution)
        self._pool.end(execution)

    def _tell_observers(self, target: str, execution: int) -> None:
        """Tells the components that want to know of it that an execution has ended."""
        for component, observe, aggregator in self._components.observers:
            try:
                observe(execution)
                if aggregator is not None:
                    tell_given_up(self._runtime, target, aggregator)
            # The border to users' components, as in the scheduler's loop.
            except BaseException as error:  # noqa: BLE001
                name = f"{component.TYPE_NAME}.execution_ended"
                self._runtime.component_failed(target, name, name, contained(error))

    def _leave_parent(self, execution: Execution) -> None:
        """Unties an execution from whoever asked in it, and a child from the execution that asked."""
        parent = execution.parent
        if parent is not None:
            parent.let_go(Hold.CHILD)
            for frame in execution.frames:
                if frame.parent is not None and frame.parent.execution is parent:
                    frame.parent.remove_child(frame)
        if execution.asker is not None:
            execution.asker.execution_ended(execution)
        if parent is not None:
            self._pool.wake(parent)


def starved(execution: Execution) -> tuple[str, ...]:
    """Names of ops that got an input in this execution and miss another one.

    What a child sees of its parent did not arrive in the child; constants and sources don't count.
    """
    names: list[str] = []
    for frame in execution.frames:
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


def with_empty_input(frame: Frame, op: BoundOp, error: BaseException) -> BaseException:
    """The error of an op; that of a backend names the empty aggregate, or answers, that it has read."""
    if isinstance(error, BackendRunError) and not error.hint:
        for made in frame.region.graph.slot.ops:
            sums, answers = made.op_type == "Aggregate", made.op_type == "RecvRespBatched"
            for site in made.outputs[:1] if sums else made.outputs[2:] if answers else ():
                if site >= 0 and site in op.inputs and not getattr(frame.values[site], "size", 1):
                    slot = made.meta.get(keys.SLOT_KEY, "")
                    error.hint = (
                        f"no contribution counted in slot {slot!r}: wait for g.when(total > 0)"
                        if sums
                        else "nobody has answered, and r.responses has no rows: wait for"
                        " g.when(g.onnx.size(r.responses) > 0)"
                    )
    return error
