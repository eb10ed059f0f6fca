"""Products and convolutions of quantised tensors.

BLAS has no integers. The operands, less their zero points, go into a float type whose mantissa holds every
partial sum exactly (float32 up to 2^24, else float64), so that the float product is the integer product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .conv import ATTRS, Convolution, convolution
from .errors import KernelShapeError, UnsupportedDtypeError
from .linalg import matmul_shape
from .quant import BYTES, limits
from .registry import Call, kernel
from .spec import F32, F64, FLOAT, I32, Array, Bound, Dtype, Prepared, TensorSpec, run_bound
from .ufuncs import clip

_EXACT_FLOAT32 = 1 << 24
#: Largest distance of an 8-bit value from its zero point.
_REACH = 255


def _wide_enough(call: Call, weights: int, zero: int, depth: int, rows_first: bool) -> Dtype:
    """Return the float type that holds sums of ``depth`` products; known weights bound them better."""
    known = call.constant(weights)
    points = call.constant(zero) if call.has(zero) else np.zeros((), np.int64)
    bound = depth * _REACH * _REACH
    if known is not None and points is not None and points.size == 1:
        sizes = np.abs(known.astype(np.int64) - int(points.reshape(-1)[0]))
        sums = sizes.reshape(sizes.shape[0], -1).sum(1) if rows_first else sizes.sum(-2)
        bound = int(sums.max(initial=0)) * _REACH
    return F32 if bound < _EXACT_FLOAT32 else F64


def _columns(call: Call, index: int, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Return how parameters spread over the left matrix: those per row (1-D) become a column."""
    spec = call.spec(index)
    if len(spec.shape) == 1 and spec.shape[0] == shape[-2] and len(shape) > 1 and spec.shape[0] != 1:
        return lambda values: values.reshape(-1, 1)
    if spec.size == 1:
        return lambda values: values.reshape(())
    return lambda values: values


def _plain(call: Call, index: int) -> Callable[[Array], Array]:
    """Return how parameters spread over the right matrix: a single value becomes a scalar."""
    return (lambda values: values.reshape(())) if call.spec(index).size == 1 else (lambda values: values)


def _optional(call: Call, index: int, shape: tuple[int, ...], left: bool) -> Callable[[Array], Array] | None:
    """Return ``_columns`` or ``_plain`` of an input, None where it is omitted."""
    if not call.has(index):
        return None
    return _columns(call, index, shape) if left else _plain(call, index)


def _shifted(x: Array, point: Array | None, out: Array) -> None:
    """Compute x - zero point in the float type of ``out``; allocates nothing."""
    if point is None:
        np.copyto(out, x, casting="unsafe")
    else:
        np.subtract(x, point, out, dtype=out.dtype, casting="unsafe")


@kernel("MatMulInteger", "T U T? U?", since=10, dtypes=BYTES, dtypes2=BYTES)
def _matmul_integer(call: Call) -> Prepared:
    """MatMulInteger (opset 10+) multiplies 8-bit matrices, less their zero points, exactly.

    A[…,m,k], B[…,k,n], zero points of each? → Y[…,m,n] (int32); int8, uint8. Shapes that do not fit raise
    KernelShapeError. Run allocates nothing.
    """
    a, b = call.spec(0), call.spec(1)
    shape = matmul_shape(call, a.shape, b.shape)
    real = _wide_enough(call, 1, 3, a.shape[-1], rows_first=False)
    point_a, point_b = _optional(call, 2, a.shape, True), _optional(call, 3, b.shape, False)
    n = len(call.inputs)

    def run(*arrays: Any) -> None:
        out, a2, b2, y = arrays[n:]
        _shifted(arrays[0], None if point_a is None else point_a(arrays[2]), a2)
        _shifted(arrays[1], None if point_b is None else point_b(arrays[3]), b2)
        np.matmul(a2, b2, y)
        np.copyto(out, y, casting="unsafe")

    scratch = tuple(TensorSpec(real, s) for s in (a.shape, b.shape, shape))
    return Prepared((TensorSpec(I32, shape),), run, scratch)


def _qlinear_matmul(call: Call) -> Prepared:
    """QLinearMatMul (opset 10+) multiplies quantised matrices and quantises the result.

    A[…,m,k], scale, zero, B[…,k,n], scale, zero, Y's scale, zero → Y[…,m,n]; int8, uint8, scales float.
    Shapes that do not fit raise KernelShapeError, other types UnsupportedDtypeError. Run allocates the
    product of the scales.
    """
    a, b, y = call.spec(0), call.spec(3), call.spec(7)
    for i in (1, 4, 6):
        if call.spec(i).dtype not in FLOAT:
            raise UnsupportedDtypeError(f"QLinearMatMul: scale {i} has element type {call.spec(i).dtype}")
    for i in (2, 5, 7):
        if call.spec(i).dtype not in BYTES:
            raise UnsupportedDtypeError(
                f"QLinearMatMul: zero point {i} has element type {call.spec(i).dtype}"
            )
    shape = matmul_shape(call, a.shape, b.shape)
    real = _wide_enough(call, 3, 5, a.shape[-1], rows_first=False)
    scale_a, point_a = _columns(call, 1, a.shape), _columns(call, 2, a.shape)
    scale_b, point_b = _plain(call, 4), _plain(call, 5)
    scale_y, point_y = _columns(call, 6, shape), _columns(call, 7, shape)
    low, high = limits(y.dtype, real)

    def run(*arrays: Any) -> None:
        xa, sa, za, xb, sb, zb, sy, zy, out, a2, b2, product = arrays
        _shifted(xa, point_a(za), a2)
        _shifted(xb, point_b(zb), b2)
        np.matmul(a2, b2, product)
        np.multiply(product, scale_a(sa) * scale_b(sb) / scale_y(sy), product, casting="unsafe")
        np.rint(product, product)
        np.add(product, point_y(zy), product, casting="unsafe")
        clip(product, low, high, product)
        np.copyto(out, product, casting="unsafe")

    scratch = tuple(TensorSpec(real, s) for s in (a.shape, b.shape, shape))
    return Prepared((TensorSpec(y.dtype, shape),), run, scratch)


kernel("QLinearMatMul", "T A A U A A A A", since=10, dtypes=BYTES, dtypes2=BYTES)(_qlinear_matmul)


def _bind_integer_conv(
    conv: Convolution,
    x: Array,
    x_point: Array | None,
    w: Array,
    w_point: Array | None,
    temps: tuple[Any, ...],
) -> Bound:
    """Return a run that leaves the exact convolution in the float y.

    ``temps``: x, w and y as floats, then the convolution's scratch.
    """
    x2, w2, y2 = temps[:3]
    run_conv = conv.bind(x2, w2, None, y2, temps[3:])
    point = None if x_point is None else x_point.reshape(())
    w_column = None if w_point is None else w_point.reshape(-1, *(1,) * (w.ndim - 1))

    def run() -> None:
        _shifted(x, point, x2)
        _shifted(w, w_column, w2)
        run_conv()

    return run


def _integer_conv(
    call: Call, w_index: int, x_zero: int, w_zero: int
) -> tuple[Convolution, Dtype, list[TensorSpec]]:
    """Return the convolution of quantised operands, its float type, and its scratch."""
    x, w = call.spec(0), call.spec(w_index)
    conv = convolution(call, x, w)
    if call.has(x_zero) and call.spec(x_zero).size != 1:
        raise KernelShapeError(f"{call.op_type}: the zero point of x must be a single value")
    if call.has(w_zero) and call.spec(w_zero).size not in (1, conv.maps):
        raise KernelShapeError(
            f"{call.op_type}: the zero point of w must be a single value, or a value per output channel"
        )
    real = _wide_enough(call, w_index, w_zero, prod(w.shape[1:]), rows_first=True)
    temps = [TensorSpec(real, s) for s in (x.shape, w.shape, conv.out_shape)]
    return conv, real, [*temps, *conv.scratch(real)]


@kernel("ConvInteger", "T U T? U?", since=10, dtypes=BYTES, dtypes2=BYTES, attrs=ATTRS)
def _conv_integer(call: Call) -> Prepared:
    """ConvInteger (opset 10+) convolves 8-bit tensors, less their zero points, exactly.

    X[N,C,size…], W[M,C/g,kernel…], zero points of each? → Y[N,M,out…] (int32); int8, uint8. Shapes that do
    not fit raise KernelShapeError. Run allocates nothing.
    """
    conv, _, temps = _integer_conv(call, 1, 2, 3)
    n = len(call.inputs)

    def bind(*arrays: Any) -> Bound:
        x_point, w_point = (arrays[i] if n > i else None for i in (2, 3))
        out, y = arrays[n], arrays[n + 3]
        core = _bind_integer_conv(conv, arrays[0], x_point, arrays[1], w_point, arrays[n + 1 :])

        def run() -> None:
            core()
            np.copyto(out, y, casting="unsafe")

        return run

    return Prepared((TensorSpec(I32, conv.out_shape),), run_bound(bind), tuple(temps), binder=bind)


@kernel("QLinearConv", "T A T U A U A A A?", since=10, dtypes=BYTES, dtypes2=BYTES, attrs=ATTRS)
def _qlinear_conv(call: Call) -> Prepared:
    """QLinearConv (opset 10+) convolves quantised tensors and quantises the result.

    X[N,C,size…], scale, zero, W[M,C/g,kernel…], scale(s), zero(s), Y's scale, zero, B[M]? (int32 in
    x_scale·w_scale) → Y[N,M,out…]; int8, uint8. Shapes that do not fit raise KernelShapeError, another output
    type UnsupportedDtypeError. Run allocates a factor per channel.
    """
    conv, real, temps = _integer_conv(call, 3, 2, 5)
    target = call.spec(7).dtype
    if target not in BYTES:
        raise UnsupportedDtypeError(f"QLinearConv: output element type {target} is not 8 bits wide")
    for i in (1, 4, 6):
        if call.spec(i).dtype != F32 or call.spec(i).size not in ((1, conv.maps) if i == 4 else (1,)):
            raise KernelShapeError(
                f"QLinearConv: scale {i} must be float32, a single value (for w also a value per channel)"
            )
    if call.has(8) and (call.spec(8).dtype != I32 or call.spec(8).shape != (conv.maps,)):
        raise KernelShapeError(f"QLinearConv: bias must be int32 of shape ({conv.maps},)")
    low, high = limits(target, real)
    column = (-1, *(1,) * len(conv.win.out))
    n = len(call.inputs)

    def bind(*arrays: Any) -> Bound:
        _, x_scale, x_point, w, w_scale, w_point, y_scale, y_point = arrays[:8]
        bias = arrays[8].reshape(column) if n > 8 else None
        out, y = arrays[n], arrays[n + 3]
        core = _bind_integer_conv(conv, arrays[0], x_point, w, w_point, arrays[n + 1 :])

        def run() -> None:
            core()
            if bias is not None:
                np.add(y, bias, y, casting="unsafe")
            factor = x_scale.reshape(()).astype(F64) * w_scale.reshape(column) / y_scale.reshape(())
            np.multiply(y, factor, y, casting="unsafe")
            np.rint(y, y)
            np.add(y, y_point.reshape(()), y, casting="unsafe")
            clip(y, low, high, y)
            np.copyto(out, y, casting="unsafe")

        return run

    return Prepared((TensorSpec(target, conv.out_shape),), run_bound(bind), tuple(temps), binder=bind)
