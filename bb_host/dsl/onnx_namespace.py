"""`g.onnx`: the required operators with their signatures, every other one by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.opsets import AttrKind
from bb_host.dsl.control_flow import ControlFlow
from bb_host.dsl.literals import (
    TypeLike,
    as_array,
    as_attribute,
    as_type,
    element_number,
    no_bfloat16,
    refuse_too_large,
)
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.named_calls import Operators
from bb_host.dsl.onnx_names import onnx_name
from bb_host.dsl.onnx_ops import unknown_operator
from bb_host.dsl.output import Output, Value
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ValueTypeError

Ints = Sequence[int]


@typed_calls
class OnnxOps(ControlFlow, Operators):
    """ONNX operators of the recorded opset. Inputs take values, numbers, lists and arrays; `after=` orders.

    Operators that have no method here are found by name: `g.onnx.top_k(x, [3], outputs=2)`.
    """

    if not TYPE_CHECKING:  # type checkers know every operator by its usual spelling, and no other

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name.startswith("__"):
                raise AttributeError(name)
            op_type = onnx_name(name)
            if op_type is None:
                raise unknown_operator(self._graph, name)

            def call(
                *inputs: object, outputs: int | None = None, after: After = UNORDERED, **attrs: object
            ) -> Any:
                return self.op(op_type, *inputs, outputs=outputs, after=after, **attrs)

            return call

    def split(
        self,
        data: Value,
        split: Value | None = None,
        axis: int = 0,
        num_outputs: int | None = None,
        *,
        after: After = UNORDERED,
    ) -> tuple[Output, ...]:
        """The parts, by sizes or by number. At least one; always a tuple."""
        found = self.op("Split", data, split, axis=axis, num_outputs=num_outputs, after=after)
        return (found,) if isinstance(found, Output) else tuple(found)

    # --- creation

    def constant(self, value: Value, dtype: TypeLike = None, *, after: After = UNORDERED) -> Output:
        """A tensor constant; integers are I64 and floats F32 unless `dtype` says otherwise."""
        wanted = None if dtype is None else as_type(self._graph, dtype)
        if wanted is not None and wanted.node.elem_type is None and wanted.node is not types.TENSOR:
            raise self._graph.error(
                ValueTypeError,
                f"a constant of {wanted.node}: {value!r} is a tensor",
                "name an element type: 'F32', 'I64', 'BOOL', …; text and bytes are Bytes without one",
            )
        array = as_array(self._graph, value, None if wanted is None else wanted.node)
        if after is not UNORDERED:
            found: Output = self.op("Constant", value=array, after=after)
            return found
        return self._graph.tensor_constant(array)

    def zeros(self, shape: Ints, dtype: TypeLike = "F32", *, after: After = UNORDERED) -> Output:
        """The required subset's `Zeros`: recorded as Constant."""
        return self._filled(0, shape, dtype, after)

    def ones(self, shape: Ints, dtype: TypeLike = "F32", *, after: After = UNORDERED) -> Output:
        """The required subset's `Ones`: recorded as Constant."""
        return self._filled(1, shape, dtype, after)

    def _filled(self, number: int, shape: Ints, dtype: TypeLike, after: After) -> Output:
        number_of_type = element_number(self._graph, dtype)
        if number_of_type == types.TENSOR_BF16.elem_type:
            raise no_bfloat16(self._graph, "a constant")
        elem = types.dtype_of_elem(number_of_type)
        if elem is None:
            raise self._graph.error(ValueTypeError, f"{dtype!r} has no array form")
        found = as_attribute(self._graph, "Constant", "shape", AttrKind.INTS, shape)
        sizes = found if isinstance(found, list) else []
        if any(int(size) < 0 for size in sizes):
            raise self._graph.error(ValueTypeError, f"{shape!r} is not a shape", "give sizes from 0: [2, 3]")
        refuse_too_large(self._graph, math.prod(map(int, sizes)) * elem.itemsize)
        # One element, repeated.
        return self.constant(np.broadcast_to(np.asarray(number, elem), list(map(int, sizes))), after=after)
