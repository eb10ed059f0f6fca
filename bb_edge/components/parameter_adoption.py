"""Which named parameters of another program's model fit this one: those of the same name, shape and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.components.state import StateReader
from bb_edge.roles.adoption import Adoption

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["adopt_parameters"]


_KEPT = {
    "velocity": "momentum",
    "mean": "Adam's mean of gradients",
    "square": "Adam's mean of their squares",
}
"""What optimizers keep of each parameter: the field of a state, and what it is called."""


def adopt_parameters(
    read: StateReader, own: Mapping[str, Array], own_kept: Mapping[str, Mapping[str, Array]]
) -> Adoption:
    """Writes into the views `own` what fits of `params` and `tensors` of a state.

    `own_kept` are the views of what this program's optimizer keeps, by the field of a state; what fits of
    those fields is written there. ComponentStateError, writing nothing, where the state is damaged.
    """
    flat = read.array("params")
    kept = {field: read.optional_array(field) for field in _KEPT}
    shapes = _shapes(read)
    size = sum(_size(shape) for shape in shapes.values())
    if any(vector is not None and vector.shape != (size,) for vector in (flat, *kept.values())):
        raise read.error(f"its tensors have {size} numbers, its vectors others")
    old = _split(flat, shapes)
    fitting = [n for n, a in old.items() if n in own and (own[n].shape, own[n].dtype) == (a.shape, a.dtype)]
    taken, left = [], [_why(name, array, own) for name, array in old.items() if name not in fitting]
    for name in fitting:
        np.copyto(own[name], old[name])
    if fitting:
        taken.append(_amount(fitting, own))
    left += [
        f"tensor {name}: it is new, and begins as the artifact has it" for name in own if name not in old
    ]
    for field, vector in kept.items():
        if vector is None:
            continue
        if field not in own_kept:
            left.append(f"{_KEPT[field]}: this program has none")
        elif fitting:
            views = _split(vector, shapes)
            for name in fitting:
                np.copyto(own_kept[field][name], views[name])
            taken.append(f"{_KEPT[field]} of {_amount(fitting, own)}")
    if read.optional_array("gradient") is not None:
        left.append("a gradient that no step has applied: it belongs to an execution of the old program")
    return Adoption(tuple(taken), tuple(left))


def _shapes(read: StateReader) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for item in read.items("tensors"):
        row: Any = item
        try:
            name, shape = row
            shapes[str(name)] = tuple(map(int, shape))
        except (TypeError, ValueError) as error:
            raise read.error("its list of tensors is damaged") from error
    return shapes


def _split(flat: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    arrays, offset = {}, 0
    for name, shape in shapes.items():
        size = _size(shape)
        arrays[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return arrays


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _amount(names: list[str], own: Mapping[str, Array]) -> str:
    count = sum(own[name].size for name in names)
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''} with {count:,} numbers"


def _why(name: str, array: Array, own: Mapping[str, Array]) -> str:
    if name not in own:
        return f"tensor {name}: the model has none of that name"
    here = own[name]
    if here.dtype != array.dtype:
        return f"tensor {name}: it was {array.dtype}, here it is {here.dtype}"
    return f"tensor {name}: it was {_form(array)}, here it is {_form(here)}"


def _form(array: Array) -> str:
    return "x".join(map(str, array.shape)) or "a scalar"
