"""The short way for graphs of one kernel call on repeated shapes: bare operators in a partition's main.

The planned way costs some 2 µs a run: looking the plan up, setting the arguments, clearing them. Where the
plan of the last run was one kernel call on the caller's arrays alone, the next run on the same shapes and
dtypes calls the kernel directly. A ufunc that finds its result's shape and dtype by itself also allocates it,
which is cheaper than `np.empty` and `out`; it is then called for any shapes of these dtypes: asking an
array for its shape makes a tuple every time. Scalars go the planned way: NumPy would give a number, no array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.backends.plan import StaticPlan
from bb_edge.backends.quiet import hush, unhush
from bb_kernels import KernelError

if TYPE_CHECKING:
    from bb_edge.backends.program import NumPyProgram

__all__ = ["direct_call", "short_run"]

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Sequence[Array]], tuple[Array, ...]]
Act = Callable[..., Array]


def short_run(program: NumPyProgram) -> Run | None:
    """A `run` for the program that goes the short way where it can; None where it never could."""
    call = direct_call(program)
    if call is None:
        return None
    count = len(program.input_names)

    def run(inputs: Sequence[Array]) -> tuple[Array, ...]:
        if len(inputs) != count:
            return program.plan_for(inputs).run(inputs)  # refuses them, and says how many it has
        token = hush()
        try:
            return (call(None, *inputs),)
        finally:
            unhush(token)

    return run


def direct_call(program: NumPyProgram) -> Callable[..., Array] | None:
    """`call(ctx, *arrays) -> array` for engines: the short way without a tuple around the result.

    To be called between `hush` and `unhush`, which a poll does once for all of its ops. None where the
    program has no short way.
    """
    if len(program.graph.nodes) != 1 or program.resident or len(program.graph.outputs) != 1:
        return None
    if len(program.input_names) == 1:
        return _direct_one(program)
    return _direct_two(program) if len(program.input_names) == 2 else None


def _direct_one(program: NumPyProgram) -> Callable[..., Array]:
    act: Act | None = None
    ufunc: Act | None = None
    refused: object = None  # the last plan without a short way, so that it is not asked again at each run
    ndarray = np.ndarray
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def call(_ctx: object, a: Array) -> Array:
        nonlocal act, ufunc, refused, shape, dtype
        result: Array
        if ufunc is not None and a.dtype is dtype:
            result = ufunc(a)
            if type(result) is ndarray:
                return result
        elif act is not None and a.dtype is dtype and a.shape == shape:
            try:
                return act(a)
            except KernelError:
                pass  # the planned way gives the error its place
        plan = program.plan_for((a,))
        result = plan.run((a,))[0]
        if plan is not refused:
            if (short := _act(plan, (a,))) is None:
                refused = plan
            else:
                act, shape, dtype = short, a.shape, a.dtype
                ufunc = act if isinstance(act, np.ufunc) else None
        return result

    return call


def _direct_two(program: NumPyProgram) -> Callable[..., Array]:
    act: Act | None = None
    ufunc: Act | None = None
    refused: object = None  # the last plan without a short way, so that it is not asked again at each run
    ndarray = np.ndarray
    shape_a: tuple[int, ...] = ()
    shape_b: tuple[int, ...] = ()
    dtype_a: Any = None
    dtype_b: Any = None

    def call(_ctx: object, a: Array, b: Array) -> Array:
        nonlocal act, ufunc, refused, shape_a, shape_b, dtype_a, dtype_b
        result: Array
        if ufunc is not None and a.dtype is dtype_a and b.dtype is dtype_a:
            try:
                result = ufunc(a, b)
            except ValueError:
                pass  # shapes that do not fit: the planned way says so
            else:
                if type(result) is ndarray:
                    return result
        elif (
            act is not None
            and a.dtype is dtype_a
            and b.dtype is dtype_b
            and a.shape == shape_a
            and b.shape == shape_b
        ):
            try:
                return act(a, b)
            except KernelError:
                pass  # the planned way gives the error its place
        plan = program.plan_for((a, b))
        result = plan.run((a, b))[0]
        if plan is not refused:
            if (short := _act(plan, (a, b))) is None:
                refused = plan
            else:
                act, shape_a, dtype_a, shape_b, dtype_b = short, a.shape, a.dtype, b.shape, b.dtype
                # Of different dtypes, NumPy 1 looks at values where one is a scalar.
                same = isinstance(act, np.ufunc) and a.dtype is b.dtype
                ufunc = act if same else None
        return result

    return call


def _act(plan: object, inputs: Sequence[Array]) -> Act | None:
    """The plan's one kernel call as a function of the caller's arrays that makes the result."""
    if not isinstance(plan, StaticPlan) or (step := plan.only_step) is None:
        return None
    kernel, arguments = step
    ((shape, dtype),) = plan.output_specs
    if arguments != tuple(range(len(inputs) + 1)):
        return None  # constants among the arguments, an input twice, or another order
    if isinstance(kernel, np.ufunc) and shape and _allocates(kernel, inputs, dtype):
        return kernel
    empty = np.empty
    if len(inputs) == 1:

        def with_one(a: Array) -> Array:
            out = empty(shape, dtype)
            kernel(a, out)
            return out

        return with_one

    def with_two(a: Array, b: Array) -> Array:
        out = empty(shape, dtype)
        kernel(a, b, out)
        return out

    return with_two


def _allocates(kernel: np.ufunc, inputs: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Whether the ufunc, left alone, makes a result of the planned dtype (its shape is NumPy's anyway)."""
    if kernel.nin != len(inputs) or kernel.nout != 1 or kernel.signature is not None:
        return False
    token = hush()
    try:
        return bool(kernel(*(np.ones((), array.dtype) for array in inputs)).dtype == dtype)
    finally:
        unhush(token)
