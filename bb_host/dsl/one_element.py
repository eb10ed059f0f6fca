"""Conditions and counts are tensors of one element: what is known to have another number is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys
from bb_edge.ir.opsets import onnx as onnx_catalog
from bb_edge.ir.types import ValueType
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.kernel_fit import fit
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.shapes import Shape, has_several
from bb_host.errors import ValueTypeError


def refuse_several(
    graph: Recorder, what: str, shape: Shape, value: str, hint: str, line: tuple[str, int] | None = None
) -> None:
    """ValueTypeError where what has that shape has, as far as it is known, not one element."""
    if has_several(shape):
        raise graph.error(ValueTypeError, f"{what} is one number, not {value}", hint, line)


def in_first_iteration(drafts: Sequence[Draft], begins: Mapping[int, ValueType]) -> Mapping[int, ValueType]:
    """The types of values of a loop's body where those that it carries are what they begin as, by `id`.

    While a body is recorded, the shape of what it carries is open: each iteration may give another one.
    """
    known = dict(begins)
    for draft in drafts:
        if draft.domain != keys.ONNX_DOMAIN or any(
            isinstance(a, SubgraphDraft) for a in draft.attrs.values()
        ):
            continue
        kinds = [None if value is None else known.get(id(value), value.type) for value in draft.inputs]
        constants = [None if value is None else value._array for value in draft.inputs]
        try:
            found = fit(
                draft.op_type, onnx_catalog.VERSION, draft.attrs, kinds, constants, len(draft.outputs)
            )
        except ValueError:  # what does not fit is told by the compiler, at the op that it is
            continue
        known.update((id(value), type_) for value, type_ in zip(draft.outputs, found or (), strict=False))
    return known
