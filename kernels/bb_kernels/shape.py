"""Operators that change the shape and not the order of the elements, and those that tell the shape."""

from __future__ import annotations

from math import prod

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import axes_of, axis_of, broadcast
from .spec import I64, Array, Prepared, TensorSpec


def reshaped(call: Call, shape: tuple[int, ...]) -> Prepared:
    """The input's elements in the same order under another shape: a view where strides allow, else a copy."""
    spec = call.spec(0)
    if prod(shape) != spec.size:
        raise KernelShapeError(
            f"{call.op_type}: {spec.shape} has {spec.size} elements, {shape} has {prod(shape)}"
        )
    n = len(call.inputs)

    def run(x: Array, *rest: Array) -> None:
        np.copyto(rest[n - 1].reshape(x.shape), x)

    def alias(x: Array) -> Array:
        view = x.reshape(shape)
        if view.size and not np.may_share_memory(view, x):
            raise KernelShapeError(
                f"{call.op_type}: strides {x.strides} of shape {x.shape} have no view as {shape}"
            )
        return view

    return Prepared((TensorSpec(spec.dtype, shape),), run, alias=alias)


@kernel("Reshape", "T I", needs=(1,), attrs="allowzero@14")
def _reshape(call: Call) -> Prepared:
    """-1: whatever is left; 0: the input's dimension at that place (or, with allowzero, really 0)."""
    spec = call.spec(0)
    target = call.int_list(1) or []
    allow_zero = call.int_attr("allowzero", 0) != 0
    shape: list[int] = []
    for i, dim in enumerate(target):
        if dim == 0 and not allow_zero:
            if i >= len(spec.shape):
                raise KernelShapeError(
                    f"Reshape: 0 at place {i} of {target}, but the input has shape {spec.shape}"
                )
            dim = spec.shape[i]
        shape.append(dim)
    if shape.count(-1) > 1 or any(d < -1 for d in shape):
        raise KernelShapeError(f"Reshape: bad target shape {target}")
    if -1 in shape:
        rest = prod(d for d in shape if d != -1)
        if rest == 0 or spec.size % rest:
            raise KernelShapeError(f"Reshape: {spec.shape} does not fit target shape {target}")
        shape[shape.index(-1)] = spec.size // rest
    return reshaped(call, tuple(shape))


@kernel("Flatten", "T", attrs="axis")
def _flatten(call: Call) -> Prepared:
    shape = call.spec(0).shape
    axis = call.int_attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise KernelShapeError(f"Flatten: axis {axis} is out of range for rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return reshaped(call, (prod(shape[:axis]), prod(shape[axis:])))


def _squeezed(call: Call, axes: list[int] | None) -> Prepared:
    shape = call.spec(0).shape
    chosen = (
        tuple(i for i, d in enumerate(shape) if d == 1) if axes is None else axes_of(call, axes, len(shape))
    )
    for axis in chosen:
        if shape[axis] != 1:
            raise KernelShapeError(f"Squeeze: axis {axis} of {shape} is not 1")
    return reshaped(call, tuple(d for i, d in enumerate(shape) if i not in chosen))


def _unsqueezed(call: Call, axes: list[int]) -> Prepared:
    shape = call.spec(0).shape
    rank = len(shape) + len(axes)
    chosen = axes_of(call, axes, rank)
    source = iter(shape)
    return reshaped(call, tuple(1 if i in chosen else next(source) for i in range(rank)))


@kernel("Squeeze", "T", until=12, attrs="axes")
def _squeeze_attr(call: Call) -> Prepared:
    return _squeezed(call, call.ints_attr("axes"))


@kernel("Squeeze", "T I?", since=13, needs=(1,))
def _squeeze(call: Call) -> Prepared:
    return _squeezed(call, call.int_list(1))


@kernel("Unsqueeze", "T", until=12, attrs="axes")
def _unsqueeze_attr(call: Call) -> Prepared:
    axes = call.ints_attr("axes")
    if axes is None:
        raise KernelAttributeError("Unsqueeze: attribute axes is required")
    return _unsqueezed(call, axes)


@kernel("Unsqueeze", "T I", since=13, needs=(1,))
def _unsqueeze(call: Call) -> Prepared:
    return _unsqueezed(call, call.int_list(1) or [])


def known(call: Call, value: Array) -> Prepared:
    """A result that follows from shapes and attributes alone."""
    value = np.ascontiguousarray(value).reshape(value.shape)
    value.setflags(write=False)
    n = len(call.inputs)
    return Prepared(
        (TensorSpec(value.dtype, value.shape),), lambda *arrays: np.copyto(arrays[n], value), values=(value,)
    )


@kernel("Shape", "T", attrs="start@15 end@15")
def _shape(call: Call) -> Prepared:
    shape = call.spec(0).shape
    end = call.int_attr("end", len(shape))
    return known(call, np.array(shape[call.int_attr("start", 0) : end], I64))


@kernel("Size", "T")
def _size(call: Call) -> Prepared:
    return known(call, np.array(call.spec(0).size, I64))


@kernel("Expand", "T I", since=8, needs=(1,))
def _expand(call: Call) -> Prepared:
    """Broadcast to a shape; both sides may stretch (multidirectional)."""
    spec = call.spec(0)
    shape = broadcast(call, spec.shape, tuple(call.int_list(1) or []))
    return Prepared((TensorSpec(spec.dtype, shape),), lambda x, _shape, out: np.copyto(out, x))


@kernel("Transpose", "T", attrs="perm")
def _transpose(call: Call) -> Prepared:
    spec = call.spec(0)
    rank = len(spec.shape)
    perm = call.ints_attr("perm")
    order = tuple(reversed(range(rank))) if perm is None else axes_of(call, perm, rank)
    if len(order) != rank:
        raise KernelShapeError(f"Transpose: perm {perm} does not name every axis of shape {spec.shape}")
    out = TensorSpec(spec.dtype, tuple(spec.shape[i] for i in order))
    return Prepared(
        (out,), lambda x, result: np.copyto(result, x.transpose(order)), alias=lambda x: x.transpose(order)
    )


def axis_attr(call: Call, default: int | None = None) -> int:
    """The ``axis`` attribute against the rank of input 0."""
    return axis_of(call, call.int_attr("axis", default), len(call.spec(0).shape))
