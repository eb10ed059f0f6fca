"""What rewriting asks of a function of ONNX ops: who makes a value, who reads it, what is constant."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx, uses
from bb_host.ir.rename import fresh_name, rename_reads


def constant(name: str, value: Array) -> Op:
    """A `Constant` op. The array is taken over: nobody writes to it any more."""
    return Op("Constant", "", (), (name,), {"value": value})


def constant_array(op: Op) -> Array | None:
    """The array of a `Constant`, whichever attribute holds it; None for texts and foreign tensors."""
    if not is_onnx(op, "Constant"):
        return None
    for key, value in op.attrs.items():
        if key == "value" and isinstance(value, np.ndarray):
            return value
        if key in ("value_int", "value_ints") and isinstance(value, (int, list)):
            return np.asarray(value, np.int64)
        if key in ("value_float", "value_floats") and isinstance(value, (int, float, list)):
            return np.asarray(value, np.float32)
    return None


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Every use of the old names reads the new ones instead; who makes them is not touched."""
    final: dict[str, str] = {}
    for old in names:
        new = names[old]
        while new in names:  # a → b → c
            new = names[new]
        final[old] = new
    if not final:
        return function
    return dataclasses.replace(function, ops=tuple(rename_reads(op, final) for op in function.ops))


class Values:
    """An index of one function, as it was when the index was made."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.maker: dict[str, Op] = {v: op for op in function.ops for v in op.outputs if v}
        self.uses: Counter[str] = Counter(name for op in function.ops for name in uses(op))
        self.uses.update(function.outputs)
        self.constants: dict[str, Array] = {}
        for op in function.ops:
            value = constant_array(op)
            if value is not None:
                self.constants[op.outputs[0]] = value
        self.names = {*function.inputs, *self.maker}

    def only_reader(self, name: str) -> bool:
        """Whether one op reads it, once, and nothing else does."""
        return self.uses[name] == 1 and name not in self.function.outputs

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape where all dims are known."""
        if name in self.constants:
            return tuple(self.constants[name].shape)
        value = self.function.types.get(name)
        if value is None or value.shape is None:
            return None
        dims = tuple(d for d in value.shape if isinstance(d, int))
        return dims if len(dims) == len(value.shape) else None

    def rank(self, name: str) -> int | None:
        if name in self.constants:
            return self.constants[name].ndim
        value = self.function.types.get(name)
        return None if value is None or value.shape is None else len(value.shape)

    def elem_type(self, name: str) -> int | None:
        """ONNX's number of the element type."""
        from bb_edge.ir.types import elem_of_dtype

        if name in self.constants:
            return elem_of_dtype(self.constants[name].dtype)
        value = self.function.types.get(name)
        return None if value is None else value.node.elem_type

    def fresh(self, wish: str) -> str:
        """A name that no value has, and that this index will not give again."""
        return fresh_name(wish, self.names)
