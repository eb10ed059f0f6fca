"""Arithmetic, comparison, logic and selection, element by element over two or more tensors.

All operators here broadcast by NumPy's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .errors import UnsupportedDtypeError
from .registry import Call, kernel
from .shapes import broadcast, same_as
from .spec import (
    ALL,
    BOOL,
    FLOAT,
    INTEGER,
    NUMERIC,
    SIGNED,
    UNSIGNED,
    Array,
    Bound,
    Dtype,
    Prepared,
    Run,
    TensorSpec,
    Ufunc,
)
from .ufuncs import min_reduce


def _binary(
    call: Call, run: Run, dtype: Dtype | None = None, scratch: tuple[TensorSpec, ...] = ()
) -> Prepared:
    """Return a kernel of two broadcast inputs; ``dtype`` is the result's, by default that of input 0."""
    a, b = call.spec(0), call.spec(1)
    out = TensorSpec(a.dtype if dtype is None else dtype, broadcast(call, a.shape, b.shape))
    lift = isinstance(run, np.ufunc) and len(a.shape) != len(b.shape) and a.shape != () and b.shape != ()
    return Prepared((out,), run, scratch, inplace=same_as(call, out), binder=_lifted(run) if lift else None)


def _lifted(ufunc: Ufunc) -> Callable[..., Bound]:
    """Return a binder over views of equal rank, which NumPy adds three times faster where they are small."""

    def bind(a: Array, b: Array, out: Array) -> Bound:
        rank = out.ndim
        a2, b2 = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
        return partial(ufunc, a2, b2, out)

    return bind


def _register_ufunc(
    op_type: str, ufunc: Ufunc, dtypes: frozenset[Dtype], result: Dtype | None = None, since: int = 7
) -> None:
    """Register an operator of two inputs that is one NumPy function."""

    # The ufunc itself is the run function: a plan step is one C call.
    @kernel(op_type, "T T", since=since, dtypes=dtypes)
    def build(call: Call) -> Prepared:
        """These operators apply one NumPy function to two broadcast inputs: A, B → C.

        opset 7+: Add, Sub, Mul (numbers), And, Or, Xor (bool), Equal (all types, result bool), Greater, Less
        (numbers, result bool); opset 12+: GreaterOrEqual, LessOrEqual (numbers, result bool); opset 18+:
        BitwiseAnd, BitwiseOr, BitwiseXor (integers). Shapes that do not broadcast raise KernelShapeError. Run
        allocates nothing.
        """
        return _binary(call, ufunc, result)


_op: str
_ufunc: Ufunc
for _op, _ufunc in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)):
    _register_ufunc(_op, _ufunc, NUMERIC)
for _op, _ufunc in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
    _register_ufunc(_op, _ufunc, frozenset({BOOL}))
_register_ufunc("Equal", np.equal, ALL, BOOL)
for _op, _ufunc in (("Greater", np.greater), ("Less", np.less)):
    _register_ufunc(_op, _ufunc, NUMERIC, BOOL)
for _op, _ufunc in (
    ("BitwiseAnd", np.bitwise_and),
    ("BitwiseOr", np.bitwise_or),
    ("BitwiseXor", np.bitwise_xor),
):
    _register_ufunc(_op, _ufunc, INTEGER, since=18)
for _op, _ufunc in (("GreaterOrEqual", np.greater_equal), ("LessOrEqual", np.less_equal)):
    _register_ufunc(_op, _ufunc, NUMERIC, BOOL, since=12)


@kernel("BitShift", "T T", since=11, dtypes=INTEGER, attrs="direction")
def _bit_shift(call: Call) -> Prepared:
    """BitShift (opset 11+) shifts the bits of A by B places to the side that ``direction`` names.

    A, B → C, broadcast; integers. A direction other than LEFT or RIGHT raises KernelAttributeError. Run
    allocates nothing.
    """
    left = call.str_attr("direction", choices=("LEFT", "RIGHT")) == "LEFT"
    return _binary(call, np.left_shift if left else np.right_shift)


@kernel("Div", "T T", dtypes=NUMERIC)
def _div(call: Call) -> Prepared:
    """Div (opset 7+) divides; integers round towards zero as in C, where NumPy rounds down.

    A, B → C, broadcast; numbers of one type. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    if dtype in FLOAT:
        return _binary(call, np.true_divide)
    if dtype in UNSIGNED:
        return _binary(call, np.floor_divide)
    out = TensorSpec(dtype, broadcast(call, call.spec(0).shape, call.spec(1).shape))

    def run(a: Array, b: Array, result: Array, rest: Array) -> None:
        np.fmod(a, b, rest)
        np.subtract(a, rest, rest)  # exactly divisible now, so that rounding down changes nothing
        np.floor_divide(rest, b, result)

    return _binary(call, run, scratch=(out,))


@kernel("Mod", "T T", since=10, dtypes=NUMERIC, attrs="fmod")
def _mod(call: Call) -> Prepared:
    """Mod (opset 10+) computes the rest of a division, signed like the divisor or (``fmod``=1) the dividend.

    A, B → C, broadcast; numbers of one type. Floats with fmod=0 raise UnsupportedDtypeError before opset 28.
    Run allocates nothing.
    """
    c_like = call.int_attr("fmod", 0) == 1
    if not c_like and call.version < 28 and call.spec(0).dtype in FLOAT:
        raise UnsupportedDtypeError("Mod: before opset 28 floating point inputs need the attribute fmod=1")
    return _binary(call, np.fmod if c_like else np.remainder)


@kernel("Pow", "T U", dtypes=NUMERIC, dtypes2=NUMERIC)
def _pow(call: Call) -> Prepared:
    """Pow (opset 7+) raises a base to a power; the result has the base's type.

    A, B → C, broadcast; numbers, whose types may differ (via float64 where an integer exponent could be
    negative). Constant exponents 2, 3, 0.5, -1 and 1 become products and roots. Run allocates nothing, except
    float64 copies where an integer base meets negative exponents of its type that only the run knows.
    """
    base, exponent = call.spec(0), call.spec(1)
    known = call.constant(1)
    if known is not None and known.size == 1 and exponent.size == 1 and base.dtype in FLOAT:
        special = _POWERS.get(float(known.reshape(())))
        if special is not None and len(exponent.shape) <= len(base.shape):
            prepared = _binary(call, special)
            # A cube reads x after it has written the output, so the output never takes x's memory.
            return prepared._replace(inplace=()) if special is _cube else prepared
    if exponent.dtype == base.dtype and base.dtype not in SIGNED:
        return _binary(call, np.power)
    out = TensorSpec(base.dtype, broadcast(call, base.shape, exponent.shape))
    # Mixed types and negative integer exponents go through float64, as the ONNX reference does.
    if base.dtype == exponent.dtype and (known is None or bool((known >= 0).all())):

        def run_same(a: Array, b: Array, result: Array) -> None:
            if known is None and b.size and min_reduce(b, None) < 0:
                np.power(a.astype(np.float64), b, result, casting="unsafe")
            else:
                np.power(a, b, result)

        return _binary(call, run_same)
    wide = np.result_type(base.dtype, exponent.dtype)
    if wide.kind != "f" and exponent.dtype in SIGNED:
        wide = np.dtype(np.float64)

    def run(a: Array, b: Array, result: Array, a2: Array, b2: Array, temp: Array) -> None:
        np.copyto(a2, a, casting="unsafe")
        np.copyto(b2, b, casting="unsafe")
        np.power(a2, b2, temp)
        np.copyto(result, temp, casting="unsafe")

    scratch = tuple(TensorSpec(wide, s) for s in (base.shape, exponent.shape, out.shape))
    return _binary(call, run, scratch=scratch)


def _square(x: Array, _exponent: Array, out: Array) -> None:
    """Compute x² for Pow with the constant 2."""
    np.square(x, out)


def _cube(x: Array, _exponent: Array, out: Array) -> None:
    """Compute x³ for Pow with the constant 3; ``out`` must not be ``x``."""
    np.square(x, out)
    np.multiply(out, x, out)


def _root(x: Array, _exponent: Array, out: Array) -> None:
    """Compute √x for Pow with the constant 0.5."""
    np.sqrt(x, out)


def _inverse(x: Array, _exponent: Array, out: Array) -> None:
    """Compute 1/x for Pow with the constant -1."""
    np.reciprocal(x, out)


def _same(x: Array, _exponent: Array, out: Array) -> None:
    """Copy x for Pow with the constant 1."""
    np.copyto(out, x)


_POWERS: dict[float, Run] = {2.0: _square, 3.0: _cube, 0.5: _root, -1.0: _inverse, 1.0: _same}


def _fold(call: Call, ufunc: Ufunc, finish: Callable[[Array], object] | None = None) -> Prepared:
    """Return a variadic kernel that folds its inputs into the output from the left."""
    n = len(call.inputs)
    out = TensorSpec(call.spec(0).dtype, broadcast(call, *(call.spec(i).shape for i in range(n))))

    def bind(*arrays: Any) -> Bound:
        *inputs, result = arrays

        def run() -> None:
            if n == 1:
                np.copyto(result, inputs[0])
            else:
                ufunc(inputs[0], inputs[1], out=result)
            for later in inputs[2:]:
                ufunc(result, later, out=result)
            if finish is not None:
                finish(result)

        return run

    if n == 2 and finish is None:
        # Not the bare ufunc: NumPy wants the output of maximum and minimum by name.
        return Prepared(
            (out,),
            lambda a, b, result: ufunc(a, b, out=result),
            inplace=same_as(call, out),
            binder=lambda a, b, result: partial(ufunc, a, b, out=result),
        )
    # The output is written before the third and later inputs are read: only the first two may be reused.
    return Prepared((out,), lambda *arrays: bind(*arrays)(), inplace=same_as(call, out, 2), binder=bind)


@kernel("Sum", "T*", dtypes=FLOAT)
def _sum(call: Call) -> Prepared:
    """Sum (opset 7+) adds all of its inputs.

    X1, X2, … → Y, broadcast; floats. Run allocates nothing.
    """
    return _fold(call, np.add)


@kernel("Mean", "T*", dtypes=FLOAT, half=True)
def _mean(call: Call) -> Prepared:
    """Mean (opset 7+) averages its inputs.

    X1, X2, … → Y, broadcast; floats (float16 via float32). Run allocates nothing.
    """
    n = np.array(1.0 / len(call.inputs), call.spec(0).dtype)
    return _fold(call, np.add, lambda result: np.multiply(result, n, result))


@kernel("Min", "T*", dtypes=NUMERIC)
def _min(call: Call) -> Prepared:
    """Min (opset 7+) keeps the smallest element of its inputs; NaN wins.

    X1, X2, … → Y, broadcast; numbers. Run allocates nothing.
    """
    return _fold(call, np.minimum)


@kernel("Max", "T*", dtypes=NUMERIC)
def _max(call: Call) -> Prepared:
    """Max (opset 7+) keeps the largest element of its inputs; NaN wins.

    X1, X2, … → Y, broadcast; numbers. Run allocates nothing.
    """
    return _fold(call, np.maximum)


#: Elements from which on Where works on bits (measured: 3 times as fast at 2,048, 20 times at 65,536).
_BRANCHLESS = 512


@kernel("Where", "B T T", since=9)
def _where(call: Call) -> Prepared:
    """Where (opset 9+) picks from X where the condition holds and from Y elsewhere.

    condition (bool), X, Y → Z, broadcast; any type. Run allocates nothing.
    """
    cond, x, y = call.spec(0), call.spec(1), call.spec(2)
    out = TensorSpec(x.dtype, broadcast(call, cond.shape, x.shape, y.shape))
    if out.size < _BRANCHLESS:

        def run_few(condition: Array, a: Array, b: Array, result: Array) -> None:
            np.copyto(result, b)
            np.copyto(result, a, where=condition)

        # Only the third input may be overwritten: the first copy destroys whatever else lies there.
        return Prepared((out,), run_few, inplace=(2,) if y == out else ())
    bits = np.dtype(f"u{x.dtype.itemsize}")
    nothing = call.constant(2)
    zeros = nothing is not None and nothing.size == 1 and not nothing.reshape(1).view(bits)[0]

    def run(condition: Array, a: Array, b: Array, result: Array) -> None:
        # Bits times 0 or 1: one by one, a processor guesses a branch for each element, and mostly wrongly.
        z, a, b = result.view(bits), a.view(bits), b.view(bits)
        if zeros:
            np.multiply(a, condition, z)
            return
        np.bitwise_xor(a, b, z)
        np.multiply(z, condition, z)
        np.bitwise_xor(z, b, z)

    # Only the second input may be overwritten: the others are read once more.
    return Prepared((out,), run, inplace=(1,) if x == out else ())
