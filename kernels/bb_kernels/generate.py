"""Operators that make tensors from attributes, shapes and a few numbers."""

from __future__ import annotations

from math import ceil, isfinite

import numpy as np

from .errors import KernelAttributeError, KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shape import known
from .shapes import bounded
from .spec import ALL, F32, F64, FLOAT, I16, I32, I64, Array, Prepared, TensorSpec
from .unary import dtype_of


@kernel("Constant", "", attrs="value value_float@12 value_floats@12 value_int@12 value_ints@12")
def _constant(call: Call) -> Prepared:
    """Constant (opset 7+) gives the tensor, number or list of its attribute.

    → Y[…]; any type, float32 and int64 from plain numbers. sparse_value, strings and a second attribute raise
    KernelAttributeError. Run allocates nothing: the value is known when preparing.
    """
    if len(call.attrs) != 1:
        raise KernelAttributeError(f"Constant: expected a single value attribute, got {sorted(call.attrs)}")
    ((name, value),) = call.attrs.items()
    if name == "value":
        if not isinstance(value, np.ndarray):
            raise KernelAttributeError(f"Constant: value must be a tensor, got {type(value).__name__}")
        return known(call, value.copy())
    return known(call, np.array(value, F32 if name.startswith("value_float") else I64))


@kernel("ConstantOfShape", "I", since=9, needs=(0,), attrs="value")
def _constant_of_shape(call: Call) -> Prepared:
    """ConstantOfShape (opset 9+) fills a shape with a single value.

    shape[r] → Y of that shape, in the type of ``value`` (default float32 0). Another number of values raises
    KernelAttributeError, a negative dimension KernelShapeError. Run allocates nothing.
    """
    value = call.attrs.get("value", np.zeros(1, F32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise KernelAttributeError("ConstantOfShape: value must be a tensor with a single element")
    if value.dtype not in ALL:
        raise UnsupportedDtypeError(f"ConstantOfShape: value has element type {value.dtype}")
    shape = tuple(call.int_list(0) or [])
    if any(d < 0 for d in shape):
        raise KernelShapeError(f"ConstantOfShape: negative dimension in {shape}")
    scalar = value.reshape(()).copy()
    return Prepared((TensorSpec(scalar.dtype, shape),), lambda _shape, out: np.copyto(out, scalar))


@kernel("Range", "T T T", since=11, needs=(0, 1, 2), dtypes=FLOAT | {I16, I32, I64}, attrs="stash_type@27")
def _range(call: Call) -> Prepared:
    """Range (opset 11+) lists start, start+delta, … as long as they are before the limit.

    start[], limit[], delta[] → Y[n] with n = max(ceil((limit-start)/delta), 0); floats, int16, int32, int64.
    A delta of 0 and numbers that are not finite raise KernelShapeError. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    values = [call.constant(i) for i in range(3)]
    if any(v is None or v.size != 1 for v in values):
        raise KernelShapeError("Range: start, limit and delta must hold a single value each")
    start, limit, delta = (v.reshape(-1)[0].item() for v in values if v is not None)
    if not all(map(isfinite, (start, limit, delta))):
        raise KernelShapeError(f"Range: {start}, {limit}, {delta} must be finite")
    if delta == 0:
        raise KernelShapeError("Range: a delta of 0 never reaches the limit")
    count = max(0, ceil((limit - start) / delta))
    # In blocks, since the count may be any number: only who runs it knows how much memory there is.
    places = np.arange(min(count, _BLOCK), dtype=F64 if dtype.kind == "f" else I64)
    block = np.empty_like(places)

    def run(_start: Array, _limit: Array, _delta: Array, out: Array) -> None:
        for first in range(0, count, _BLOCK):
            part = block[: min(_BLOCK, count - first)]
            np.add(places[: len(part)], first, out=part)
            np.multiply(part, delta, out=part)
            np.add(part, start, out=part)
            np.copyto(out[first : first + len(part)], part, casting="unsafe")

    return Prepared((TensorSpec(dtype, (count,)),), run)


_BLOCK = 4096
"""Elements that Range computes at a time."""


@kernel("EyeLike", "T", since=9, attrs="dtype k")
def _eye_like(call: Call) -> Prepared:
    """EyeLike (opset 9+) writes 1 on the diagonal ``k`` of a matrix and 0 elsewhere.

    X[m,n] → Y[m,n] in the type of ``dtype`` or X. Other ranks raise KernelShapeError. Run allocates nothing:
    the value is known when preparing.
    """
    spec = call.spec(0)
    if len(spec.shape) != 2:
        raise KernelShapeError(f"EyeLike: input must be a matrix, got shape {spec.shape}")
    bounded(call, spec.size, "elements", 8)
    dtype = dtype_of(call, call.int_attr("dtype")) if "dtype" in call.attrs else spec.dtype
    return known(call, np.eye(*spec.shape, k=call.int_attr("k", 0), dtype=dtype))


#: Weights of one window: five seconds of sound. Making them takes some ten times their bytes.
MAX_WINDOW = 1 << 18


def _window(op_type: str, weights: tuple[float, ...]) -> None:
    """Register a cosine-sum window for signal processing: Σ (-1)^i w_i cos(2π i n / N)."""

    @kernel(op_type, "I", since=17, needs=(0,), attrs="output_datatype periodic")
    def build(call: Call) -> Prepared:
        """HannWindow, HammingWindow and BlackmanWindow (opset 17+) list the weights of a window.

        size[] → Y[size] in the type that ``output_datatype`` names (default float32). A negative size and one
        above MAX_WINDOW raise KernelShapeError. Run allocates nothing: the value is known when preparing.
        """
        dtype = dtype_of(call, call.int_attr("output_datatype", 1))
        size = (call.int_list(0) or [0])[0]
        if not 0 <= size <= MAX_WINDOW:
            raise KernelShapeError(f"{op_type}: size {size} is not in 0 to {MAX_WINDOW}")
        bounded(call, size, "weights", 48)
        span = size if call.int_attr("periodic", 1) else size - 1
        angle = 2.0 * np.pi * np.arange(size) / max(1, span)
        terms = [(-1) ** i * w * np.cos(i * angle) for i, w in enumerate(weights)]
        return known(call, np.sum(terms, axis=0).astype(dtype).reshape(size))


_window("HannWindow", (0.5, 0.5))
_window("HammingWindow", (25.0 / 46.0, 21.0 / 46.0))
_window("BlackmanWindow", (0.42, 0.5, 0.08))
