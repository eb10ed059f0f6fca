"""Real and quantised numbers: real = (quantised - zero point) · scale.

Scales and zero points hold per tensor, per axis or per block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelAttributeError, KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shapes import axis_of
from .spec import F32, FLOAT, I8, I16, I32, U8, U16, Array, Bound, Dtype, Prepared, TensorSpec, run_bound
from .ufuncs import clip, max_reduce, min_reduce
from .unary import dtype_of

QUANTISED: frozenset[Dtype] = frozenset({I8, U8, I16, U16})
BYTES: frozenset[Dtype] = frozenset({I8, U8})


def limits(dtype: Dtype, real: Dtype) -> tuple[Array, Array]:
    """Return the smallest and largest value of an integer type, as 0-d arrays of a float type."""
    info = np.iinfo(dtype)
    return np.array(info.min, real), np.array(info.max, real)


class _Spread:
    """How scales and zero points spread over a tensor; settled from shapes when preparing."""

    def __init__(self, call: Call, x: tuple[int, ...], scale: tuple[int, ...]) -> None:
        """Settle the layout of ``scale`` over ``x``; KernelShapeError where they do not fit."""
        self.block = call.int_attr("block_size", 0)
        self.axis = 0
        self.rank, self.shape = len(x), x
        self.single = len(scale) == 0 or scale == (1,)
        if self.single:
            return
        self.axis = axis_of(call, call.int_attr("axis", 1), len(x))
        if self.block:
            blocks = -(-x[self.axis] // self.block)
            expected: tuple[int, ...] = (*x[: self.axis], blocks, *x[self.axis + 1 :])
        else:
            expected = (x[self.axis],)
        if scale != expected:
            raise KernelShapeError(f"{call.op_type}: scale has shape {scale}, input {x} needs {expected}")

    def __call__(self, values: Array) -> Array:
        """Return a scale or zero point in a shape that broadcasts; copies for blocks only."""
        if self.single:
            return values.reshape(())
        if self.block:
            lead = (slice(None),) * self.axis
            wide = np.repeat(values, self.block, self.axis)
            kept = (*lead, slice(0, self.shape[self.axis]))
            return wide[kept]
        return values.reshape(-1, *(1,) * (self.rank - 1 - self.axis))


def _check_zero_point(call: Call, index: int) -> None:
    """Raise KernelShapeError unless a zero point has the scale's shape or a single value."""
    if call.has(index) and call.spec(index).shape != call.spec(1).shape and call.spec(index).size != 1:
        raise KernelShapeError(
            f"{call.op_type}: zero point {call.spec(index).shape} differs from scale {call.spec(1).shape}"
        )


def _quantize(call: Call) -> Prepared:
    """QuantizeLinear (opset 10+) computes saturate(round half to even(x / scale) + zero point).

    X[…], scale, zero_point? → Y like X; floats or int32 to int8, uint8, int16, uint16. scale is [], [d] of an
    axis, or X's shape in blocks. Shapes that do not fit raise KernelShapeError, other types
    UnsupportedDtypeError. Run allocates nothing, except blocked scales at X's size.
    """
    x, scale = call.spec(0), call.spec(1)
    named = dtype_of(call, number) if (number := call.int_attr("output_dtype", 0)) else None
    dtype = call.spec(2).dtype if call.has(2) else named or U8
    if dtype not in QUANTISED or (named is not None and named != dtype):
        raise UnsupportedDtypeError(
            f"QuantizeLinear: output type {named or dtype} must have 8 or 16 bits, like the zero point"
        )
    if call.int_attr("precision", 1) not in (0, 1):
        raise KernelAttributeError("QuantizeLinear: precision other than float32 is not implemented")
    spread = _Spread(call, x.shape, scale.shape)
    _check_zero_point(call, 2)
    low, high = limits(dtype, F32)
    n = len(call.inputs)

    def bind(*arrays: Any) -> Bound:
        data, out, temp = arrays[0], arrays[n], arrays[n + 1]

        def run() -> None:
            np.divide(data, spread(arrays[1]), temp, casting="unsafe")
            np.rint(temp, temp)
            if n > 2:
                np.add(temp, spread(arrays[2]), temp, casting="unsafe")
            clip(temp, low, high, temp)
            np.copyto(out, temp, casting="unsafe")

        return run

    return Prepared(
        (TensorSpec(dtype, x.shape),), run_bound(bind), (TensorSpec(F32, x.shape),), binder=bind
    )  # fmt: skip


kernel(
    "QuantizeLinear", "T A A?", since=10, dtypes=FLOAT | {I32},
    attrs="axis@13 saturate@19 block_size@21 output_dtype@21 precision@23",
)(_quantize)  # fmt: skip


def _dequantize(call: Call) -> Prepared:
    """DequantizeLinear (opset 10+) computes (x - zero point) · scale in float32.

    X[…], scale, zero_point? → Y like X; int8, uint8, int16, uint16 or int32 to floats. scale is [], [d] of an
    axis, or X's shape in blocks. Shapes that do not fit raise KernelShapeError, other types
    UnsupportedDtypeError. Run allocates nothing, except blocked scales at X's size.
    """
    x, scale = call.spec(0), call.spec(1)
    named = dtype_of(call, number) if (number := call.int_attr("output_dtype", 0)) else None
    dtype = named or scale.dtype
    if dtype not in FLOAT or scale.dtype not in FLOAT:
        raise UnsupportedDtypeError(
            f"DequantizeLinear: scale {scale.dtype} and output {dtype} must be floats"
        )
    spread = _Spread(call, x.shape, scale.shape)
    _check_zero_point(call, 2)
    n = len(call.inputs)
    direct = dtype == F32
    scratch = () if direct else (TensorSpec(F32, x.shape),)

    def bind(*arrays: Any) -> Bound:
        data, out = arrays[0], arrays[n]
        temp = out if direct else arrays[n + 1]

        def run() -> None:
            if n > 2:
                np.subtract(data, spread(arrays[2]), temp, dtype=F32, casting="unsafe")
            else:
                np.copyto(temp, data, casting="unsafe")
            np.multiply(temp, spread(arrays[1]), out, casting="unsafe")

        return run

    return Prepared((TensorSpec(dtype, x.shape),), run_bound(bind), scratch, binder=bind)


kernel(
    "DequantizeLinear", "T A T?", since=10, dtypes=QUANTISED | {I32},
    attrs="axis@13 block_size@21 output_dtype@23",
)(_dequantize)  # fmt: skip


@kernel("DynamicQuantizeLinear", "T", since=11, dtypes=frozenset({F32}), max_outputs=3)
def _dynamic_quantize(call: Call) -> Prepared:
    """DynamicQuantizeLinear (opset 11+) quantises with a scale that covers the input's range and 0.

    X[…] → Y like X (uint8), scale[] (float32), zero_point[] (uint8); float32. Run allocates nothing.
    """
    x = call.spec(0)

    def run(data: Array, out: Array | None, scale: Array | None, zero: Array | None, temp: Array) -> None:
        low = min(np.float32(0), min_reduce(data, None)) if data.size else np.float32(0)
        high = max(np.float32(0), max_reduce(data, None)) if data.size else np.float32(0)
        step = np.float32(high - low) / np.float32(255)
        if step == 0:
            step = np.float32(1)
        point = np.rint(np.clip(-low / step, np.float32(0), np.float32(255)))
        np.divide(data, step, temp)
        np.rint(temp, temp)
        np.add(temp, point, temp)
        np.clip(temp, 0, 255, temp)
        for target, value in ((out, temp), (scale, step), (zero, point)):
            if target is not None:
                np.copyto(target, value, casting="unsafe")

    def run_some(*arrays: Any) -> None:
        out, scale, zero = [*arrays[1 : 1 + call.n_outputs], None, None][:3]
        run(arrays[0], out, scale, zero, arrays[1 + call.n_outputs])

    outputs = (TensorSpec(U8, x.shape), TensorSpec(F32, ()), TensorSpec(U8, ()))[: call.n_outputs]
    return Prepared(outputs, run_some, (x,))
