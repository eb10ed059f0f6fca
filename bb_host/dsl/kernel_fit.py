"""What the device's kernels say about an ONNX op whose element types and shapes are known.

A kernel is fitted here as the device will fit it, so an op that no device could run is refused where it is
written, and the shapes of its results are the kernel's own. A program has many ops and few kinds of them: who
asks (one recording, one run of the type solver) remembers the answers by what they depend on, `question`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_host.ir.program import Array
from bb_kernels import (
    KernelAttributeError,
    KernelError,
    TensorSpec,
    UnsupportedDtypeError,
    prepare,
    supported,
)

_MOST_CONSTANT = 1024
"""Elements: a larger constant is data, whose values decide no shape."""

MOST_REMEMBERED = 8192
"""Answers that are kept: a program has fewer kinds of ops."""

_BATCHED = frozenset(
    (
        *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"),
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN", "DepthToSpace"),
        "SpaceToDepth",
    )
)
"""Operators to which the first dimension of their first input is only a count."""


class Misfit(ValueError):
    """An op that its kernel refuses.

    `universal`: ONNX allows it on no backend, as sizes that do not go together. Otherwise another backend may
    take it: an element type, or an attribute's value (`attribute`).
    """

    def __init__(self, what: str, universal: bool, attribute: bool) -> None:
        super().__init__(what)
        self.universal = universal
        self.attribute = attribute


def fit(
    op_type: str,
    version: int,
    attrs: Mapping[str, object],
    inputs: Sequence[ValueType | None],
    known: Sequence[Array | None],
    n_outputs: int,
) -> tuple[ValueType, ...] | None:
    """The types of an op's results, None where its inputs do not say them. Raises Misfit.

    `inputs` has None for an input that is left out, `known` the values of inputs that are constants. A size
    that is not known counts as 1, and what does not fit then is refused only where sizes play no part.
    """
    for value in inputs:
        if value is not None and (value.shape is None or value.node.elem_type is None):
            return None
    constants = [None if a is None or a.size > _MOST_CONSTANT else a for a in known]
    found = _fit(op_type, version, attrs, inputs, constants, n_outputs)
    if isinstance(found, Misfit):
        raise found
    return found


def question(
    op_type: str,
    attrs: Mapping[str, object],
    inputs: Sequence[ValueType | None],
    known: Sequence[Array | None],
    n_outputs: int,
) -> tuple[object, ...] | None:
    """All that the shapes of an op's results depend on, as a key; None for attributes that no key holds.

    A large constant of fractions is data and plays no part; one of whole numbers may hold indices.
    """
    key: list[object] = [op_type, n_outputs]
    for value in inputs:
        key.append(None if value is None else (value.node.elem_type, value.shape))
    for number, array in enumerate(known):
        if array is None:
            continue
        if array.size <= _MOST_CONSTANT:
            key += (number, array.tobytes())
        elif array.dtype.kind != "f":
            key += (number, hashlib.blake2b(array.tobytes()).digest())
    for name, attr in attrs.items():
        if isinstance(attr, (int, float, bytes)):
            key += (name, type(attr), attr)
        elif isinstance(attr, list):
            key += (name, tuple(attr))
        elif isinstance(attr, np.ndarray) and attr.size <= _MOST_CONSTANT:
            key += (name, attr.dtype.str, attr.shape, attr.tobytes())
        else:
            return None
    return tuple(key)


def _fit(
    op_type: str,
    version: int,
    attrs: Mapping[str, object],
    inputs: Sequence[ValueType | None],
    constants: Sequence[Array | None],
    n_outputs: int,
) -> tuple[ValueType, ...] | Misfit | None:
    if not supported(op_type, version):
        return None
    exact = True
    specs: list[TensorSpec | None] = []
    for number, value in enumerate(inputs):
        if value is None:
            specs.append(None)
            continue
        if value.node is types.TENSOR_BF16:
            return None
        dtype = types.dtype_of_elem(value.node.elem_type or 0)
        if dtype is None or value.shape is None:
            return None
        unknown = [i for i, dim in enumerate(value.shape) if not isinstance(dim, int)]
        exact &= not unknown or (unknown == [0] and number == 0 and op_type in _BATCHED)
        specs.append(
            TensorSpec(np.dtype(dtype), tuple([d if isinstance(d, int) else 1 for d in value.shape]))
        )
    try:
        prepared = prepare(op_type, version, attrs, specs, constants, n_outputs)
    except KernelError as error:
        attribute = isinstance(error, KernelAttributeError)
        local = attribute or isinstance(error, UnsupportedDtypeError)
        return (
            Misfit(str(error).removeprefix(f"{op_type}: "), not local, attribute) if exact or local else None
        )
    if not exact or prepared.dynamic or len(prepared.outputs) != n_outputs:
        return None
    if any(not isinstance(d, int) for v in inputs if v is not None for d in v.shape or ()):
        return None
    return tuple(ValueType(types.tensor_type(s.dtype), tuple(map(int, s.shape))) for s in prepared.outputs)
