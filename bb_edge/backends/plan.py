"""Second half of planning: a fitted graph → a flat list of `(run, args)` over views into one arena.

1. **Place**: results that the caller gets are written by their last kernel straight into the caller's
   arrays; the others lie in the arena by their lifetimes, in the memory of an input that dies where the
   kernel allows it. The offsets are worked out here, or are those of the artifact's own plan
   (`stored_plan.py`).
2. **Bind**: arguments become arrays. Steps over the arena alone are bound once and for all; steps that read
   the caller's inputs or write its outputs have those arguments set at each run, and cleared after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.backends.arena import Arena
from bb_edge.backends.fitting import STAGE_BYTES, Alias, Fitted, Value, copy_of, copy_run, wants_binding
from bb_edge.backends.plan_memory import Layout, Lifetime, live_bytes, plan_memory
from bb_edge.backends.quiet import hush, unhush
from bb_edge.roles.errors import BackendMemoryError, BackendRunError
from bb_kernels import KernelError, Prepared, TensorSpec

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Placed", "Placing", "PlanLimits", "StaticPlan"]


class PlanLimits:
    """Ceilings of one plan. `arena_bytes`: bytes of the arena, 0 = no limit."""

    __slots__ = ("arena_bytes",)

    def __init__(self, arena_bytes: int = 0) -> None:
        self.arena_bytes = arena_bytes


class Placed:
    """Where everything lies: offset per buffer (roots only), and the results that must be copied out."""

    __slots__ = ("copies", "lower_bound", "offsets", "total")

    def __init__(self, offsets: Sequence[int], total: int, lower_bound: int, copies: Sequence[int]) -> None:
        self.offsets = offsets
        self.total = total
        self.lower_bound = lower_bound
        self.copies = copies


class Placing:
    """Decides which results are written directly and which buffers share memory; `lives` need a layout.

    A fitted graph is placed once: its buffers are changed.
    """

    def __init__(self, fitted: Fitted, outputs: Sequence[int]) -> None:
        self.fitted = fitted
        self.outputs = outputs
        self.copies = self._place_results()
        self._reuse_inputs()
        buffers = fitted.buffers
        self._roots = [i for i, b in enumerate(buffers) if b.external < 0 and b.root < 0]
        self.lives = [
            Lifetime(buffers[i].spec.nbytes, buffers[i].first, buffers[i].last) for i in self._roots
        ]

    def placed(self, layout: Layout | None = None) -> Placed:
        """With a layout of `lives`, which is made here where none is given."""
        if layout is None:
            layout = plan_memory(self.lives)
        offsets = [-1] * len(self.fitted.buffers)
        for i, offset in zip(self._roots, layout.offsets, strict=True):
            offsets[i] = offset
        return Placed(offsets, layout.total, live_bytes(self.lives), self.copies)

    def _place_results(self) -> list[int]:
        buffers, end = self.fitted.buffers, len(self.fitted.steps)
        bound = self._bound_buffers()
        copies = []
        for position, number in enumerate(self.outputs):
            value = self.fitted.values[number]
            if value.buffer < 0:  # an input or a constant handed through
                copies.append(position)
                continue
            buffer = buffers[value.buffer]
            staged = value.buffer in bound and buffer.spec.nbytes <= STAGE_BYTES
            if buffer.external >= 0 or staged or not _whole(value, buffer.spec.nbytes):
                copies.append(position)
                buffer.last = end
            else:
                buffer.external = position
        return copies

    def _bound_buffers(self) -> set[int]:
        """Buffers that a kernel wants to be bound to."""
        found: set[int] = set()
        for step in self.fitted.steps:
            if wants_binding(step.prepared):
                found.update(b for b in step.outputs if b is not None)
                found.update(v.buffer for v in step.inputs if v is not None and v.buffer >= 0)
        return found

    def _reuse_inputs(self) -> None:
        """Lets a result take over the memory of an input that dies at that step."""
        buffers = self.fitted.buffers
        for now, step in enumerate(self.fitted.steps):
            if not step.prepared.inplace or step.outputs[0] is None:
                continue
            result = buffers[step.outputs[0]]
            if result.external >= 0:
                continue
            roots = [self._root(v.buffer) if v is not None and v.buffer >= 0 else -1 for v in step.inputs]
            for position in step.prepared.inplace:
                value, root = step.inputs[position], roots[position]
                if value is None or root < 0 or roots.count(root) > 1:
                    continue
                memory = buffers[root]
                if memory.external >= 0 or memory.last != now or memory.spec.nbytes != result.spec.nbytes:
                    continue
                if _whole(value, memory.spec.nbytes):
                    result.root = root
                    memory.last = max(memory.last, result.last)
                    break

    def _root(self, buffer: int) -> int:
        while self.fitted.buffers[buffer].root >= 0:
            buffer = self.fitted.buffers[buffer].root
        return buffer


def _whole(value: Value, nbytes: int) -> bool:
    """Whether a view covers all of its buffer in order."""
    return value.probe is not None and value.probe.flags.c_contiguous and value.spec.nbytes == nbytes


class _Binding:
    """Turns values and buffers into arrays, and steps into `(run, args)`.

    An argument is an array, or the index of a caller's array: inputs, then outputs, then those derived of
    them.
    """

    def __init__(self, fitted: Fitted, placed: Placed, outputs: Sequence[int], arena: Arena) -> None:
        self.fitted = fitted
        self.placed = placed
        self.shapes = [fitted.values[number].spec.shape for number in outputs]
        self.arena = arena.take(placed.total)
        self.steps: list[tuple[Callable[..., object], Sequence[object]]] = []
        self.patches: list[tuple[list[object], int, int]] = []
        self.derived: list[tuple[int, tuple[Alias, ...]]] = []
        self._index: dict[tuple[int, tuple[Alias, ...]], int] = {}
        self._arrays: dict[tuple[int, TensorSpec], Array] = {}
        self._reshapes: dict[int, Alias] = {}
        for step in fitted.steps:
            arguments = [None if v is None else self._argument(v) for v in step.inputs]
            arguments += [None if b is None else self._target(b, ()) for b in step.outputs]
            arguments += [self._memory(b) for b in step.scratch]
            self._add(step.prepared, arguments)
        for position in placed.copies:
            value = fitted.values[outputs[position]]
            self._add(copy_of(value.spec), [self._argument(value), fitted.n_inputs + position])

    def _add(self, prepared: Prepared, arguments: Sequence[Array | int | None]) -> None:
        run = prepared.run
        if run is copy_run:  # without a Python frame
            run, arguments = np.copyto, arguments[::-1]
        arrays = [None if isinstance(a, int) else a for a in arguments]
        patches = [(position, a) for position, a in enumerate(arguments) if isinstance(a, int)]
        if patches:
            args: list[object] = list(arrays)
            self.patches.extend((args, position, index) for position, index in patches)
            self.steps.append((run, args))
        elif prepared.binder is not None:
            self.steps.append((prepared.bind(*arrays), ()))
        else:
            self.steps.append((run, tuple(arrays)))

    def _argument(self, value: Value) -> Array | int:
        if value.array is not None:
            return value.array
        if value.source >= 0:
            return self._of_caller(value.source, value.views)
        return self._target(value.buffer, value.views)

    def _target(self, number: int, views: tuple[Alias, ...]) -> Array | int:
        """A buffer, through views: in the arena, or the caller's output in its kernel's shape."""
        buffer = self.fitted.buffers[number]
        if buffer.external < 0:
            array = self._memory(number)
            for view in views:
                array = view(array)
            return array
        shape = buffer.spec.shape
        if self.shapes[buffer.external] != shape:
            if number not in self._reshapes:
                self._reshapes[number] = lambda output: output.reshape(shape)
            views = (self._reshapes[number], *views)
        return self._of_caller(self.fitted.n_inputs + buffer.external, views)

    def _of_caller(self, source: int, views: tuple[Alias, ...]) -> int:
        if not views:
            return source
        key = (source, views)
        if key not in self._index:
            self._index[key] = self.fitted.n_inputs + len(self.shapes) + len(self.derived)
            self.derived.append(key)
        return self._index[key]

    def _memory(self, number: int) -> Array:
        """A buffer's array; equal memory is the same object, so that a ufunc need not look for overlaps."""
        spec, root = self.fitted.buffers[number].spec, number
        while self.fitted.buffers[root].root >= 0:
            root = self.fitted.buffers[root].root
        offset = self.placed.offsets[root]
        key = (offset, spec)
        if key not in self._arrays:
            raw = self.arena[offset : offset + spec.nbytes]
            self._arrays[key] = raw.view(spec.dtype).reshape(spec.shape)
        return self._arrays[key]


def _only_step(bound: _Binding) -> tuple[Callable[..., object], tuple[int, ...]] | None:
    if len(bound.steps) != 1 or bound.derived:
        return None
    kernel, arguments = bound.steps[0]
    placed = {position: index for _, position, index in bound.patches}
    if sorted(placed) != list(range(len(arguments))):
        return None
    return kernel, tuple(placed[position] for position in range(len(arguments)))


class StaticPlan:
    """A plan ready to run for the results `outputs` (value numbers). Its arena serves one run at a time.

    `arena_bytes` is what it takes of the arena, `live_bytes` the lower bound for it. `placed` where the graph
    was placed before. BackendMemoryError above the limit.
    """

    __slots__ = (
        "_derived",
        "_lock",
        "_patches",
        "_steps",
        "arena_bytes",
        "live_bytes",
        "n_steps",
        "only_step",
        "output_specs",
    )

    def __init__(
        self,
        fitted: Fitted,
        outputs: Sequence[int],
        limits: PlanLimits,
        arena: Arena | None = None,
        placed: Placed | None = None,
    ) -> None:
        if placed is None:
            placed = Placing(fitted, outputs).placed()
        if limits.arena_bytes and placed.total > limits.arena_bytes:
            raise BackendMemoryError(placed.total, limits.arena_bytes, f"graph {fitted.graph.name!r}")
        arena = arena or Arena()
        bound = _Binding(fitted, placed, outputs, arena)
        self._lock = arena.lock if placed.total else None
        self.arena_bytes = placed.total
        self.live_bytes = placed.lower_bound
        self.n_steps = len(bound.steps)
        self._steps = bound.steps
        self._patches = bound.patches
        self._derived = bound.derived
        self.only_step = _only_step(bound)
        """(kernel, indexes of the caller's arrays), where that is all that the plan does."""
        specs = [fitted.values[number].spec for number in outputs]
        self.output_specs = tuple((spec.shape, spec.dtype) for spec in specs)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Fresh arrays."""
        empty = np.empty
        outputs = tuple([empty(shape, dtype) for shape, dtype in self.output_specs])
        self.run_into(inputs, outputs)
        return outputs

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Into arrays of exactly `output_specs`, C-contiguous, that share no memory with the inputs."""
        if self._lock is None:
            self._run([*inputs, *outputs])
            return
        with self._lock:
            self._run([*inputs, *outputs])

    def _run(self, caller: list[Array]) -> None:
        for source, views in self._derived:
            array = caller[source]
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)  # the plan was made for contiguous inputs' views
            for view in views:
                array = view(array)
            caller.append(array)
        patches = self._patches
        for args, position, index in patches:
            args[position] = caller[index]
        token = hush()
        try:
            for run, arguments in self._steps:
                run(*arguments)
        except KernelError as error:
            raise BackendRunError(str(error)) from error
        finally:
            unhush(token)
            for args, position, _ in patches:
                args[position] = None  # the caller's memory is the caller's
