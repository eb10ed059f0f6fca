"""Order and search: TopK, NonZero, Compress, Unique, running sums and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, kernel
from .shape import axis_attr
from .shapes import axis_of
from .spec import FLOAT, I32, I64, NUMERIC, U32, U64, Array, Dtype, Prepared, TensorSpec, Ufunc

_SUMMED: frozenset[Dtype] = FLOAT | {I32, I64, U32, U64}


def _top_k(call: Call, k: int, largest: bool) -> Prepared:
    """Values and int64 indices along an axis, sorted; of equal values the lower index comes first."""
    spec = call.spec(0)
    axis = axis_attr(call, -1)
    if not 0 <= k <= spec.shape[axis]:
        raise KernelShapeError(f"TopK: k={k} of an axis with {spec.shape[axis]} elements")
    shape = (*spec.shape[:axis], k, *spec.shape[axis + 1 :])
    first = (slice(None),) * axis + (slice(0, k),)
    turned = (slice(None),) * axis + (slice(None, None, -1),)
    last = spec.shape[axis] - 1
    n = len(call.inputs)

    def run(x: Array, *rest: Any) -> None:
        values, places = rest[n - 1], rest[n] if call.n_outputs > 1 else None
        if largest:
            # A stable ascending sort of the turned axis, read backwards: descending, lower index first.
            order = (last - np.argsort(x[turned], axis, kind="stable"))[turned][first]
        else:
            order = np.argsort(x, axis, kind="stable")[first]
        if values is not None:
            values[...] = np.take_along_axis(x, order, axis)
        if places is not None:
            places[...] = order

    return Prepared((TensorSpec(spec.dtype, shape), TensorSpec(I64, shape))[: call.n_outputs], run)


@kernel("TopK", "T", until=9, dtypes=FLOAT, attrs="axis k", max_outputs=2)
def _top_k_attr(call: Call) -> Prepared:
    return _top_k(call, call.int_attr("k"), True)


def _one_value(call: Call, index: int) -> int:
    values = call.int_list(index)
    if values is None or len(values) != 1:
        raise KernelShapeError(f"{call.op_type}: input {index} must hold one value, got {values}")
    return values[0]


@kernel("TopK", "T I", since=10, until=10, dtypes=FLOAT, attrs="axis", needs=(1,), max_outputs=2)
def _top_k_10(call: Call) -> Prepared:
    return _top_k(call, _one_value(call, 1), True)


@kernel("TopK", "T I", since=11, dtypes=NUMERIC, attrs="axis largest sorted", needs=(1,), max_outputs=2)
def _top_k_11(call: Call) -> Prepared:
    return _top_k(call, _one_value(call, 1), call.int_attr("largest", 1) != 0)


@kernel("NonZero", "T", since=9)
def _non_zero(call: Call) -> Prepared:
    """Indices of the elements that are not zero, as columns [rank, count], in row-major order."""
    rank = len(call.spec(0).shape)

    def run(x: Array) -> tuple[Array]:
        found = np.nonzero(x) if rank else (np.zeros(int(bool(x)), np.int64),)
        return (np.array(found, np.int64).reshape(max(1, rank) if rank else 0, -1),)

    return Prepared((), run, dynamic=True)


@kernel("Compress", "T B", since=9, attrs="axis")
def _compress(call: Call) -> Prepared:
    """The slices along an axis (or the elements of the flattened input) whose condition holds."""
    spec, condition = call.spec(0), call.spec(1)
    axis = axis_attr(call) if "axis" in call.attrs else None
    room = spec.size if axis is None else spec.shape[axis]
    if len(condition.shape) != 1 or condition.shape[0] > room:
        raise KernelShapeError(f"Compress: condition {condition.shape} for {room} places")
    return Prepared((), lambda x, keep: (np.compress(keep, x, axis),), dynamic=True)


@kernel("Unique", "T", since=11, attrs="axis sorted", max_outputs=4)
def _unique(call: Call) -> Prepared:
    """Unique elements (or slices), first indices, inverse, counts; sorted or in order of appearance."""
    spec = call.spec(0)
    axis = axis_attr(call) if "axis" in call.attrs else None
    in_order = call.int_attr("sorted", 1) != 0

    def run(x: Array) -> tuple[Array, ...]:
        data = x.reshape(-1) if axis is None else x
        values, first, inverse, counts = np.unique(data, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = np.argsort(first, kind="stable")
            rank = np.argsort(order, kind="stable")
            values = np.take(values, order, 0 if axis is None else axis)
            first, counts, inverse = first[order], counts[order], rank[inverse]
        found: tuple[Array, ...] = (values.astype(spec.dtype), first, inverse, counts)
        return tuple(a if i == 0 else a.astype(np.int64) for i, a in enumerate(found))[: call.n_outputs]

    return Prepared((), run, dynamic=True)


def _running(call: Call, ufunc: Ufunc, neutral: int) -> Prepared:
    """Running fold along an axis; exclusive leaves out the element itself, reverse starts at the end."""
    spec = call.spec(0)
    axis = axis_of(call, _one_value(call, 1), len(spec.shape))
    exclusive, reverse = call.int_attr("exclusive", 0) != 0, call.int_attr("reverse", 0) != 0
    lead = (slice(None),) * axis
    turned = (*lead, slice(None, None, -1))
    head, tail, body = (*lead, slice(0, 1)), (*lead, slice(1, None)), (*lead, slice(None, -1))

    def run(x: Array, _axis: Array, out: Array) -> None:
        source, target = (x[turned], out[turned]) if reverse else (x, out)
        if not exclusive:
            ufunc.accumulate(source, axis, spec.dtype, target)
            return
        target[head] = neutral
        if spec.shape[axis] > 1:
            ufunc.accumulate(source[body], axis, spec.dtype, target[tail])

    return Prepared((spec,), run)


@kernel("CumSum", "T I", since=11, dtypes=_SUMMED, half=True, attrs="exclusive reverse", needs=(1,))
def _cum_sum(call: Call) -> Prepared:
    return _running(call, np.add, 0)


@kernel("CumProd", "T I", since=26, dtypes=_SUMMED, half=True, attrs="exclusive reverse", needs=(1,))
def _cum_prod(call: Call) -> Prepared:
    return _running(call, np.multiply, 1)
