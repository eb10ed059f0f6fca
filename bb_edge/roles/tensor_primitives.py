"""The typed primitives of a backend: one method per ONNX operator that a small backend can be made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.ir.primitives import PRIMITIVES
from bb_edge.roles.errors import MaterializeError
from bb_edge.roles.programs import Tensor

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import TensorProto
    from bb_edge.ir.tensors import Array

__all__ = ["PRIMITIVE_METHODS", "TensorPrimitives"]

PRIMITIVE_METHODS: Mapping[str, str] = {
    op: {
        "MatMul": "matmul",
        "ReduceSum": "reduce_sum",
        "ReduceMean": "reduce_mean",
        "ReduceMax": "reduce_max",
        "ReduceMin": "reduce_min",
        "Where": "where",
    }.get(op, op.lower())
    for op in PRIMITIVES
}
"""The name of the typed method, by ONNX operator."""


class TensorPrimitives:
    """The 30 primitives over a backend's own tensor handles, and the way of arrays in and out of these.

    Each primitive is the ONNX operator of that name: shapes broadcast as NumPy's do, and results have the
    dtype of the inputs unless the method says otherwise. By default each of them calls `primitive`.
    """

    def from_array(self, array: Array) -> Tensor:
        """Returns a handle of an array; the default handle is the array itself."""
        return array

    def to_array(self, tensor: Tensor) -> Array:
        """Returns the array of a handle.

        Raises MaterializeError where a class with handles of its own does not override this method.
        """
        array = np.asarray(tensor)
        if array.dtype == object:
            raise MaterializeError(
                f"{type(self).__name__} does not define to_array for {type(tensor).__name__}",
                hint="override to_array(tensor) beside from_array(array)",
            )
        return array

    def primitive(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, Array] | None = None,
        n_outputs: int = 1,
    ) -> tuple[Tensor, ...]:
        """Runs any one operator; every typed primitive calls it by default.

        `inputs` are handles. `parameters` are the inputs that are arrays instead (axes, shapes, …), by their
        position among the operator's inputs. `attributes` are plain values by the operator's attribute names.
        """
        raise NotImplementedError

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b."""
        return self.primitive("Add", (a, b))[0]

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """a - b."""
        return self.primitive("Sub", (a, b))[0]

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a * b."""
        return self.primitive("Mul", (a, b))[0]

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """a / b; integers are truncated towards zero."""
        return self.primitive("Div", (a, b))[0]

    def neg(self, a: Tensor) -> Tensor:
        """-a."""
        return self.primitive("Neg", (a,))[0]

    def abs(self, a: Tensor) -> Tensor:
        """|a|."""
        return self.primitive("Abs", (a,))[0]

    def sqrt(self, a: Tensor) -> Tensor:
        """Square root."""
        return self.primitive("Sqrt", (a,))[0]

    def pow(self, a: Tensor, b: Tensor) -> Tensor:
        """a ** b."""
        return self.primitive("Pow", (a, b))[0]

    def exp(self, a: Tensor) -> Tensor:
        """e ** a."""
        return self.primitive("Exp", (a,))[0]

    def log(self, a: Tensor) -> Tensor:
        """Natural logarithm."""
        return self.primitive("Log", (a,))[0]

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Matrix product, with the rules of `numpy.matmul` for ranks other than 2."""
        return self.primitive("MatMul", (a, b))[0]

    def reduce_sum(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Sum over `axes`, or over all axes where `axes` is empty; `keepdims` leaves them with length 1."""
        return self._reduce("ReduceSum", a, axes, keepdims)

    def reduce_mean(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Mean; `axes` and `keepdims` as in `reduce_sum`."""
        return self._reduce("ReduceMean", a, axes, keepdims)

    def reduce_max(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Maximum; `axes` and `keepdims` as in `reduce_sum`."""
        return self._reduce("ReduceMax", a, axes, keepdims)

    def reduce_min(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Minimum; `axes` and `keepdims` as in `reduce_sum`."""
        return self._reduce("ReduceMin", a, axes, keepdims)

    def reshape(self, a: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape; 0 keeps an axis as it is, one -1 is computed from the rest."""
        return self.primitive("Reshape", (a,), None, {1: _ints(shape)})[0]

    def transpose(self, a: Tensor, perm: Sequence[int] = ()) -> Tensor:
        """Axis `i` of the result is axis `perm[i]` of `a`; an empty `perm` reverses the axes."""
        return self.primitive("Transpose", (a,), {"perm": list(perm)} if perm else None)[0]

    def concat(self, inputs: Sequence[Tensor], axis: int) -> Tensor:
        """The inputs one after the other along `axis`; all other axes are equal."""
        return self.primitive("Concat", tuple(inputs), {"axis": axis})[0]

    def slice(
        self,
        a: Tensor,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int] = (),
        steps: Sequence[int] = (),
    ) -> Tensor:
        """`a[starts:ends:steps]` along `axes`; by default along the leading axes, in steps of 1."""
        parameters = {1: _ints(starts), 2: _ints(ends), 3: _ints(axes or range(len(starts)))}
        if steps:
            parameters[4] = _ints(steps)
        return self.primitive("Slice", (a,), None, parameters)[0]

    def split(self, a: Tensor, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Consecutive parts of `sizes` along `axis`; the sizes add up to the axis' length."""
        return self.primitive("Split", (a,), {"axis": axis}, {1: _ints(sizes)}, len(sizes))

    def squeeze(self, a: Tensor, axes: Sequence[int] = ()) -> Tensor:
        """`a` without `axes`, which have length 1; without all axes of length 1 where `axes` is empty."""
        return self.primitive("Squeeze", (a,), None, {1: _ints(axes)} if axes else None)[0]

    def unsqueeze(self, a: Tensor, axes: Sequence[int]) -> Tensor:
        """`a` with axes of length 1 at the positions `axes` of the result."""
        return self.primitive("Unsqueeze", (a,), None, {1: _ints(axes)})[0]

    def identity(self, a: Tensor) -> Tensor:
        """The same values."""
        return self.primitive("Identity", (a,))[0]

    def cast(self, a: Tensor, dtype: int) -> Tensor:
        """`a` as another element type; `dtype` is an ONNX `TensorProto.DataType`."""
        return self.primitive("Cast", (a,), {"to": int(dtype)})[0]

    def equal(self, a: Tensor, b: Tensor) -> Tensor:
        """a == b; the result is bool."""
        return self.primitive("Equal", (a, b))[0]

    def greater(self, a: Tensor, b: Tensor) -> Tensor:
        """a > b; the result is bool."""
        return self.primitive("Greater", (a, b))[0]

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        """a < b; the result is bool."""
        return self.primitive("Less", (a, b))[0]

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """x where the bool `condition` holds, else y."""
        return self.primitive("Where", (condition, x, y))[0]

    def constant(self, value: TensorProto) -> Tensor:
        """A handle of the tensor that a `TensorProto` holds."""
        return self.primitive("Constant", (), {"value": value})[0]

    def gather(self, data: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
        """Entries of `data` along `axis`; the shape of `indices` replaces that axis in the result.

        Negative indices count from the end.
        """
        return self.primitive("Gather", (data, indices), {"axis": axis})[0]

    def _reduce(self, op_type: str, a: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
        parameters = {1: _ints(axes)} if len(axes) else None
        return self.primitive(op_type, (a,), {"keepdims": int(keepdims)}, parameters)[0]


def _ints(values: Sequence[int] | range) -> Array:
    return np.asarray(list(values), dtype=np.int64)
