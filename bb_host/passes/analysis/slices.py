"""Holds what a Slice yields, as far as its bounds are constants, against what its reader takes."""

from __future__ import annotations

from bb_host.errors import named
from bb_host.ir.program import Op
from bb_host.ir.text.printer import print_type
from bb_host.passes.analysis.type_terms import Dim, Terms, conflict


def check_slice(op: Op, terms: Terms) -> None:
    """TypeConstraintFailed where a Slice can never have the size that its result is known to have.

    Of the data nothing else need be known: `x[:, 0:3]` is never four wide.
    """
    result = terms.get(op.outputs[0])
    if result is None or result.shape is None:
        return
    starts, ends, axes, steps = (_constant(op, place, terms) for place in range(1, 5))
    if starts is None or ends is None or axes is None or steps is None:
        return
    axes = axes or list(range(len(starts)))
    steps = steps or [1] * len(starts)
    data = terms.get(op.inputs[0])
    sizes = None if data is None else data.shape
    rank = len(result.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=False):
        if not -rank <= axis < rank:
            continue
        wanted, size = result.shape[axis], None if sizes is None or len(sizes) != rank else sizes[axis]
        most = _most(start, end, step, size)
        exact = isinstance(size, int)
        if isinstance(wanted, int) and most is not None and (wanted > most or (exact and wanted < most)):
            reader = next((o for o in terms.function.ops if op.outputs[0] in o.inputs), None)
            taken = "is" if reader is None else f"is read by {named(reader)} as"
            raise conflict(
                op,
                f"it yields {most} elements of axis {axis % rank}{'' if exact else ' at most'},"
                f" and its result {taken} {print_type(result)}",
                "slice as many elements as the op that reads them takes",
            )


def _constant(op: Op, place: int, terms: Terms) -> list[int] | None:
    """The numbers of an input, none where it is left out; None where the device alone knows them."""
    name = op.inputs[place] if place < len(op.inputs) else ""
    if not name:
        return []
    value = terms.constants.get(name)
    return None if value is None else [int(number) for number in value.ravel()]


def _most(start: int, end: int, step: int, size: Dim) -> int | None:
    """The most elements between two bounds of an axis; None where only its size says it."""
    if step == 0:
        return None
    if isinstance(size, int):
        return len(range(*slice(start, end, step).indices(size)))
    if step < 0 or (start >= 0 > end):
        return None
    if start < 0 <= end:
        return -(-min(-start, end) // step)
    return -(-max(0, end - start) // step)
