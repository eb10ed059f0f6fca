"""Reading elements by index: Gather and its kin. Indices out of range are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, kernel
from .shape import axis_attr
from .spec import Array, Prepared, TensorSpec
from .ufuncs import max_reduce, min_reduce


def check_indices(op_type: str, indices: Array, dim: int) -> None:
    """KernelShapeError unless every index is in [-dim, dim)."""
    if indices.size:
        low, high = min_reduce(indices, None), max_reduce(indices, None)
        if low < -dim or high >= dim:
            raise KernelShapeError(
                f"{op_type}: indices {low}..{high} are out of range for a dimension of {dim}"
            )


@kernel("Gather", "T I", attrs="axis")
def _gather(call: Call) -> Prepared:
    data, indices = call.spec(0), call.spec(1)
    axis = axis_attr(call, 0)
    dim = data.shape[axis]
    out = TensorSpec(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
    known = call.constant(1)
    if known is not None:
        check_indices("Gather", known, dim)
        fixed: Any = np.ascontiguousarray(np.where(known < 0, known + dim, known).astype(np.intp)).reshape(
            known.shape
        )
        if not out.size:
            return Prepared((out,), lambda x, _i, result: None)
        return Prepared((out,), lambda x, _i, result: np.take(x, fixed, axis, result, "clip"))

    def run(x: Array, index: Array, result: Array) -> None:
        check_indices("Gather", index, dim)
        if result.size:
            # Checked above; "wrap" turns negative indices and, unlike "raise", needs no buffer.
            np.take(x, index, axis, result, "wrap")

    return Prepared((out,), run)
