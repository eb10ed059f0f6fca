"""A prepared graph: one plan per set of input shapes, and graphs whose shapes depend on data.

`NumPyProgram.run` finds its plan by the shapes and dtypes of the inputs. The last plan is tried first, so the
steady state costs one comparison per input. Plans of the last `MAX_PLANS` sets of shapes are kept. A plan in
the artifact is checked when the program is made, and used for its shapes.

A graph with a node whose result's shape depends on data (`NonZero`, `If`, `Loop`, …) runs in three parts: the
plan up to the node, the node, and a program for the rest, which makes plans for the shapes that it meets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from bb_edge.backends.arena import Arena
from bb_edge.backends.control import run_control
from bb_edge.backends.fitting import Fitted, failed, fit, fold_constants
from bb_edge.backends.flat_graph import OMITTED, Body, FlatGraph, FlatNode
from bb_edge.backends.plan import Placed, Placing, PlanLimits, StaticPlan, bytes_of
from bb_edge.backends.single_kernel import call_of_one, call_of_two
from bb_edge.backends.stored_plan import MemoryPlanError, StoredEntry, StoredPlan
from bb_edge.ir.quiet import hush, unhush
from bb_edge.roles.errors import BackendRunError, TensorBytesError
from bb_edge.roles.programs import BackendProgram, Spec
from bb_kernels import KernelError, Prepared, TensorSpec, evaluate

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import Runner, Wiring

__all__ = ["MAX_DYNAMIC", "MAX_PLANS", "NumPyProgram"]

MAX_PLANS = 8
"""Plans kept per program, which sees few shapes: full batches, the last batch, one example."""

MAX_DYNAMIC = 100
"""Data-dependent nodes in a row; each takes three frames of Python's stack. Detectors have about 20."""

CHECKED_AT_ONCE = 64 * 1024 * 1024
"""Bytes of inputs up to which the artifact's plan is checked when the program is made.

A plan for larger inputs is checked at its first run: a check allocates arrays of their sizes.
"""


class NumPyProgram(BackendProgram):
    """A graph on NumPy kernels, with a plan per set of input shapes.

    `resident` inputs are read in place, at every run. `arena` is the memory of the plans, shared with
    programs that never run at the same time. `stored` is the artifact's plan; MemoryPlanError is raised if it
    cannot be used. `plans_made` counts plans, `plans_stale` stored plans that were replaced because they were
    made for other versions of kernels.

    `declared` are the specs that the function states for its inputs, if it states them all. Plans for other
    shapes, and for what follows a data-dependent node, are charged to `limits.tensor_bytes`; plans for
    declared shapes, and the artifact's own, are not.
    """

    def __init__(
        self,
        graph: FlatGraph,
        resident: Mapping[int, Array] | None = None,
        limits: PlanLimits | None = None,
        depth: int = 0,
        arena: Arena | None = None,
        stored: StoredPlan | None = None,
        declared: tuple[Spec, ...] | None = None,
    ) -> None:
        self.graph = fold_constants(graph)
        self.declared = declared
        self.arena = Arena() if arena is None else arena
        self.limits = limits or PlanLimits()
        self.resident = dict(resident or {})
        self.depth = depth
        named = zip(graph.inputs, graph.input_names, strict=True)
        self.input_names = tuple(name for value, name in named if value not in self.resident)
        self.output_names = graph.output_names
        self.plans_made = 0
        self.plans_stale = 0
        self._plans: OrderedDict[tuple[Spec, ...], StaticPlan | _SplitPlan] = OrderedDict()
        self._held: dict[tuple[Spec, ...], int] = {}  # constants of plans for shapes that count
        self._specs: tuple[Spec, ...] | None = None
        self._plan: StaticPlan | _SplitPlan | None = None
        single = len(self.graph.nodes) == len(self.graph.outputs) == 1 and not self.resident
        if single and len(self.input_names) in (1, 2):
            if len(self.input_names) == 1:
                self.call = call_of_one(self.plan_for)
            else:
                # Two arrays of other shapes may broadcast to a large one, for which a plan is charged.
                self.call = call_of_two(self.plan_for, not self.limits.tensor_bytes or declared is not None)
        self._stored: dict[tuple[Spec, ...], tuple[StoredEntry, bool]] = {}
        self._placed: dict[tuple[Spec, ...], tuple[Fitted, Placed]] = {}  # checked, not yet run
        if stored is not None:
            self._adopt(stored)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        call = self.call
        if call is None or len(inputs) != len(self.input_names):
            return self.plan_for(inputs).run(inputs)
        token = hush()
        try:
            return (call(None, *inputs),)
        finally:
            unhush(token)

    def result_specs(self, inputs: Sequence[Spec]) -> tuple[Spec, ...] | None:
        if len(inputs) != len(self.input_names):
            return None
        try:
            fitted = self._fit(tuple(inputs))
        except TensorBytesError:
            return None  # how much a run may take is not asked here
        if fitted.stop < len(self.graph.nodes):
            return None
        specs = [fitted.values[value].spec for value in self.graph.outputs]
        return tuple((spec.shape, spec.dtype) for spec in specs)

    def run_after(self, inputs: Sequence[Array], taken: int) -> tuple[Array, ...]:
        """Runs the program; `taken` bytes were allocated before it in the same run.

        Raises TensorBytesError where both together are more than `tensor_bytes`.
        """
        plan, most = self.plan_for(inputs), self.limits.tensor_bytes
        if most and plan.nbytes + taken > most:
            raise TensorBytesError(plan.nbytes + taken, most, self._where)
        return plan.run(inputs) if isinstance(plan, StaticPlan) else plan.run_after(inputs, taken)

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        plan = self.plan_for(inputs)
        specs = plan.output_specs
        if specs is None:  # known only once it has run
            super().run_into(inputs, outputs)
            return
        self._check_results(outputs, specs)
        plan.run_into(inputs, outputs)

    def runner(
        self, outputs: Sequence[Array], lendable: Collection[int], wiring: Wiring | None = None
    ) -> Runner:
        if wiring is not None:
            return super().runner(outputs, lendable, wiring)
        plan_for = self.plan_for
        nothing: Mapping[int, Array] = {}
        fits: object = None  # a plan that gives these results

        def run(inputs: Sequence[Array]) -> Mapping[int, Array]:
            nonlocal fits
            plan = plan_for(inputs)
            if plan is not fits:
                if plan.output_specs is None:
                    self.run_into(inputs, outputs)
                    return nothing
                self._check_results(outputs, plan.output_specs)
                fits = plan
            plan.run_into(inputs, outputs)
            return nothing

        return run

    def _check_results(self, outputs: Sequence[Array], specs: Sequence[Spec]) -> None:
        """BackendRunError where arrays are not what results of these specs can be written into."""
        if len(outputs) != len(specs):
            raise BackendRunError(
                f"expected {len(specs)} arrays for the results, got {len(outputs)}", self._where
            )
        for array, (shape, dtype), name in zip(outputs, specs, self.output_names, strict=True):
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise BackendRunError(
                    f"expected a contiguous {dtype}{list(shape)} for result {name!r}, got "
                    f"{array.dtype}{list(array.shape)}",
                    self._where,
                )

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of the last plan in the arena; None before the first run, or if shapes depend on data."""
        return getattr(self._plan, "arena_bytes", None)

    def plan_for(self, inputs: Sequence[Array]) -> StaticPlan | _SplitPlan:
        """The plan for the shapes and dtypes of these inputs; made now if there is none."""
        specs = self._specs
        if specs is not None and len(specs) == len(inputs):
            for array, (shape, dtype) in zip(inputs, specs):  # noqa: B905 - checked above, and this is the hot path
                if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
                    break
            else:
                assert self._plan is not None
                return self._plan
        return self._switch(inputs)

    @property
    def _where(self) -> str:
        return f"graph {self.graph.name!r}" if self.graph.name else "graph"

    def _switch(self, inputs: Sequence[Array]) -> StaticPlan | _SplitPlan:
        if len(inputs) != len(self.input_names):
            raise BackendRunError(
                f"expected {len(self.input_names)} inputs ({', '.join(self.input_names)}), got {len(inputs)}",
                self._where,
            )
        key = tuple((array.shape, array.dtype) for array in inputs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make(key)  # what is refused costs no other plan
            held = plan.held if self.charged(key) else 0
            most = self.limits.tensor_bytes
            while len(self._plans) >= MAX_PLANS or (
                held and self._plans and sum(self._held.values()) + held > most
            ):
                old, _ = self._plans.popitem(last=False)
                self._held.pop(old, None)
            self._plans[key] = plan
            if held:
                self._held[key] = held
            self.plans_made += 1
        else:
            self._plans.move_to_end(key)
        self._specs, self._plan = key, plan
        return plan

    def charged(self, key: tuple[Spec, ...]) -> bool:
        """Whether what runs for these inputs counts: its shapes were not known when it was compiled."""
        known = key in self._stored or (self.depth == 0 and key == self.declared)
        return bool(self.limits.tensor_bytes) and not known

    def _make(self, key: tuple[Spec, ...]) -> StaticPlan | _SplitPlan:
        if key in self._placed:
            fitted, placed = self._placed.pop(key)
            return StaticPlan(fitted, self.graph.outputs, self.limits, self.arena, placed)
        fitted = self._fit(key)
        if fitted.stop == len(self.graph.nodes):
            return StaticPlan(fitted, self.graph.outputs, self.limits, self.arena, self._place(fitted, key))
        if self.depth >= MAX_DYNAMIC:
            raise BackendRunError(
                f"more than {MAX_DYNAMIC} results in a row have shapes that depend on data",
                self.graph.nodes[fitted.stop].where,
            )
        return _SplitPlan(self, fitted, self.charged(key))

    def _fit(self, key: tuple[Spec, ...]) -> Fitted:
        specs = [TensorSpec(dtype, shape) for shape, dtype in key]
        most = self.limits.tensor_bytes if self.charged(key) else 0
        return fit(self.graph, specs, self.resident, most)

    # --- the artifact's own plan ----------------------------------------------------------------------

    def _adopt(self, stored: StoredPlan) -> None:
        """Takes the entries with as many inputs and results; others are for other uses of the function."""
        for entry in stored.entries:
            if entry.results != len(self.graph.outputs) or len(entry.inputs) != len(self.input_names):
                continue
            key = tuple((spec.shape, spec.dtype) for spec in entry.inputs)
            self._stored[key] = (entry, stored.native)
            if sum(spec.nbytes for spec in entry.inputs) > CHECKED_AT_ONCE:
                continue
            try:
                fitted = self._fit(key)
            except BackendRunError as error:
                raise MemoryPlanError(
                    f"its memory plan is for shapes that do not fit the graph: {error}", self._where
                ) from error
            if fitted.stop < len(self.graph.nodes):
                raise MemoryPlanError(
                    "it has a memory plan, but the shape of a result depends on data", self._where
                )
            self._placed[key] = (fitted, self._place(fitted, key))

    def _place(self, fitted: Fitted, key: tuple[Spec, ...]) -> Placed:
        placing = Placing(fitted, self.graph.outputs)
        entry, native = self._stored.get(key, (None, False))
        layout = None
        if entry is not None:
            try:
                entry.check(placing.lives, len(fitted.steps), self._where)
                layout = entry.layout
            except MemoryPlanError:
                if native:
                    raise
                self.plans_stale += 1
        placed = placing.placed(layout)
        nbytes = bytes_of(fitted, placed, self.graph.outputs)
        if self.charged(key) and nbytes > self.limits.tensor_bytes:
            raise TensorBytesError(nbytes, self.limits.tensor_bytes, _largest(fitted, self._where))
        self.arena.reserve(placed.total)
        return placed


def _largest(fitted: Fitted, where: str) -> str:
    """A place, with the node that takes the most of what is allocated there."""
    steps = [step for step in fitted.steps if step.node is not None]
    if not steps:
        return where
    largest = max(steps, key=lambda step: step.prepared.nbytes)
    assert largest.node is not None
    return f"{where}, {largest.prepared.nbytes} of it at {largest.node.where}"


class _SplitPlan:
    """The plan up to a data-dependent node, the node, and the program of the rest."""

    output_specs = None
    call = None
    fits_any_shape = takes_twice = False

    def __init__(self, program: NumPyProgram, fitted: Fitted, charged: bool) -> None:
        graph, stop = program.graph, fitted.stop
        self.limits = program.limits
        self.arena = program.arena
        self.depth = program.depth
        self.node: FlatNode = graph.nodes[stop]
        self.outputs = graph.outputs
        self.prepared: Prepared | None = fitted.dynamic
        rest = graph.nodes[stop + 1 :]
        used = {value for node in (self.node, *rest) for value in node.inputs} | set(graph.outputs)
        produced = {value for node in (self.node, *rest) for value in node.outputs}
        before = [v for v in sorted(used - produced - {OMITTED}) if v in fitted.values]
        self.constants = {
            v: a for v in before if (a := fitted.values[v].array) is not None and fitted.values[v].constant
        }
        self.resident = {
            v: a for v in before if (a := fitted.values[v].array) is not None and v not in self.constants
        }
        passed = [v for v in before if v not in self.constants and v not in self.resident]
        # Inputs of the caller are passed on; all others in `passed` are results of the first plan.
        self.handed = [(v, fitted.values[v].source) for v in passed if self._is_input(fitted, v)]
        self.computed = [v for v in passed if not self._is_input(fitted, v)]
        self.first = self._up_to(program, fitted, charged) if self.computed else None
        self.nbytes = self.first.nbytes if self.first is not None and charged else 0
        self.held = fitted.folded
        # Results of the last node are fresh, so that they can be the program's own.
        last = not rest and len(set(graph.outputs)) == len(graph.outputs)
        self.direct = last and set(graph.outputs) <= set(self.node.outputs)
        follows = {value for node in rest for value in node.inputs} | set(graph.outputs)
        self.tail_inputs = [v for v in (*passed, *self.node.outputs) if v in follows and v != OMITTED]
        self.tail = NumPyProgram(
            FlatGraph(
                graph.name,
                (*self.tail_inputs, *self.resident),
                graph.outputs,
                rest,
                self.constants,
                tuple(f"value {v}" for v in (*self.tail_inputs, *self.resident)),
                graph.output_names,
                graph.n_values,
            ),
            self.resident,
            program.limits,
            program.depth + 1,
            program.arena,
        )

    @staticmethod
    def _is_input(fitted: Fitted, value: int) -> bool:
        known = fitted.values[value]
        return known.source >= 0 and not known.views

    def _up_to(self, program: NumPyProgram, fitted: Fitted, charged: bool) -> StaticPlan:
        placed = Placing(fitted, self.computed).placed()
        nbytes = bytes_of(fitted, placed, self.computed)
        if charged and nbytes > self.limits.tensor_bytes:
            where = _largest(fitted, f"what {self.node.where} waits for")
            raise TensorBytesError(nbytes, self.limits.tensor_bytes, where)
        return StaticPlan(fitted, self.computed, program.limits, program.arena, placed)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self.run_after(inputs, 0)

    def run_after(self, inputs: Sequence[Array], taken: int) -> tuple[Array, ...]:
        """Runs the parts; `taken` bytes were allocated before them in the same run."""
        values: dict[int, Array] = {**self.constants, **self.resident}
        values.update((value, inputs[source]) for value, source in self.handed)
        if self.first is not None:
            values.update(zip(self.computed, self.first.run(inputs), strict=True))
            taken += self.nbytes
        arguments = [None if v == OMITTED else values[v] for v in self.node.inputs]
        for value, array in zip(self.node.outputs, self._run_node(arguments, taken), strict=False):
            taken += array.nbytes
            if value != OMITTED:
                values[value] = array
        if self.direct:
            return tuple([values[v] for v in self.outputs])
        return self.tail.run_after([values[v] for v in self.tail_inputs], taken)

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise NotImplementedError(
            "the program copies the results of `run`: their shapes are not known before"
        )

    def _run_node(self, inputs: Sequence[Array | None], taken: int) -> Sequence[Array]:
        if self.prepared is None:
            return run_control(self.node, inputs, self._run_body, self.limits.tensor_bytes, taken)
        most = self.limits.tensor_bytes
        if most and taken >= most:
            raise TensorBytesError(taken, most, self.node.where)
        token = hush()
        try:
            return evaluate(self.prepared, inputs, most - taken if most else 0)
        except KernelError as error:
            raise failed(error, self.node.where, taken) from error
        except (MemoryError, ValueError) as error:
            raise BackendRunError(
                str(error) or "there is no memory for its results", self.node.where, "feed smaller inputs"
            ) from error
        finally:
            unhush(token)

    def _run_body(self, body: Body, inputs: Sequence[Array], taken: int) -> Sequence[Array]:
        if not isinstance(body.program, NumPyProgram):
            body.program = NumPyProgram(body.graph, None, self.limits, self.depth + 1, self.arena)
        return body.program.run_after(inputs, taken)
