"""The kernel itself as the `call` of a program of one operator.

It is called on arrays like those of the last plan that has a call. That saves 2 µs of looking the plan up,
and of setting and clearing its arguments. A ufunc is called for any shapes of its dtypes, because asking an
array for its shape makes a tuple each time; of scalars it makes numbers, which are not arrays. These are
closures, which find their variables faster than methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from bb_kernels import KernelError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["call_of_one", "call_of_two"]

PlanFor = Callable[[Sequence["Array"]], Any]
"""Gives the plan for input arrays."""


def call_of_one(plan_for: PlanFor) -> Callable[..., Array]:
    """Returns `call` for a program of one operator on one array; `plan_for` gives the plan for its inputs."""
    kernel: Callable[..., Any] | None = None
    any_shape = twice = False
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None

    def call(_ctx: object, a: Array) -> Array:
        nonlocal kernel, any_shape, twice, shape, dtype
        if kernel is not None and a.dtype is dtype and (any_shape or a.shape == shape):
            try:
                result = kernel(a, a) if twice else kernel(a)
            except (KernelError, ValueError, MemoryError):
                pass  # the plan says what is wrong, and where
            else:
                if type(result) is ndarray:
                    return result
        plan = plan_for((a,))
        if plan.call is not None:
            kernel, any_shape, twice = plan.call, plan.fits_any_shape, plan.takes_twice
            shape, dtype = a.shape, a.dtype
        fresh: Array = plan.run((a,))[0]
        return fresh

    return call


def call_of_two(plan_for: PlanFor, may_differ: bool) -> Callable[..., Array]:
    """Returns `call` for two arrays; `may_differ` says whether a ufunc may be called for any shapes."""
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
            except (KernelError, ValueError, MemoryError):
                pass  # as above
            else:
                if type(result) is ndarray:
                    return result
        plan = plan_for((a, b))
        if plan.call is not None:
            kernel, any_shape = plan.call, plan.fits_any_shape and may_differ
            shape_a, shape_b, dtype_a, dtype_b = a.shape, b.shape, a.dtype, b.dtype
        fresh: Array = plan.run((a, b))[0]
        return fresh

    return call
