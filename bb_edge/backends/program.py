"""A prepared graph: one plan per set of input shapes, and graphs whose shapes depend on data.

`NumPyProgram.run` finds its plan by the shapes and dtypes of the inputs. The last plan is tried first, so the
steady state costs one comparison per input. Plans of the last `MAX_PLANS` sets of shapes are kept. A plan in
the artifact is checked when the program is made, and used for its shapes.

A graph with a node whose result's shape depends on data (`NonZero`, `If`, `Loop`, …) runs in three parts: the
plan up to the node, the node, and a program for the rest, which makes plans for the shapes that it meets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from bb_edge.backends.arena import Arena
from bb_edge.backends.control import run_control
from bb_edge.backends.fitting import Fitted, failed, fit, fold_constants
from bb_edge.backends.lowering import OMITTED, Body, FlatGraph, FlatNode
from bb_edge.backends.plan import Placed, Placing, PlanLimits, Spec, StaticPlan
from bb_edge.backends.quiet import hush, unhush
from bb_edge.backends.stored_plan import MemoryPlanError, StoredEntry, StoredPlan
from bb_edge.roles.errors import BackendRunError
from bb_edge.roles.programs import BackendProgram
from bb_kernels import KernelError, Prepared, TensorSpec

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["MAX_DYNAMIC", "MAX_PLANS", "NumPyProgram"]

PlanFor = Callable[[Sequence["Array"]], "StaticPlan | _SplitPlan"]

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
    """

    def __init__(
        self,
        graph: FlatGraph,
        resident: Mapping[int, Array] | None = None,
        limits: PlanLimits | None = None,
        depth: int = 0,
        arena: Arena | None = None,
        stored: StoredPlan | None = None,
    ) -> None:
        self.graph = fold_constants(graph)
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
        self._specs: tuple[Spec, ...] | None = None
        self._plan: StaticPlan | _SplitPlan | None = None
        single = len(self.graph.nodes) == len(self.graph.outputs) == 1 and not self.resident
        if single and len(self.input_names) in (1, 2):
            self.call = (_call_of_one if len(self.input_names) == 1 else _call_of_two)(self.plan_for)
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

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        plan = self.plan_for(inputs)
        specs = plan.output_specs
        if specs is None:  # known only once it has run
            super().run_into(inputs, outputs)
            return
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
        plan.run_into(inputs, outputs)

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
            while len(self._plans) >= MAX_PLANS:
                self._plans.popitem(last=False)
            plan = self._plans[key] = self._make(key)
            self.plans_made += 1
        else:
            self._plans.move_to_end(key)
        self._specs, self._plan = key, plan
        return plan

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
        return _SplitPlan(self, fitted)

    def _fit(self, key: tuple[Spec, ...]) -> Fitted:
        return fit(self.graph, [TensorSpec(dtype, shape) for shape, dtype in key], self.resident)

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
        self.arena.reserve(placed.total)
        return placed


# `call` of a program of one operator is the kernel itself, on arrays like those of the last plan that has a
# call. That saves 2 µs of looking the plan up, and of setting and clearing its arguments. A ufunc is called
# for any shapes of its dtypes, because asking an array for its shape makes a tuple each time; of scalars it
# makes numbers, which are no arrays. These are closures, which find their variables faster than methods.


def _call_of_one(plan_for: PlanFor) -> Callable[..., Array]:
    kernel: Callable[..., Any] | None = None
    any_shape = twice = False
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None

    def call(_ctx: object, a: Array) -> Array:
        nonlocal kernel, any_shape, twice, shape, dtype
        if kernel is not None and a.dtype is dtype and (any_shape or a.shape == shape):
            try:
                result = kernel(a, a) if twice else kernel(a)
            except (KernelError, ValueError):
                pass  # the plan says what is wrong, and where
            else:
                if type(result) is ndarray:
                    return result
        plan = plan_for((a,))
        if plan.call is not None:
            kernel, any_shape, twice = plan.call, plan.fits_any_shape, plan.takes_twice
            shape, dtype = a.shape, a.dtype
        return plan.run((a,))[0]

    return call


def _call_of_two(plan_for: PlanFor) -> Callable[..., Array]:
    kernel: Callable[..., Any] | None = None
    any_shape = False
    shape_a: tuple[int, ...] = ()
    shape_b: tuple[int, ...] = ()
    dtype_a: np.dtype[Any] | None = None
    dtype_b: np.dtype[Any] | None = None

    def call(_ctx: object, a: Array, b: Array) -> Array:
        nonlocal kernel, any_shape, shape_a, shape_b, dtype_a, dtype_b
        if (
            kernel is not None
            and a.dtype is dtype_a
            and b.dtype is dtype_b
            and (any_shape or (a.shape == shape_a and b.shape == shape_b))
        ):
            try:
                result = kernel(a, b)
            except (KernelError, ValueError):
                pass  # as above
            else:
                if type(result) is ndarray:
                    return result
        plan = plan_for((a, b))
        if plan.call is not None:
            kernel, any_shape = plan.call, plan.fits_any_shape
            shape_a, shape_b, dtype_a, dtype_b = a.shape, b.shape, a.dtype, b.dtype
        return plan.run((a, b))[0]

    return call


class _SplitPlan:
    """The plan up to a data-dependent node, the node, and the program of the rest."""

    output_specs = None
    call = None
    fits_any_shape = takes_twice = False

    def __init__(self, program: NumPyProgram, fitted: Fitted) -> None:
        graph, stop = program.graph, fitted.stop
        self.limits = program.limits
        self.arena = program.arena
        self.depth = program.depth
        self.node: FlatNode = graph.nodes[stop]
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
        self.first = (
            StaticPlan(fitted, self.computed, program.limits, program.arena) if self.computed else None
        )
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

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        values: dict[int, Array] = {**self.constants, **self.resident}
        values.update((value, inputs[source]) for value, source in self.handed)
        if self.first is not None:
            values.update(zip(self.computed, self.first.run(inputs), strict=True))
        arguments = [None if v == OMITTED else values[v] for v in self.node.inputs]
        for value, array in zip(self.node.outputs, self._run_node(arguments), strict=False):
            if value != OMITTED:
                values[value] = array
        return self.tail.run([values[v] for v in self.tail_inputs])

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise NotImplementedError(
            "the program copies the results of `run`: their shapes are not known before"
        )

    def _run_node(self, inputs: Sequence[Array | None]) -> Sequence[Array]:
        if self.prepared is None:
            return run_control(self.node, inputs, self._body)
        token = hush()
        try:
            results: Sequence[Array] = self.prepared.run(*inputs)  # type: ignore[assignment]
        except KernelError as error:
            raise failed(error, self.node.where) from error
        finally:
            unhush(token)
        return results

    def _body(self, body: Body) -> BackendProgram:
        if not isinstance(body.program, NumPyProgram):
            body.program = NumPyProgram(body.graph, None, self.limits, self.depth + 1, self.arena)
        return body.program
