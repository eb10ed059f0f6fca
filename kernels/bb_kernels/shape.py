"""Operators that change the shape and not the order of the elements, and those that tell the shape."""

from __future__ import annotations

from math import prod

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import axes_of, axis_of, broadcast
from .spec import I64, Array, Prepared, TensorSpec


def reshaped(call: Call, shape: tuple[int, ...]) -> Prepared:
    """Return a kernel that gives the input's elements another shape: a view where strides allow, else a copy.

    X[…] → Y of ``shape``. Different numbers of elements raise KernelShapeError. Run allocates nothing.
    """
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
    """Reshape (opset 7+) gives the elements the shape that its second input names.

    X[…], shape[r] → Y of that shape; any type. -1 stands for what is left, 0 for X's own dimension (with
    ``allowzero`` for 0 itself). A shape of another size raises KernelShapeError. Run allocates nothing.
    """
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
    """Flatten (opset 7+) joins the axes before ``axis`` and those from it on.

    X[a…,b…] → Y[A,B] with the products of a and b; any type. Run allocates nothing.
    """
    shape = call.spec(0).shape
    axis = call.int_attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise KernelShapeError(f"Flatten: axis {axis} is out of range for rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return reshaped(call, (prod(shape[:axis]), prod(shape[axis:])))


def _squeezed(call: Call, axes: list[int] | None) -> Prepared:
    """Return a kernel without the given axes, which must be 1; without all axes of length 1 for None."""
    shape = call.spec(0).shape
    chosen = (
        tuple(i for i, d in enumerate(shape) if d == 1) if axes is None else axes_of(call, axes, len(shape))
    )
    for axis in chosen:
        if shape[axis] != 1:
            raise KernelShapeError(f"Squeeze: axis {axis} of {shape} is not 1")
    return reshaped(call, tuple(d for i, d in enumerate(shape) if i not in chosen))


def _unsqueezed(call: Call, axes: list[int]) -> Prepared:
    """Return a kernel with axes of length 1 inserted at the given places of the result."""
    shape = call.spec(0).shape
    rank = len(shape) + len(axes)
    chosen = axes_of(call, axes, rank)
    source = iter(shape)
    return reshaped(call, tuple(1 if i in chosen else next(source) for i in range(rank)))


@kernel("Squeeze", "T", until=12, attrs="axes")
def _squeeze_attr(call: Call) -> Prepared:
    """Squeeze (opsets 7 to 12) drops axes of length 1 that an attribute names, by default all of them.

    X[…] → Y[…]; any type. Another length raises KernelShapeError. Run allocates nothing.
    """
    return _squeezed(call, call.ints_attr("axes"))


@kernel("Squeeze", "T I?", since=13, needs=(1,))
def _squeeze(call: Call) -> Prepared:
    """Squeeze (opset 13+) drops axes of length 1 that an input names, by default all of them.

    X[…], axes? → Y[…]; any type. Another length raises KernelShapeError. Run allocates nothing.
    """
    return _squeezed(call, call.int_list(1))


@kernel("Unsqueeze", "T", until=12, attrs="axes")
def _unsqueeze_attr(call: Call) -> Prepared:
    """Unsqueeze (opsets 7 to 12) inserts axes of length 1 where its attribute says.

    X[…] → Y[…]; any type. Missing ``axes`` raise KernelAttributeError. Run allocates nothing.
    """
    axes = call.ints_attr("axes")
    if axes is None:
        raise KernelAttributeError("Unsqueeze: attribute axes is required")
    return _unsqueezed(call, axes)


@kernel("Unsqueeze", "T I", since=13, needs=(1,))
def _unsqueeze(call: Call) -> Prepared:
    """Unsqueeze (opset 13+) inserts axes of length 1 where its second input says.

    X[…], axes → Y[…]; any type. Run allocates nothing.
    """
    return _unsqueezed(call, call.int_list(1) or [])


def known(call: Call, value: Array) -> Prepared:
    """Return a kernel whose value follows from shapes and attributes; its run copies that value."""
    value = np.ascontiguousarray(value).reshape(value.shape)
    value.setflags(write=False)
    n = len(call.inputs)
    return Prepared(
        (TensorSpec(value.dtype, value.shape),), lambda *arrays: np.copyto(arrays[n], value), values=(value,)
    )


@kernel("Shape", "T", attrs="start@15 end@15")
def _shape(call: Call) -> Prepared:
    """Shape (opset 7+) gives the dimensions of its input, or those from ``start`` to ``end``.

    X[…] → shape[r], int64; any type. Run allocates nothing: the value is known when preparing.
    """
    shape = call.spec(0).shape
    end = call.int_attr("end", len(shape))
    return known(call, np.array(shape[call.int_attr("start", 0) : end], I64))


@kernel("Size", "T")
def _size(call: Call) -> Prepared:
    """Size (opset 7+) gives the number of elements of its input.

    X[…] → size[], int64; any type. Run allocates nothing: the value is known when preparing.
    """
    return known(call, np.array(call.spec(0).size, I64))


@kernel("Expand", "T I", since=8, needs=(1,))
def _expand(call: Call) -> Prepared:
    """Expand (opset 8+) broadcasts its input against a shape; both sides may stretch.

    X[…], shape[r] → Y[…]; any type. Shapes that do not broadcast raise KernelShapeError. Run allocates
    nothing.
    """
    spec = call.spec(0)
    shape = broadcast(call, spec.shape, tuple(call.int_list(1) or []))
    return Prepared((TensorSpec(spec.dtype, shape),), lambda x, _shape, out: np.copyto(out, x))


@kernel("Transpose", "T", attrs="perm")
def _transpose(call: Call) -> Prepared:
    """Transpose (opset 7+) permutes the axes, by default reverses them.

    X[…] → Y[…]; any type. KernelShapeError if ``perm`` is not a permutation. Run allocates nothing; a
    plan may use a view instead.
    """
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
    """Return the ``axis`` attribute normalised against the rank of input 0; KernelShapeError out of range."""
    return axis_of(call, call.int_attr("axis", default), len(call.spec(0).shape))
