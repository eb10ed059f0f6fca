"""Operators from one tensor to one of the same shape: signs, roundings, exponentials, predicates, casts."""

from __future__ import annotations

from functools import partial

import numpy as np

from .errors import KernelAttributeError, KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shapes import elementwise
from .spec import (
    ALL,
    BOOL,
    F16,
    F32,
    F64,
    FLOAT,
    I8,
    I16,
    I32,
    I64,
    INTEGER,
    NUMERIC,
    SIGNED,
    U8,
    U16,
    U32,
    U64,
    Array,
    Bound,
    Dtype,
    Prepared,
    TensorSpec,
    Ufunc,
    run_bound,
)
from .ufuncs import clip, highest, lowest


def _register(op_type: str, ufunc: Ufunc, dtypes: frozenset[Dtype] = FLOAT, since: int = 7) -> None:
    """Register an operator of one input that is one NumPy function."""

    @kernel(op_type, "T", since=since, dtypes=dtypes)
    def build(call: Call) -> Prepared:
        """These operators apply one NumPy function to each element.

        opset 7+: Sqrt, Exp, Log, Reciprocal, Sin, Cos, Tan, Tanh, Asin, Acos, Atan, Floor, Ceil (floats), Neg
        (floats, signed integers), Not (bool), Abs (numbers); opset 9+: Sinh, Cosh, Asinh, Acosh, Atanh
        (floats), Sign (numbers); opset 11+: Round (floats, halves to even); opset 18+: BitwiseNot (integers).
        X[…] → Y[…]. Run allocates nothing.
        """
        return elementwise(call, ufunc)


_op: str
_ufunc: Ufunc
for _op, _ufunc in (
    ("Sqrt", np.sqrt), ("Exp", np.exp), ("Log", np.log), ("Reciprocal", np.reciprocal),
    ("Sin", np.sin), ("Cos", np.cos), ("Tan", np.tan), ("Tanh", np.tanh),
    ("Asin", np.arcsin), ("Acos", np.arccos), ("Atan", np.arctan),
    ("Floor", np.floor), ("Ceil", np.ceil),
):  # fmt: skip
    _register(_op, _ufunc)
for _op, _ufunc in (
    ("Sinh", np.sinh), ("Cosh", np.cosh), ("Asinh", np.arcsinh), ("Acosh", np.arccosh), ("Atanh", np.arctanh),
):  # fmt: skip
    _register(_op, _ufunc, since=9)
_register("Neg", np.negative, FLOAT | SIGNED)
_register("Not", np.logical_not, frozenset({BOOL}))
_register("BitwiseNot", np.invert, INTEGER, since=18)
_register("Abs", np.absolute, NUMERIC)
_register("Sign", np.sign, NUMERIC, since=9)
_register("Round", np.rint, since=11)  # halves to even, as ONNX asks


@kernel("IsNaN", "T", since=9, dtypes=FLOAT)
def _is_nan(call: Call) -> Prepared:
    """IsNaN (opset 9+) tells which elements are not a number.

    X[…] → Y[…]; floats to bool. Run allocates nothing.
    """
    return Prepared((TensorSpec(BOOL, call.spec(0).shape),), np.isnan)


@kernel("IsInf", "T", since=10, dtypes=FLOAT, attrs="detect_negative detect_positive")
def _is_inf(call: Call) -> Prepared:
    """IsInf (opset 10+) tells which elements are infinite, of the signs that its attributes name.

    X[…] → Y[…]; floats to bool. Run allocates nothing.
    """
    spec = call.spec(0)
    out = (TensorSpec(BOOL, spec.shape),)
    positive, negative = call.int_attr("detect_positive", 1), call.int_attr("detect_negative", 1)
    if positive and negative:
        return Prepared(out, np.isinf)
    if not positive and not negative:
        return Prepared(out, lambda x, y: y.fill(False))
    bound = np.array(np.inf if positive else -np.inf, spec.dtype)
    return Prepared(out, lambda x, y: np.equal(x, bound, y))


#: TensorProto.DataType numbers of the element types that exist in NumPy itself.
DATA_TYPES: dict[int, Dtype] = {
    1: F32, 2: U8, 3: I8, 4: U16, 5: I16, 6: I32, 7: I64, 9: BOOL, 10: F16, 11: F64, 12: U32, 13: U64,
}  # fmt: skip


def dtype_of(call: Call, number: int) -> Dtype:
    """Return the element type of a TensorProto.DataType number; UnsupportedDtypeError for unknown ones."""
    try:
        return DATA_TYPES[number]
    except KeyError:
        raise UnsupportedDtypeError(
            f"{call.op_type}: TensorProto data type {number} is not supported"
        ) from None


def cast_to(call: Call, dtype: Dtype) -> Prepared:
    """Return a kernel that converts by NumPy's rules: X[…] → Y[…] of ``dtype``.

    Floats truncate towards zero, integers wrap, non-zero becomes True. Run allocates nothing.
    """
    spec = call.spec(0)
    if dtype == spec.dtype:
        return identity(call)
    return Prepared((TensorSpec(dtype, spec.shape),), lambda x, out: np.copyto(out, x, casting="unsafe"))


def identity(call: Call) -> Prepared:
    """Return a kernel that copies its input, or passes it on as a view."""
    return Prepared(
        (call.spec(0),), lambda x, out: np.copyto(out, x), inplace=(0,), alias=lambda x: x,
    )  # fmt: skip


@kernel("Cast", "T", attrs="to saturate@19 round_mode@24")
def _cast(call: Call) -> Prepared:
    """Cast (opset 7+) converts to the element type that ``to`` names.

    X[…] → Y[…]; any type to any other. An unknown type raises UnsupportedDtypeError. ``saturate`` and
    ``round_mode`` concern 8-bit floats, which do not exist here. Run allocates nothing.
    """
    return cast_to(call, dtype_of(call, call.int_attr("to")))


@kernel("CastLike", "T U", since=15, dtypes2=ALL, attrs="saturate@19 round_mode@24")
def _cast_like(call: Call) -> Prepared:
    """CastLike (opset 15+) converts to the element type of its second input, whose values it never reads.

    X[…], like → Y[…]; any type to any other. Run allocates nothing.
    """
    inner = cast_to(call, call.spec(1).dtype)
    return Prepared(
        inner.outputs, lambda x, _like, out: np.copyto(out, x, casting="unsafe"), alias=inner.alias,
        inplace=inner.inplace,
    )  # fmt: skip


@kernel("Identity", "T")
def _identity(call: Call) -> Prepared:
    """Identity (opset 7+) passes its input on.

    X[…] → Y[…]; any type. Run allocates nothing; a plan may use a view instead.
    """
    return identity(call)


@kernel("Clip", "T", until=10, dtypes=FLOAT, attrs="min max")
def _clip_attrs(call: Call) -> Prepared:
    """Clip (opsets 7 to 10) limits elements to attributes ``min`` and ``max``.

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    largest = float(np.finfo(dtype).max)
    low = np.array(max(call.float_attr("min", -largest), -largest), dtype)
    high = np.array(min(call.float_attr("max", largest), largest), dtype)
    return elementwise(call, lambda x, out: clip(x, low, high, out))


@kernel("Clip", "T T? T?", since=11, dtypes=NUMERIC)
def _clip(call: Call) -> Prepared:
    """Clip (opset 11+) limits elements to inputs of one value each; both may be omitted.

    X[…], min?, max? → Y[…]; numbers of one type. A limit of several values raises KernelShapeError. Run
    allocates nothing.
    """
    spec = call.spec(0)
    for i in (1, 2):
        if call.has(i) and call.spec(i).size != 1:
            raise KernelShapeError(f"Clip: input {i} must be a single value, got shape {call.spec(i).shape}")
    no_low, no_high = lowest(spec.dtype), highest(spec.dtype)
    n = len(call.inputs)

    def bind(x: Array, *rest: Array) -> Bound:
        low = rest[0] if n > 1 and rest[0] is not None else no_low
        high = rest[1] if n > 2 and rest[1] is not None else no_high
        return partial(clip, x, low.reshape(()), high.reshape(()), rest[-1])

    return elementwise(call, run_bound(bind), binder=bind)


@kernel("Dropout", "T", until=11, dtypes=FLOAT, attrs="ratio", max_outputs=2)
def _dropout_inference(call: Call) -> Prepared:
    """Dropout (opsets 7 to 11) passes its input on.

    X[…] → Y[…], mask[…]?; floats. The mask is all True, in X's type before opset 10. Run allocates nothing.
    """
    return _dropout_off(call, BOOL if call.version >= 10 else call.spec(0).dtype)


@kernel(
    "Dropout", "T U? B?", since=12, dtypes=FLOAT, dtypes2=FLOAT, attrs="seed", max_outputs=2, needs=(1, 2)
)
def _dropout(call: Call) -> Prepared:
    """Dropout (opset 12+) passes its input on, or zeroes a share ``ratio`` of it in training mode.

    X[…], ratio?, training? → Y[…], mask[…]?; floats, mask bool. Training needs ``seed`` (else
    KernelAttributeError): the first run draws what the ONNX reference draws, later runs continue the stream.
    A ratio outside of [0, 1) raises KernelShapeError. Run allocates nothing in inference, two tensors like X
    (float64, bool) in training.
    """
    training = call.constant(2)
    known = call.constant(1)
    ratio = 0.5 if known is None else float(known.reshape(()))
    if training is None or not bool(training.reshape(())) or ratio == 0.0:
        return _dropout_off(call, BOOL)
    if not 0.0 < ratio < 1.0:
        raise KernelShapeError(f"Dropout: ratio must be in [0, 1), got {ratio}")
    if "seed" not in call.attrs:
        raise KernelAttributeError(
            "Dropout: training mode needs the seed attribute; there is no hidden entropy here"
        )
    stream = np.random.RandomState(call.int_attr("seed") & 0xFFFFFFFF)
    spec, n = call.spec(0), len(call.inputs)
    scale = np.array(1.0 / (1.0 - ratio), spec.dtype)

    def run(x: Array, *rest: Array) -> None:
        out, mask = rest[n - 1], rest[n] if call.n_outputs > 1 else None
        keep = stream.uniform(0.0, 1.0, spec.shape) >= ratio
        np.multiply(x, scale, out)
        np.multiply(out, keep, out)
        if mask is not None:
            np.copyto(mask, keep)

    return Prepared((spec, TensorSpec(BOOL, spec.shape))[: call.n_outputs], run, inplace=(0,))


def _dropout_off(call: Call, mask_dtype: Dtype) -> Prepared:
    """Return a Dropout of inference: a copy of the input, and a mask that is all True."""
    spec, n = call.spec(0), len(call.inputs)

    def run(x: Array, *rest: Array) -> None:
        np.copyto(rest[n - 1], x)
        if call.n_outputs > 1 and rest[n] is not None:
            rest[n].fill(1)

    outputs = (spec, TensorSpec(mask_dtype, spec.shape))[: call.n_outputs]
    return Prepared(outputs, run, inplace=(0,), alias=(lambda x: x) if call.n_outputs == 1 else None)


@kernel("BitCast", "T", since=26, attrs="to")
def _bit_cast(call: Call) -> Prepared:
    """BitCast (opset 26+) reads the same bits as another element type of the same width.

    X[…] → Y[…]; any type. A type of another width raises UnsupportedDtypeError. Run allocates nothing.
    """
    spec, dtype = call.spec(0), dtype_of(call, call.int_attr("to"))
    if dtype.itemsize != spec.dtype.itemsize:
        raise UnsupportedDtypeError(f"BitCast: {spec.dtype} and {dtype} differ in width")
    return Prepared(
        (TensorSpec(dtype, spec.shape),),
        lambda x, out: np.copyto(out, x.view(dtype)),
        alias=lambda x: x.view(dtype),
    )
