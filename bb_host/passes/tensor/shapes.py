"""Fixes the shapes of a model's inputs.

1. Each named input gets the given dims; a dim that the model fixes must agree. 2. A symbolic dim that is
fixed by one input is fixed in all. 3. All other types are inferred anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from bb_edge.ir.types import ValueType
from bb_host.errors import ShapeArgumentError
from bb_host.ir.program import Function
from bb_host.onnx_io.model import infer_types


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`["x=1,3,224,224"]` as a mapping; `x=` is rank 0.

    ShapeArgumentError for anything else, and for one name twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims.strip() else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(dim < 1 for dim in shape):
            what = f"{text!r} is not a shape; dimensions are whole numbers of 1 and more"
            raise ShapeArgumentError(what, "--shape", "write it as NAME=1,3,224,224")
        if name in found:
            raise ShapeArgumentError(f"{name!r} is given twice", "--shape", "give one of them")
        found[name] = shape
    return found


def fix_shapes(function: Function, shapes: Mapping[str, Sequence[int]]) -> Function:
    """The function with these input shapes. ShapeArgumentError where they do not fit."""
    symbols: dict[str, int] = {}
    fixed: dict[str, ValueType] = {}
    for name, dims in shapes.items():
        where = f"model {function.name!r}, input {name!r}"
        if name not in function.inputs:
            raise ShapeArgumentError("no such input", where, f"inputs: {', '.join(function.inputs)}")
        declared = function.types[name]
        if declared.shape is not None and len(declared.shape) != len(dims):
            raise ShapeArgumentError(f"shape {list(dims)}, the model says rank {len(declared.shape)}", where)
        for given, said in zip(dims, declared.shape or (), strict=False):
            if isinstance(said, int) and said != given:
                raise ShapeArgumentError(
                    f"shape {list(dims)}, the model says {list(declared.shape or ())}", where
                )
            if isinstance(said, str) and symbols.setdefault(said, given) != given:
                raise ShapeArgumentError(
                    f"dimension {said!r} is {given} here and {symbols[said]} elsewhere", where
                )
        fixed[name] = ValueType(declared.node, tuple(dims))
    types = {}
    for name in function.inputs:
        if name in fixed:
            types[name] = fixed[name]
        elif name in function.types:
            types[name] = _substituted(function.types[name], symbols)
    for (
        name
    ) in function.outputs:  # their ranks and element types stay; dims that are not fixed are found anew
        if name in function.types:
            types.setdefault(name, _substituted(function.types[name], symbols))
    return infer_types(dataclasses.replace(function, types=types))


def _substituted(value: ValueType, symbols: Mapping[str, int]) -> ValueType:
    if value.shape is None or not any(isinstance(d, str) and d in symbols for d in value.shape):
        return value
    return ValueType(value.node, tuple(symbols.get(d, d) if isinstance(d, str) else d for d in value.shape))
