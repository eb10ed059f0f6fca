"""Shape arithmetic shared by the kernels: axes, broadcasting, in-place candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import KernelShapeError
from .registry import Call, allow
from .spec import Bound, Prepared, Run, TensorSpec

#: Elements of one table (indices, weights, masks, sequences) that a kernel makes for itself when preparing.
#: Sizes come from nodes that anybody may have written; real ones stay far below. At 8 bytes each it is 32 MB.
MAX_TABLE = 1 << 22


def bounded(call: Call, elements: int, what: str, each: int = 16) -> int:
    """Return ``elements`` if a kernel may make a table of so many, before it makes it.

    ``each`` is how many bytes an element takes while the table is made. Raises KernelShapeError beyond
    MAX_TABLE, and KernelMemoryError where the caller allows fewer bytes.
    """
    if elements > MAX_TABLE:
        raise KernelShapeError(
            f"{call.op_type}: {elements} {what} are more than the limit of {MAX_TABLE}, which is fixed:"
            " ask for fewer, or compute the result in parts"
        )
    allow(call.op_type, elements * each, call.most)
    return elements


def axis_of(call: Call, axis: int, rank: int) -> int:
    """Return a possibly negative axis as 0 ≤ axis < rank; KernelShapeError where it is out of range."""
    if not -rank <= axis < rank:
        raise KernelShapeError(f"{call.op_type}: axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0


def axes_of(call: Call, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return several axes, normalised, in their order; KernelShapeError where one repeats."""
    normalised = tuple(axis_of(call, a, rank) for a in axes)
    if len(set(normalised)) != len(normalised):
        raise KernelShapeError(f"{call.op_type}: axes {list(axes)} repeat an axis")
    return normalised


def broadcast(call: Call, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to by NumPy's rule; KernelShapeError where they do not fit."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if dim != 1 and out[i] not in (1, dim):
                raise KernelShapeError(
                    f"{call.op_type}: shapes {', '.join(map(str, shapes))} do not broadcast"
                )
            if dim != 1:
                out[i] = dim
    return tuple(out)


def require_broadcast_to(call: Call, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raise KernelShapeError unless ``shape`` broadcasts to ``target`` without stretching it."""
    if broadcast(call, shape, target) != target:
        raise KernelShapeError(f"{call.op_type}: shape {shape} does not broadcast to {target}")


def same_as(call: Call, out: TensorSpec, upto: int | None = None) -> tuple[int, ...]:
    """Return the inputs (of the first ``upto``) that output 0 may overwrite: same type and shape."""
    return tuple(i for i, s in enumerate(call.inputs[:upto]) if s == out)


def elementwise(
    call: Call, run: Run, scratch: tuple[TensorSpec, ...] = (), binder: Callable[..., Bound] | None = None
) -> Prepared:
    """Return a kernel whose output 0 has the spec of input 0 and may overwrite it."""
    return Prepared((call.spec(0),), run, scratch, inplace=(0,), binder=binder)
