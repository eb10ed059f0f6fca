"""Order and search: TopK, NonZero, Compress, Unique, running sums and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, allow, kernel
from .shape import axis_attr
from .shapes import axis_of
from .spec import FLOAT, I32, I64, NUMERIC, U32, U64, Array, Dtype, Prepared, TensorSpec, Ufunc

_SUMMED: frozenset[Dtype] = FLOAT | {I32, I64, U32, U64}


def _top_k(call: Call, k: int, largest: bool) -> Prepared:
    """Return a TopK for a known k; of equal values the lower index comes first."""
    spec = call.spec(0)
    axis = axis_attr(call, -1)
    if not 0 <= k <= spec.shape[axis]:
        raise KernelShapeError(f"TopK: k={k} is outside of 0..{spec.shape[axis]}, the length of axis {axis}")
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
    """TopK (opsets 7 to 9) finds the k largest elements along an axis, in descending order.

    X[a…,d,b…] → values[a…,k,b…], indices[a…,k,b…]? (int64); floats. A k out of [0, d] raises
    KernelShapeError. Run allocates a sorted copy of X's indices.
    """
    return _top_k(call, call.int_attr("k"), True)


def _one_value(call: Call, index: int) -> int:
    """Return the only value of a constant input; KernelShapeError where it holds another number."""
    values = call.int_list(index)
    if values is None or len(values) != 1:
        raise KernelShapeError(f"{call.op_type}: input {index} must hold a single value, got {values}")
    return values[0]


@kernel("TopK", "T I", since=10, until=10, dtypes=FLOAT, attrs="axis", needs=(1,), max_outputs=2)
def _top_k_10(call: Call) -> Prepared:
    """TopK (opset 10) finds the k largest elements along an axis, in descending order.

    X[a…,d,b…], k[1] → values[a…,k,b…], indices[a…,k,b…]? (int64); floats. A k out of [0, d] raises
    KernelShapeError. Run allocates a sorted copy of X's indices.
    """
    return _top_k(call, _one_value(call, 1), True)


@kernel("TopK", "T I", since=11, dtypes=NUMERIC, attrs="axis largest sorted", needs=(1,), max_outputs=2)
def _top_k_11(call: Call) -> Prepared:
    """TopK (opset 11+) finds the k largest or smallest elements along an axis, sorted.

    X[a…,d,b…], k[1] → values[a…,k,b…], indices[a…,k,b…]? (int64); numbers. A k out of [0, d] raises
    KernelShapeError. Run allocates a sorted copy of X's indices.
    """
    return _top_k(call, _one_value(call, 1), call.int_attr("largest", 1) != 0)


@kernel("NonZero", "T", since=9)
def _non_zero(call: Call) -> Prepared:
    """NonZero (opset 9+) lists the indices of the elements that are not zero, in row-major order.

    X[…] → Y[rank,count], int64; any type. The count depends on the data: run allocates its result.
    """
    rank = len(call.spec(0).shape)

    def run(x: Array, *, most: int = 0) -> tuple[Array]:
        # NumPy's own list of places, and the copy that is the result.
        allow("NonZero", 2 * 8 * max(1, rank) * int(np.count_nonzero(x)) if most else 0, most)
        places = np.nonzero(x) if rank else (np.zeros(int(bool(x)), np.int64),)
        return (np.array(places, np.int64).reshape(rank, -1),)

    return Prepared((), run, dynamic=True)


@kernel("Compress", "T B", since=9, attrs="axis")
def _compress(call: Call) -> Prepared:
    """Compress (opset 9+) keeps the slices (or the elements of the flat input) whose condition holds.

    X[…], condition[c] (bool) → Y[…]; any type. A condition that is longer than the axis raises
    KernelShapeError. The count depends on the data: run allocates its result.
    """
    spec, condition = call.spec(0), call.spec(1)
    axis = axis_attr(call) if "axis" in call.attrs else None
    room = spec.size if axis is None else spec.shape[axis]
    if len(condition.shape) != 1 or condition.shape[0] > room:
        raise KernelShapeError(
            f"Compress: condition {condition.shape} must be a vector of at most {room} elements"
        )
    slice_bytes = spec.dtype.itemsize * (1 if axis is None or not room else spec.size // room)

    def run(x: Array, keep: Array, *, most: int = 0) -> tuple[Array]:
        # The flat input may be a copy.
        allow("Compress", int(np.count_nonzero(keep)) * slice_bytes + spec.nbytes * (axis is None), most)
        return (np.compress(keep, x, axis),)

    return Prepared((), run, dynamic=True)


@kernel("Unique", "T", since=11, attrs="axis sorted", max_outputs=4)
def _unique(call: Call) -> Prepared:
    """Unique (opset 11+) lists the distinct elements or slices, sorted or in the order in which they appear.

    X[…] → values, first indices?, inverse?, counts? (int64); any type. The count depends on the data: run
    allocates its results and some arrays like X.
    """
    spec = call.spec(0)
    axis = axis_attr(call) if "axis" in call.attrs else None
    in_order = call.int_attr("sorted", 1) != 0

    def run(x: Array, *, most: int = 0) -> tuple[Array, ...]:
        # Sorting takes three arrays like X, and six lists of places at most.
        allow("Unique", 3 * spec.nbytes + 6 * 8 * (spec.size if axis is None else spec.shape[axis]), most)
        data = x.reshape(-1) if axis is None else x
        values, first, inverse, counts = np.unique(data, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = np.argsort(first, kind="stable")
            rank = np.argsort(order, kind="stable")
            values = np.take(values, order, 0 if axis is None else axis)
            first, counts, inverse = first[order], counts[order], rank[inverse]
        indices = (a.astype(np.int64) for a in (first, inverse, counts))
        return (values.astype(spec.dtype), *indices)[: call.n_outputs]

    return Prepared((), run, dynamic=True)


def _running(call: Call, ufunc: Ufunc, neutral: int) -> Prepared:
    """Return a running fold; ``exclusive`` leaves the element itself out, ``reverse`` starts at the end."""
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
    """CumSum (opset 11+) adds up the elements along an axis.

    X[…], axis[] → Y like X; floats (float16 via float32), int32, int64, uint32, uint64. Run allocates
    nothing.
    """
    return _running(call, np.add, 0)


@kernel("CumProd", "T I", since=26, dtypes=_SUMMED, half=True, attrs="exclusive reverse", needs=(1,))
def _cum_prod(call: Call) -> Prepared:
    """CumProd (opset 26+) multiplies the elements along an axis.

    X[…], axis[] → Y like X; floats (float16 via float32), int32, int64, uint32, uint64. Run allocates
    nothing.
    """
    return _running(call, np.multiply, 1)
