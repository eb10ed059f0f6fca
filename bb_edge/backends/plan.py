"""The second half of planning: turns a fitted graph into a list of `(run, args)` over views of one arena.

1. **Place**: the last kernel of a result of the graph writes straight into the caller's array. All other
   buffers lie in the arena, by their lifetimes; a result reuses the memory of an input that is no longer
   needed, if its kernel allows that. The offsets are computed here or come from the artifact's plan
   (`stored_plan.py`).
2. **Bind**: arguments become arrays. Steps that only use the arena are bound once. Steps that read the
   caller's inputs or write its outputs get these arguments at each run, and lose them after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.backends.arena import Arena
from bb_edge.backends.fitting import (
    STAGE_BYTES,
    Alias,
    Fitted,
    Value,
    copy_of,
    copy_run,
    unallocatable,
    wants_binding,
)
from bb_edge.backends.plan_memory import Layout, Lifetime, live_bytes, plan_memory
from bb_edge.ir.quiet import hush, unhush
from bb_edge.roles.errors import BackendMemoryError, BackendRunError
from bb_edge.roles.programs import Spec
from bb_kernels import KernelError, Prepared, TensorSpec

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["Placed", "Placing", "PlanLimits", "StaticPlan", "bytes_of"]

Call = Callable[..., "Array"]
"""A function of the caller's one or two input arrays."""


class PlanLimits:
    """The limits of one plan, 0 for no limit.

    `arena_bytes` bounds the arena of every plan, `tensor_bytes` what plans allocate together, in one run, for
    shapes that are not known when a program is compiled.
    """

    __slots__ = ("arena_bytes", "tensor_bytes")

    def __init__(self, arena_bytes: int = 0, tensor_bytes: int = 0) -> None:
        self.arena_bytes = arena_bytes
        self.tensor_bytes = tensor_bytes


class Placed:
    """The offset of each buffer that has memory of its own, and the results that must be copied out."""

    __slots__ = ("copies", "lower_bound", "offsets", "total")

    def __init__(self, offsets: Sequence[int], total: int, lower_bound: int, copies: Sequence[int]) -> None:
        self.offsets = offsets
        self.total = total
        self.lower_bound = lower_bound
        self.copies = copies


class Placing:
    """Decides which results are written directly and which buffers share memory.

    `lives` are the lifetimes of the buffers that need a layout. A fitted graph can be placed only once,
    because its buffers are changed.
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
        """Places the buffers by a layout of `lives`; without one it is computed."""
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
            if value.buffer < 0:  # the result is an input or a constant
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
        """Buffers of kernels that run faster when bound to fixed arrays."""
        buffers: set[int] = set()
        for step in self.fitted.steps:
            if wants_binding(step.prepared):
                buffers.update(b for b in step.outputs if b is not None)
                buffers.update(v.buffer for v in step.inputs if v is not None and v.buffer >= 0)
        return buffers

    def _reuse_inputs(self) -> None:
        """Lets results reuse the memory of inputs whose last use is the same step."""
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
    """Whether a view covers its whole buffer, in order."""
    return value.probe is not None and value.probe.flags.c_contiguous and value.spec.nbytes == nbytes


class _Binding:
    """Turns values and buffers into arrays, and steps into `(run, args)`.

    An argument is an array, or the index of an array of the caller: inputs, then outputs, then views of
    these.
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
        if run is copy_run:  # calling it directly saves a Python frame
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
        """A buffer as an argument: a view of the arena, or the caller's output in the kernel's shape."""
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
        """The array of a buffer; the same memory is the same object, which spares ufuncs a check."""
        spec, root = self.fitted.buffers[number].spec, number
        while self.fitted.buffers[root].root >= 0:
            root = self.fitted.buffers[root].root
        offset = self.placed.offsets[root]
        key = (offset, spec)
        if key not in self._arrays:
            raw = self.arena[offset : offset + spec.nbytes]
            self._arrays[key] = raw.view(spec.dtype).reshape(spec.shape)
        return self._arrays[key]


def _call_of(
    bound: _Binding, dtypes: Sequence[np.dtype[Any]], outputs: Sequence[Spec]
) -> tuple[Call | None, bool, bool]:
    """What `call`, `fits_any_shape` and `takes_twice` of a plan are, for inputs of these dtypes."""
    if len(bound.steps) != 1 or bound.derived or len(outputs) != 1 or len(dtypes) not in (1, 2):
        return None, False, False
    kernel, arguments = bound.steps[0]
    of_caller = [(position, index) for _, position, index in bound.patches]
    ((shape, dtype),) = outputs
    if len(dtypes) == 1 and of_caller == [(0, 0), (1, 0), (2, 1)] and len(arguments) == 3:
        if isinstance(kernel, np.ufunc) and shape and _allocates(kernel, [*dtypes, *dtypes], dtype):
            return kernel, True, True
        return None, False, False
    if of_caller != [(n, n) for n in range(len(arguments))] or len(arguments) != len(dtypes) + 1:
        return None, False, False  # constants or scratch among the arguments, or another order
    if isinstance(kernel, np.ufunc) and shape and _allocates(kernel, dtypes, dtype):
        # Of different dtypes, NumPy 1 looks at values if one array is a scalar.
        return kernel, len(set(dtypes)) == 1, False
    empty = np.empty

    def with_one(a: Array) -> Array:
        out = empty(shape, dtype)
        kernel(a, out)
        return out

    def with_two(a: Array, b: Array) -> Array:
        out = empty(shape, dtype)
        kernel(a, b, out)
        return out

    return with_one if len(dtypes) == 1 else with_two, False, False


def _allocates(kernel: np.ufunc, inputs: Sequence[np.dtype[Any]], result: np.dtype[Any]) -> bool:
    """Whether the ufunc makes an array of the planned dtype by itself, which is faster than `np.empty`."""
    if kernel.nin != len(inputs) or kernel.nout != 1 or kernel.signature is not None:
        return False
    token = hush()
    try:
        return bool(kernel(*(np.ones((), dtype) for dtype in inputs)).dtype == result)
    finally:
        unhush(token)


def bytes_of(fitted: Fitted, placed: Placed, outputs: Sequence[int]) -> int:
    """What a plan allocates: its arena, its results, the constants that were computed for its shapes, and
    what a kernel takes for itself while it runs.
    """
    working = max((step.prepared.working for step in fitted.steps), default=0)
    results = sum(fitted.values[number].spec.nbytes for number in outputs)
    return placed.total + results + fitted.folded + working


class StaticPlan:
    """A plan that is ready to run, for the results `outputs` (value numbers), one run at a time.

    `arena_bytes` is its use of the arena, `live_bytes` the lower bound of that, `held` are the bytes of the
    constants that it keeps. `placed` is given if the
    graph was placed before. Raises BackendMemoryError above the limit.

    `call(*inputs)` makes the only result with the only kernel, between `hush` and `unhush`; it is None if the
    plan does anything else. It takes arrays of the planned dtypes, and of the planned shapes unless
    `fits_any_shape`; for scalars it may then give a number instead of an array. Where it `takes_twice`, it
    is called as `call(a, a)` on the only input.
    """

    __slots__ = (
        "_derived",
        "_lock",
        "_patches",
        "_steps",
        "arena_bytes",
        "call",
        "fits_any_shape",
        "held",
        "live_bytes",
        "n_steps",
        "nbytes",
        "output_specs",
        "takes_twice",
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
        self.nbytes = bytes_of(fitted, placed, outputs)
        self.held = fitted.folded
        self._steps = bound.steps
        self._patches = bound.patches
        self._derived = bound.derived
        specs = [fitted.values[number].spec for number in outputs]
        self.output_specs = tuple((spec.shape, spec.dtype) for spec in specs)
        inputs = [value for number in fitted.graph.inputs if (value := fitted.values[number]).source >= 0]
        dtypes = [value.spec.dtype for value in inputs]
        self.call, self.fits_any_shape, self.takes_twice = _call_of(bound, dtypes, self.output_specs)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Runs the plan and returns fresh arrays."""
        empty = np.empty
        try:
            outputs = tuple([empty(shape, dtype) for shape, dtype in self.output_specs])
        except (MemoryError, ValueError) as error:
            raise unallocatable(self.nbytes, "", error) from error
        self.run_into(inputs, outputs)
        return outputs

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Runs the plan into arrays of exactly `output_specs`.

        They must be C-contiguous and share no memory with the inputs.
        """
        if self._lock is None:
            self._run([*inputs, *outputs])
            return
        with self._lock:
            self._run([*inputs, *outputs])

    def _run(self, caller: list[Array]) -> None:
        for source, views in self._derived:
            array = caller[source]
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)  # the views were planned for contiguous inputs
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
                args[position] = None  # so that the caller's memory can be freed
