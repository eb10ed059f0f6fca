"""Straight-line schedules: invokes of graphs that are tensor work alone, without frames and ready queue.

Such a graph always runs the same ops in the same order. So the order is found once, at install, and values
stand in a few registers instead of a frame: one that was read for the last time makes place for the next.
A schedule says and counts what the scheduler's loop would, and is taken only where nothing else waits to run
and the op budget allows it: nobody can tell the difference but by the clock. Tracers, who want to see every
op, turn it off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bb_edge.engine.run.bound import BoundGraph, BoundOp, OutputMode
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.steps import ExecutionEnded
from bb_edge.roles.containment import contained


class Work(NamedTuple):
    """What a step does beyond computing one value from one or two, and what it hangs on.

    `inputs` and `outs` are registers, -1 for an output that nobody reads; `left` are registers that it clears
    behind it. `needs` has the bit of the step itself and of every step that it cannot run without.
    """

    op: BoundOp
    bit: int
    needs: int
    inputs: tuple[int, ...]
    outs: tuple[int, ...]
    left: tuple[int, ...]


class Step(NamedTuple):
    """One op. Where it computes one value from one or two, the first four fields are all that it takes.

    `second` is -1 for an op of one input. `out` is -1 for any other kind of op: one that emits an app event,
    which then holds the value of `first`, and calls with other inputs and outputs, which `work` has.
    """

    run: Callable[..., Any]
    first: int
    second: int
    out: int
    work: Work


@dataclass(slots=True, eq=False)
class Schedule:
    """What the loop would do with a graph whose inputs `sites` are all given, in this order: `ops` ops."""

    sites: tuple[int, ...]
    _registers: list[Any]  # the inputs' places first, then constants
    _steps: tuple[Step, ...]
    _ready: int  # ops that wait at the beginning
    ops: int = field(init=False)
    _start: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.ops, self._start = len(self._steps), tuple(self._registers)

    def run(self, scheduler: Scheduler, target: str, number: int, values: dict[int, object]) -> int:
        """Runs an execution from its start to its end; returns how many ops ran. Empties `values`."""
        scheduler.passes(self._ready)
        runtime, registers = scheduler.runtime, self._registers
        registers[: len(values)] = values.values()
        values.clear()
        failed, ran, steps = False, self.ops, self._steps
        try:
            while steps:
                todo, steps = iter(steps), ()
                try:
                    for run, first, second, out, work in todo:
                        if out >= 0:
                            if second < 0:
                                registers[out] = run(None, registers[first])
                            else:
                                registers[out] = run(None, registers[first], registers[second])
                        elif work.op.emits is None:
                            _call(run, work, registers)
                        else:
                            runtime.emit_value(target, number, work.op.emits, registers[first])
                # The border to users' backends, as in the scheduler's loop.
                except BaseException as error:  # noqa: BLE001
                    failed = True
                    scheduler.endings.branch_failed(work.op, number, contained(error))
                    rest = tuple(todo)
                    steps = tuple(step for step in rest if not step.work.needs & work.bit)
                    ran -= len(rest) - len(steps)
        except BaseException:  # somebody stops the process: the host is still told that it has ended
            runtime.emit(ExecutionEnded(target, number, True))
            raise
        finally:
            registers[:] = self._start
        runtime.emit(ExecutionEnded(target, number, failed))
        runtime.count("executions.ended")
        return ran


def _call(run: Callable[..., Any], work: Work, registers: list[Any]) -> None:
    """Any call: its values go where they are read, and what it has read for the last time is forgotten."""
    result = run(None, *[registers[i] for i in work.inputs])
    results = (result,) if work.op.mode is OutputMode.ONE else result
    for out, value in zip(work.outs, results):  # noqa: B905 (some are left out)
        if out >= 0:
            registers[out] = value
    for register in work.left:
        registers[register] = None


# --- making one ---------------------------------------------------------------------------------------


def schedules_of(mains: Mapping[str, BoundGraph], scheduler: Scheduler) -> dict[str, Schedule]:
    """The schedules of the targets that have one; none while somebody wants to see ops or executions."""
    if scheduler.runtime.config.trace or scheduler.components.observers:
        return {}
    schedules = {target: _schedule(graph) for target, graph in mains.items()}
    return {target: schedule for target, schedule in schedules.items() if schedule is not None}


def _schedule(graph: BoundGraph) -> Schedule | None:
    """The schedule of a graph; None where it is more than tensor work."""
    if len(graph.regions) != 1 or not graph.ops or not all(_is_plain(graph, op) for op in graph.ops):
        return None
    order, ready = _order(graph)
    return _Registers(graph, order).schedule(ready) if len(order) == len(graph.ops) else None


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
    return op.is_plain_call and op.mode is not OutputMode.NONE


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
        self.order = order
        self.constants = graph.slot.values
        self.sites = tuple(graph.slot.inputs.values())
        self.of = {site: number for number, site in enumerate(self.sites)}
        self.start: list[object] = [None] * len(self.sites)
        self.last = {site: op for op in order for site in op.spec.inputs}
        self.free: list[int] = []
        self.needs: dict[int, int] = {}  # by site: the bits of the steps that it comes from
        for op in order:
            for site in op.spec.inputs:
                if self.constants[site] is not None and site not in self.of:
                    self.of[site] = len(self.start)
                    self.start.append(self.constants[site])

    def schedule(self, ready: int) -> Schedule:
        steps = tuple(self._step(op, 1 << number) for number, op in enumerate(self.order))
        return Schedule(self.sites, self.start, steps, ready)

    def _step(self, op: BoundOp, bit: int) -> Step:
        inputs = tuple(self.of[site] for site in op.inputs)
        gone = [s for s in dict.fromkeys(op.spec.inputs) if self.last[s] is op and self.constants[s] is None]
        self.free += [self.of[site] for site in gone]
        outs = tuple(self._register(site) if site in self.last else -1 for site in op.outs)
        # Inputs are held by whoever gave them.
        left = tuple(self.of[s] for s in gone if self.of[s] not in outs and s not in self.sites)
        needs = bit
        for site in op.spec.inputs:
            needs |= self.needs.get(site, 0)
        self.needs.update(dict.fromkeys(op.outs, needs))
        is_short = op.mode is OutputMode.ONE and len(inputs) <= 2 and not left
        second = inputs[1] if len(inputs) == 2 else -1
        return Step(
            op.run, inputs[0], second, outs[0] if is_short else -1, Work(op, bit, needs, inputs, outs, left)
        )

    def _register(self, site: int) -> int:
        if self.free:
            self.of[site] = self.free.pop()
        else:
            self.of[site] = len(self.start)
            self.start.append(None)
        return self.of[site]
