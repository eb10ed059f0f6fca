"""The short way of an invoke whose target is tensor work alone: calls of backends, and what the host is told.

Such a graph always runs the same ops in the same order. So the order is found once, at install, and values
stand in a few registers instead of a frame: one that was read for the last time makes place for the next.
The short way says and counts what the loop would (semantics §3), and is taken only where nothing else waits
to run and the budget is there: nobody can tell the difference but by the clock. Tracers, who want to see
every op, turn it off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy import ndarray

from bb_edge.engine.budget import payload_bytes
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.runtime import Runtime
from bb_edge.engine.steps import AppEvent, app_event, execution_ended
from bb_edge.roles.containment import contained

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler


class Short(NamedTuple):
    """One value from one or two (`second` is -1 for one); no register is left over."""

    run: Callable[..., Any]
    first: int
    second: int
    out: int
    op: BoundOp


class Call(NamedTuple):
    """Any other call; `outs` are -1 where nobody reads, `left` are registers to be cleared behind it."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outs: tuple[int, ...]
    single: bool
    left: tuple[int, ...]
    op: BoundOp


class Emit(NamedTuple):
    """A value surfaces as an app event of that topic, which holds it from then on."""

    topic: str
    source: int
    op: BoundOp


class Part(NamedTuple):
    """Short calls, and one step of another kind behind them."""

    shorts: tuple[Short, ...]
    then: Call | Emit | None


class Direct(NamedTuple):
    """What the loop would do with a graph whose `sites` are given, in this order.

    `start` is what `registers` hold before and after a run: the inputs' places first, then constants.
    `ready` ops wait at the beginning.
    """

    sites: tuple[int, ...]
    start: tuple[object, ...]
    registers: list[Any]
    parts: tuple[Part, ...]
    ops: int
    ready: int


def direct_of(graph: BoundGraph, engine: Scheduler) -> Direct | None:
    """The short way of a graph; None where it is more than tensor work, or somebody looks on."""
    if engine.runtime.config.trace or engine.components.observers or len(graph.regions) != 1 or not graph.ops:
        return None
    if not all(_is_plain(graph, op) for op in graph.ops):
        return None
    order, ready = _order(graph)
    if len(order) != len(graph.ops):
        return None
    return _Registers(graph, order).direct(ready)


def _is_plain(graph: BoundGraph, op: BoundOp) -> bool:
    """Whether an op fires once all of its inputs are there, touches nothing, and gives its values at once."""
    spec, constants = op.spec, graph.slot.values
    waits = {site for site in spec.inputs if site >= 0 and constants[site] is None}
    if not spec.inputs or min(spec.inputs) < 0 or spec.controls or spec.pulls or spec.port >= 0:
        return False
    if op.touches >= 0 or op.yields_command or spec.waits != len(waits) or not waits:
        return False
    if op.emits is not None:
        return not op.outs and len(spec.inputs) == 1
    return (op.is_plain_call) and op.mode > 0


def _order(graph: BoundGraph) -> tuple[list[BoundOp], int]:
    """The ops as the loop would run them, inputs given in their order; how many are ready at the start."""
    slot, (region,) = graph.slot, graph.regions
    waiting = [op.spec.waits for op in graph.ops]
    ready: deque[BoundOp] = deque()

    def write(site: int) -> None:
        for consumer, weight in region.consumers[site]:
            waiting[consumer.index] -= weight
            if not waiting[consumer.index]:
                ready.append(consumer)

    for site in slot.inputs.values():
        write(site)
    order, first = [], len(ready)
    while ready:
        order.append(op := ready.popleft())
        for site in op.outs:
            if site >= 0:
                write(site)
    return order, first


class _Registers:
    """Gives sites their registers: free from their last reader on."""

    def __init__(self, graph: BoundGraph, order: list[BoundOp]) -> None:
        self.graph, self.order = graph, order
        slot = graph.slot
        self.sites = tuple(slot.inputs.values())
        self.of = {site: number for number, site in enumerate(self.sites)}
        self.start: list[object] = [None] * len(self.sites)
        self.last = {site: op for op in order for site in op.spec.inputs}
        self.free: list[int] = []
        for op in order:
            for site in op.spec.inputs:
                if slot.values[site] is not None and site not in self.of:
                    self.of[site] = len(self.start)
                    self.start.append(slot.values[site])

    def direct(self, ready: int) -> Direct:
        parts: list[Part] = []
        shorts: list[Short] = []
        for op in self.order:
            step = self._step(op)
            if isinstance(step, Short):
                shorts.append(step)
            else:
                parts.append(Part(tuple(shorts), step))
                shorts = []
        if shorts:
            parts.append(Part(tuple(shorts), None))
        return Direct(self.sites, tuple(self.start), self.start, tuple(parts), len(self.order), ready)

    def _step(self, op: BoundOp) -> Short | Call | Emit:
        inputs = tuple(self.of[site] for site in op.spec.inputs)
        constant = self.graph.slot.values
        gone = [s for s in dict.fromkeys(op.spec.inputs) if self.last[s] is op and constant[s] is None]
        self.free += [self.of[site] for site in gone]
        outs = tuple(self._register(site) if site in self.last else -1 for site in op.outs)
        # Inputs are held by whoever gave them.
        left = tuple(self.of[s] for s in gone if self.of[s] not in outs and s not in self.sites)
        if op.emits is not None:
            return Emit(op.emits, inputs[0], op)
        single = op.mode == 1
        if single and outs[0] >= 0 and len(inputs) <= 2 and not left:
            return Short(op.run, inputs[0], inputs[1] if len(inputs) == 2 else -1, outs[0], op)
        return Call(op.run, inputs, outs, single, left, op)

    def _register(self, site: int) -> int:
        if self.free:
            self.of[site] = self.free.pop()
        else:
            self.of[site] = len(self.start)
            self.start.append(None)
        return self.of[site]


def run_direct(engine: Scheduler, direct: Direct, target: str, number: int, values: dict[int, object]) -> int:
    """Runs the execution from its start to its end; returns how many ops ran. Empties `values`."""
    engine.pool.passed()
    if engine.depth_peak < direct.ready:
        engine.depth_peak = direct.ready
    registers = direct.registers
    registers[: len(values)] = values.values()
    values.clear()
    ran, failed = direct.ops, False
    parts = iter(direct.parts)
    try:
        for shorts, then in parts:
            todo = iter(shorts)
            try:
                for run, first, second, out, op in todo:  # noqa: B007 (the one that fails is named)
                    if second < 0:
                        registers[out] = run(None, registers[first])
                    else:
                        registers[out] = run(None, registers[first], registers[second])
                if isinstance(then, Emit):
                    topic, source, op = then
                    emit_value(engine.runtime, op, number, topic, registers[source])
                elif then is not None:
                    op = then.op
                    _call(then, registers)
            # The border to users' backends, as in `Engine._run`.
            except BaseException as error:  # noqa: BLE001
                failed = True
                engine.branch_failed(op, number, contained(error))
                at = None if then is not None and op is then.op else out
                ran -= _without(engine, number, registers, at, todo, then, parts)
    except BaseException:  # somebody stops the process: the host is still told that it has ended
        engine.runtime.emit(execution_ended(target, number, True))
        raise
    finally:
        registers[:] = direct.start
    engine.runtime.steps.append(execution_ended(target, number, failed))
    engine.runtime.count("executions.ended")
    return ran


def _call(step: Call, registers: list[Any]) -> None:
    found = step.run(None, *[registers[i] for i in step.inputs])
    for out, value in zip(step.outs, (found,) if step.single else found):  # noqa: B905 (some are left out)
        if out >= 0:
            registers[out] = value
    for register in step.left:
        registers[register] = None


def _without(
    engine: Scheduler,
    number: int,
    registers: list[Any],
    failed: int | None,
    todo: Iterator[Short],
    then: Call | Emit | None,
    parts: Iterable[Part],
) -> int:
    """Goes on behind an op that failed, without whatever hangs on it; returns how many ops did not run."""
    left_out = 0
    rest: list[Short | Call | Emit] = []
    if failed is None:
        assert then is not None
        _forget(then, registers)
    else:
        registers[failed] = None
        rest += [*todo, *(() if then is None else (then,))]
    for shorts, last in parts:
        rest += [*shorts, *(() if last is None else (last,))]
    for step in rest:
        inputs: tuple[int, ...]
        if isinstance(step, Short):
            inputs = (step.first,) if step.second < 0 else (step.first, step.second)
        else:
            inputs = (step.source,) if isinstance(step, Emit) else step.inputs
        if any(registers[i] is None for i in inputs):
            left_out += 1
            _forget(step, registers)
            continue
        try:
            if isinstance(step, Short):
                registers[step.out] = step.run(None, *[registers[i] for i in inputs])
            elif isinstance(step, Emit):
                emit_value(engine.runtime, step.op, number, step.topic, registers[step.source])
            else:
                _call(step, registers)
        except BaseException as error:  # noqa: BLE001 (as above)
            engine.branch_failed(step.op, number, contained(error))
            _forget(step, registers)
    return left_out


def _forget(step: Short | Call | Emit, registers: list[Any]) -> None:
    """Nothing came of a step: what it would have written is not there, what it freed is free."""
    if isinstance(step, Short):
        registers[step.out] = None
    elif isinstance(step, Call):
        for register in (*step.left, *step.outs):
            if register >= 0:
                registers[register] = None


def emit_value(runtime: Runtime, op: BoundOp, execution: int, topic: str, value: object) -> None:
    """An op's value as an app event; one that is larger than the node lets it be is left out, counted."""
    size = value.nbytes if type(value) is ndarray else payload_bytes(value)
    if size > runtime.config.app_event_bytes:
        runtime.count("app_events.omitted")
        runtime.emit(AppEvent(op.target, execution, topic, None, size))
        return
    runtime.steps.append(app_event(op.target, execution, topic, value))


__all__ = ["Direct", "direct_of", "emit_value", "run_direct"]
