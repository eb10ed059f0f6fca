"""`Loop`, `If` and `BodyEnd`: bodies are functions that run in a frame of the execution.

A loop has one frame however often it goes round: the last op of its body makes the frame clean again and
writes what the next iteration takes. Like a call nothing recurses, so that ops of a body may wait, and the
node serves others between two iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bb_edge.backends.control import MAX_ITERATIONS
from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.plain import payload_bytes
from bb_edge.engine.program.program import EAGER_MASK
from bb_edge.engine.run.body_run import BodyRun
from bb_edge.engine.run.bound import BoundGraph, BoundOp, BoundRegion
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import PENDING
from bb_edge.ir.bodies import BODY_END, FIXED_INPUTS, body_keys
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_edge.ir.values import TRIGGER
from bb_edge.syscalls.flow import one_element
from bb_edge.wire.envelope_records import FailureCode

_ENDLESS: Final = -1
_GOES_ON: Final = np.array(True)
_GOES_ON.setflags(write=False)


def _functions(op: BoundOp, env: BindEnv) -> tuple[BoundGraph, ...]:
    """The bodies of an op. OpError where the artifact lacks one, or one does not fit the op."""
    spec = op.spec
    found = []
    for key in body_keys(spec.domain, spec.op_type, spec.attrs):
        graph = env.graphs.get(key)
        if graph is None:
            raise OpError(f"the artifact has no function {key[1]!r}", where=spec.name)
        if len(graph.slot.inputs) != max(len(spec.inputs), FIXED_INPUTS[spec.op_type]):
            raise OpError(
                f"{key[1]} takes {len(graph.slot.inputs)} values, and {len(spec.inputs)} are given",
                where=spec.name,
            )
        if [each.spec.op_type for each in graph.ops].count(BODY_END) != 1:
            raise OpError(f"{key[1]} does not end in one {BODY_END}", where=spec.name)
        called = next((o.spec for o in graph.ops if (o.spec.domain, o.spec.op_type) in env.graphs), None)
        if called is not None:
            raise OpError(f"{key[1]} calls {called.op_type!r}: bodies call nothing", where=spec.name)
        found.append(graph)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Body:
    """A body as it is entered: the sites of its inputs that are read, with their places, and the ops that
    wait for no value.
    """

    region: BoundRegion
    sites: tuple[tuple[int, int], ...]
    unreached: tuple[BoundOp, ...]

    @classmethod
    def of(cls, graph: BoundGraph) -> _Body:
        consumers = graph.regions[0].region.consumers
        sites = enumerate(graph.slot.inputs.values())
        return cls(
            graph.regions[0],
            tuple((place, site) for place, site in sites if consumers[site]),
            tuple(op for op in graph.ops if op.spec.pulls and not op.spec.waits & EAGER_MASK),
        )

    def start(self, frame: Frame, values: Sequence[object], scheduler: Scheduler) -> None:
        """Readies what the values bring, and what waits for nothing."""
        scheduler.write_all(frame, [(site, values[place]) for place, site in self.sites])
        for op in self.unreached:
            scheduler.pull(frame, op)


@dataclass(frozen=True, slots=True)
class _Loop:
    """A `Loop` of one node: how many values it carries, and the places and sites of those that are read."""

    op: BoundOp
    body: _Body
    scheduler: Scheduler
    carried: int
    read: tuple[tuple[int, int], ...]
    number: int
    """The site of the number of the iteration; -1 where the body does not read it."""
    has_condition: bool
    rows: tuple[ValueType | None, ...]
    """The types of the results that are stacked, as far as the artifact knows them."""

    def run(self, ctx: OpContext, trips: object, going: object, *values: object) -> object:
        """Begins the first iteration; without any, the results are the initial values."""
        where = self.op.spec.name
        most = _ENDLESS if trips is None else max(0, int(one_element(trips, "the number of trips", where)))
        begins = going is None or bool(one_element(going, "the condition", where))
        behind = FIXED_INPUTS["Loop"]
        kept = [
            (site, values[place - behind])
            for place, site in self.body.sites
            if place >= behind + self.carried
        ]
        kept += [(site, _GOES_ON) for place, site in self.body.sites if place == 1]
        run = BodyRun(most, tuple(kept), tuple([] for _ in self.rows))
        if most == 0 or not begins:
            return self._results(values[: self.carried], run)
        frame = ctx.execution.new_frame(self.body.region)
        frame.caller, frame.call, frame.body = ctx.frame, self.op, run
        self._enter(frame, run, values)
        return PENDING

    def _enter(self, frame: Frame, run: BodyRun, carried: Sequence[object]) -> None:
        """Writes what an iteration is given, and readies what waits for nothing."""
        pairs = [(site, carried[place]) for place, site in self.read]
        if self.number >= 0:
            pairs.append((self.number, np.array(run.iteration, np.int64)))
        pairs += run.kept
        self.scheduler.write_all(frame, pairs)
        for op in self.body.unreached:
            self.scheduler.pull(frame, op)

    def ended(self, frame: Frame, values: Sequence[object]) -> None:
        """Goes on with the next iteration, or hands the results to whoever reads them."""
        run, execution = frame.body, frame.execution
        assert run is not None and execution is not None
        goes_on = True
        if self.has_condition:
            goes_on = bool(one_element(values[0], "the condition", self.op.spec.name))
            values = values[1:]
        if self.rows:
            self._keep(run, values[self.carried :])
        run.iteration += 1
        if goes_on and run.iteration != run.trips:
            if execution.until_ns or run.iteration >= MAX_ITERATIONS:
                self._refuse_endless(execution, run)
            frame.again()
            self._enter(frame, run, values)
            return
        caller = frame.caller
        execution.give_back(frame)
        if caller is not None:
            results = self._results(values[: self.carried], run)
            self.scheduler.write_all(caller, zip(self.op.outs, results))  # noqa: B905 (trailing ones may be left out)

    def _refuse_endless(self, execution: Execution, run: BodyRun) -> None:
        """OpError where nobody waits any longer for what the loop would give, or it never ends."""
        now, where = self.scheduler.runtime.now_ns, self.op.spec.name
        if 0 < execution.until_ns <= now and execution.is_asked:
            execution.expire()
            execution.went_wrong(FailureCode.OUT_OF_TIME, f"{where} was in iteration {run.iteration}")
            raise OpError(
                f"whoever asked waits no longer, after {run.iteration} iterations",
                where,
                "give the request a longer deadline, or the loop fewer iterations",
            )
        if run.iteration >= MAX_ITERATIONS:
            raise OpError(f"the loop has not ended after {MAX_ITERATIONS} iterations", where)

    def _keep(self, run: BodyRun, rows: Sequence[object]) -> None:
        """Keeps the rows of an iteration. OpError beyond `tensor_bytes`: stacking them makes a copy."""
        for kept, row in zip(run.rows, rows, strict=True):
            kept.append(row)
            run.row_bytes += payload_bytes(row)
        most = self.scheduler.runtime.config.tensor_bytes
        if most and 2 * run.row_bytes > most:
            raise OpError(
                f"the rows that the loop collects take {2 * run.row_bytes} bytes, {most} at most",
                self.op.spec.name,
                "collect less, or raise limits.tensor_bytes (--config; in Python NodeConfig)",
            )

    def _results(self, carried: Sequence[object], run: BodyRun) -> tuple[object, ...]:
        return (TRIGGER, *carried, *map(self._stacked, run.rows, self.rows))

    def _stacked(self, rows: Sequence[Any], known: ValueType | None) -> object:
        if rows:
            try:
                return np.stack(rows)
            except ValueError as error:
                raise OpError(f"a row changes its shape: {error}", self.op.spec.name) from error
        elem = None if known is None else known.node.elem_type
        rank = 1 if known is None or known.shape is None else len(known.shape)
        return np.empty((0,) * rank, (None if elem is None else dtype_of_elem(elem)) or np.float32)


def _loop(op: BoundOp, env: BindEnv) -> Run:
    (graph,) = _functions(op, env)
    carried = op.spec.attrs.get("carried", 0)
    stacked = op.outs[1 + carried :] if isinstance(carried, int) else ()
    body = _Body.of(graph)
    count, behind = len(op.outs) - 1 - len(stacked), FIXED_INPUTS["Loop"]
    loop = _Loop(
        op,
        body,
        env.scheduler,
        count,
        tuple((place - behind, site) for place, site in body.sites if behind <= place < behind + count),
        next((site for place, site in body.sites if place == 0), -1),
        bool(op.spec.attrs.get("condition", 0)),
        tuple(env.graph.slot.output_types.get(site) for site in stacked),
    )
    if not isinstance(carried, int) or loop.carried != carried:
        raise OpError(f"{carried} carried values, and {len(op.outs)} outputs", where=op.spec.name)
    op.ended = loop.ended
    short = FIXED_INPUTS["Loop"] - len(op.spec.inputs)
    if short > 0:  # optional inputs at the end may be left out
        return lambda ctx, *inputs: loop.run(ctx, *inputs, *(None,) * short)
    return loop.run


def _if(op: BoundOp, env: BindEnv) -> Run:
    branches = tuple(_Body.of(graph) for graph in _functions(op, env))
    scheduler = env.scheduler

    def run(ctx: OpContext, *inputs: object) -> object:
        branch = branches[0 if one_element(inputs[0], "the condition", op.spec.name) else 1]
        frame = ctx.execution.new_frame(branch.region)
        frame.caller, frame.call = ctx.frame, op
        branch.start(frame, inputs, scheduler)
        return PENDING

    def ended(frame: Frame, values: Sequence[object]) -> None:
        caller, execution = frame.caller, frame.execution
        assert caller is not None and execution is not None
        execution.give_back(frame)
        scheduler.write_all(caller, zip(op.outs, (TRIGGER, *values)))  # noqa: B905 (trailing ones may be left out)

    op.ended = ended
    return run


def _end(op: BoundOp, env: BindEnv) -> Run:
    yields = op.spec.attrs.get("yields", 0)
    if not isinstance(yields, int) or not 0 <= yields <= len(op.inputs):
        raise OpError(f"it yields {yields!r} of {len(op.inputs)} values", where=op.spec.name)
    op.frees = ()  # the frame is clean, or given back, when it has run

    def run(ctx: OpContext, *values: object) -> object:
        call = ctx.frame.call
        if call is None or call.ended is None:
            raise OpError("no Loop and no If runs this body", where=op.spec.name)
        call.ended(ctx.frame, values[:yields])
        return None

    return run


BINDERS: dict[str, Bind] = {"Loop": _loop, "If": _if, BODY_END: _end}
