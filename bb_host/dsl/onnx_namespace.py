"""`g.onnx`: the required operators with their signatures, every other one by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
from bb_host.dsl.onnx_ops import call_onnx, unknown_operator
from bb_host.dsl.onnx_schemas import onnx_name
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ValueTypeError
from bb_host.program import AttrValue

Ints = Sequence[int]


@typed_calls
class OnnxOps(ControlFlow):
    """ONNX operators of the recorded opset. Inputs take values, numbers, lists and arrays; `after=` orders.

    Operators that have no method here are found by name: `g.onnx.top_k(x, [3], outputs=2)`.
    """

    def __init__(self, graph: Recorder, meta: Mapping[str, str] | None = None) -> None:
        self._graph = graph
        self._meta = dict(meta or {})

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

    def _one(self, name: str, *inputs: object, after: After = UNORDERED, **attrs: object) -> Output:
        found = call_onnx(self._graph, name, inputs, attrs, after=after, meta=self._meta)
        assert isinstance(found, Output)
        return found

    def _flag(self, op: str, name: str, value: object) -> AttrValue:
        """ONNX's number for True or False. AttributeValueError for anything else."""
        return as_attribute(self._graph, op, name, AttrKind.INT, value)

    # --- arithmetic

    def add(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Add", a, b, after=after)

    def sub(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Sub", a, b, after=after)

    def mul(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Mul", a, b, after=after)

    def div(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Div", a, b, after=after)

    def pow(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Pow", a, b, after=after)

    def neg(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Neg", x, after=after)

    def abs(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Abs", x, after=after)

    def sqrt(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Sqrt", x, after=after)

    def exp(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Exp", x, after=after)

    def log(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Log", x, after=after)

    # --- linear algebra

    def matmul(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("MatMul", a, b, after=after)

    def dot(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        """The required subset's `Dot`: recorded as MatMul."""
        return self.matmul(a, b, after=after)

    def gemm(
        self,
        a: Value,
        b: Value,
        c: Value | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        trans_a: bool = False,
        trans_b: bool = False,
        *,
        after: After = UNORDERED,
    ) -> Output:
        """`alpha * a @ b + beta * c`, a and b of rank 2, transposed where asked."""
        flags = {
            "transA": self._flag("Gemm", "transA", trans_a),
            "transB": self._flag("Gemm", "transB", trans_b),
        }
        return self._one("Gemm", a, b, c, alpha=alpha, beta=beta, **flags, after=after)

    # --- activations

    def relu(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Relu", x, after=after)

    def sigmoid(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Sigmoid", x, after=after)

    def tanh(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Tanh", x, after=after)

    def softmax(self, x: Value, axis: int = -1, *, after: After = UNORDERED) -> Output:
        return self._one("Softmax", x, axis=axis, after=after)

    def leaky_relu(self, x: Value, alpha: float = 0.01, *, after: After = UNORDERED) -> Output:
        return self._one("LeakyRelu", x, alpha=alpha, after=after)

    def gelu(self, x: Value, approximate: str = "none", *, after: After = UNORDERED) -> Output:
        return self._one("Gelu", x, approximate=approximate, after=after)

    # --- structure

    def reshape(
        self, data: Value, shape: Value, allowzero: bool = False, *, after: After = UNORDERED
    ) -> Output:
        """-1 is the rest; 0 copies the input's size unless `allowzero`."""
        return self._one(
            "Reshape",
            data,
            shape,
            allowzero=self._flag("Reshape", "allowzero", allowzero) or None,
            after=after,
        )

    def transpose(self, data: Value, perm: Ints | None = None, *, after: After = UNORDERED) -> Output:
        return self._one("Transpose", data, perm=perm, after=after)

    def concat(self, *inputs: Value | Sequence[Value], axis: int, after: After = UNORDERED) -> Output:
        return self._one("Concat", *inputs, axis=axis, after=after)

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

    def slice(
        self,
        data: Value,
        starts: Value,
        ends: Value,
        axes: Value | None = None,
        steps: Value | None = None,
        *,
        after: After = UNORDERED,
    ) -> Output:
        return self._one("Slice", data, starts, ends, axes, steps, after=after)

    def squeeze(self, data: Value, axes: Value | None = None, *, after: After = UNORDERED) -> Output:
        return self._one("Squeeze", data, axes, after=after)

    def unsqueeze(self, data: Value, axes: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Unsqueeze", data, axes, after=after)

    def identity(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Identity", x, after=after)

    def cast(self, x: Value, to: TypeLike, *, after: After = UNORDERED) -> Output:
        """`to`: a NumPy dtype, an element name (`F32`), a tensor TypeNode or ONNX's number."""
        return self._one("Cast", x, to=element_number(self._graph, to), after=after)

    # --- reductions

    def _reduce(
        self, op: str, data: Value, axes: Value | None, keepdims: bool, noop: bool, after: After
    ) -> Output:
        extra = {"noop_with_empty_axes": 1} if self._flag(op, "noop_with_empty_axes", noop) else {}
        return self._one(op, data, axes, keepdims=self._flag(op, "keepdims", keepdims), after=after, **extra)

    def reduce_sum(
        self,
        data: Value,
        axes: Value | None = None,
        keepdims: bool = True,
        noop: bool = False,
        *,
        after: After = UNORDERED,
    ) -> Output:
        return self._reduce("ReduceSum", data, axes, keepdims, noop, after)

    def reduce_mean(
        self,
        data: Value,
        axes: Value | None = None,
        keepdims: bool = True,
        noop: bool = False,
        *,
        after: After = UNORDERED,
    ) -> Output:
        return self._reduce("ReduceMean", data, axes, keepdims, noop, after)

    def reduce_max(
        self,
        data: Value,
        axes: Value | None = None,
        keepdims: bool = True,
        noop: bool = False,
        *,
        after: After = UNORDERED,
    ) -> Output:
        return self._reduce("ReduceMax", data, axes, keepdims, noop, after)

    def reduce_min(
        self,
        data: Value,
        axes: Value | None = None,
        keepdims: bool = True,
        noop: bool = False,
        *,
        after: After = UNORDERED,
    ) -> Output:
        return self._reduce("ReduceMin", data, axes, keepdims, noop, after)

    # --- comparison and choice

    def equal(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Equal", a, b, after=after)

    def greater(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Greater", a, b, after=after)

    def less(self, a: Value, b: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Less", a, b, after=after)

    def where(self, condition: Value, x: Value, y: Value, *, after: After = UNORDERED) -> Output:
        return self._one("Where", condition, x, y, after=after)

    def gather(self, data: Value, indices: Value, axis: int = 0, *, after: After = UNORDERED) -> Output:
        return self._one("Gather", data, indices, axis=axis, after=after)

    def scatter(
        self, data: Value, indices: Value, updates: Value, axis: int = 0, *, after: After = UNORDERED
    ) -> Output:
        """The required subset's `Scatter`: recorded as ScatterElements, its name since opset 11."""
        return self._one("ScatterElements", data, indices, updates, axis=axis, after=after)

    # --- normalization, convolution, pooling (further attributes as in ONNX)

    def batch_normalization(
        self,
        x: Value,
        scale: Value,
        b: Value,
        mean: Value,
        var: Value,
        *,
        after: After = UNORDERED,
        **attrs: object,
    ) -> Output:
        return self._one("BatchNormalization", x, scale, b, mean, var, after=after, **attrs)

    def layer_normalization(
        self, x: Value, scale: Value, b: Value | None = None, *, after: After = UNORDERED, **attrs: object
    ) -> Output:
        return self._one("LayerNormalization", x, scale, b, after=after, **attrs)

    def conv(
        self, x: Value, w: Value, b: Value | None = None, *, after: After = UNORDERED, **attrs: object
    ) -> Output:
        """Attributes: auto_pad, dilations, group, kernel_shape, pads, strides."""
        return self._one("Conv", x, w, b, after=after, **attrs)

    def max_pool(self, x: Value, kernel_shape: Ints, *, after: After = UNORDERED, **attrs: object) -> Output:
        """Attributes: auto_pad, ceil_mode, dilations, pads, strides."""
        return self._one("MaxPool", x, kernel_shape=kernel_shape, after=after, **attrs)

    def average_pool(
        self, x: Value, kernel_shape: Ints, *, after: After = UNORDERED, **attrs: object
    ) -> Output:
        """Attributes: auto_pad, ceil_mode, count_include_pad, dilations, pads, strides."""
        return self._one("AveragePool", x, kernel_shape=kernel_shape, after=after, **attrs)

    def global_average_pool(self, x: Value, *, after: After = UNORDERED) -> Output:
        return self._one("GlobalAveragePool", x, after=after)

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
            return self._one("Constant", value=array, after=after)
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
            raise self._graph.error(ValueTypeError, f"{shape!r} is no shape", "give sizes from 0: [2, 3]")
        refuse_too_large(self._graph, math.prod(map(int, sizes)) * elem.itemsize)
        # One element, repeated.
        return self.constant(np.broadcast_to(np.asarray(number, elem), list(map(int, sizes))), after=after)
