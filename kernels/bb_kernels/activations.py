"""Activation functions: element by element, of one tensor, with constants from attributes."""

from __future__ import annotations

from functools import partial

import numpy as np

from .erf import Erf
from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import elementwise, require_broadcast_to
from .spec import BOOL, F64, FLOAT, NUMERIC, SIGNED, Array, Dtype, Prepared, Run, TensorSpec
from .ufuncs import clip, highest, scalar


@kernel("Erf", "T", since=9, dtypes=FLOAT, half=True)
def _erf(call: Call) -> Prepared:
    """Erf (opset 9+) computes the error function of each element.

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    erf = Erf(call.spec(0).dtype)
    return _pieces(call, erf, erf.scratch)


@kernel("Gelu", "T", since=20, dtypes=FLOAT, half=True, attrs="approximate")
def _gelu(call: Call) -> Prepared:
    """Gelu (opset 20+) multiplies x by the normal distribution's probability of a value below x.

    X[…] → Y[…]; floats (float16 via float32). ``approximate``: "none" goes through erf, "tanh" through the
    usual approximation; another value raises KernelAttributeError. Run allocates nothing.
    """
    spec = call.spec(0)
    half = scalar(0.5, spec.dtype)
    if call.str_attr("approximate", "none", ("none", "tanh")) == "none":
        erf, root = Erf(spec.dtype), scalar(0.5**0.5, spec.dtype)

        def run(x: Array, out: Array, e: Array, s: Array, *temps: Array) -> None:
            np.multiply(x, root, e)
            erf(e, e, s, *temps)
            np.multiply(x, half, s)
            np.multiply(s, e, e)
            np.add(s, e, out)

        return _pieces(call, run, 1 + erf.scratch)
    a, b = scalar((2.0 / np.pi) ** 0.5, spec.dtype), scalar(0.044715 * (2.0 / np.pi) ** 0.5, spec.dtype)

    def run_tanh(x: Array, out: Array, s: Array) -> None:
        np.square(x, s)
        np.multiply(s, b, s)
        np.add(s, a, s)
        np.multiply(s, x, s)
        np.tanh(s, s)
        np.multiply(x, half, out)
        np.multiply(s, out, s)
        np.add(s, out, out)

    return elementwise(call, run_tanh, (spec,))


@kernel("Relu", "T", dtypes=FLOAT | SIGNED)
def _relu(call: Call) -> Prepared:
    """Relu (opset 7+) replaces negative elements by 0 and keeps NaN.

    X[…] → Y[…]; floats and signed integers. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    zero, top = scalar(0, dtype), highest(dtype)
    # The ufunc itself, with its bounds, is the bound step: one C call.
    return elementwise(
        call, lambda x, out: clip(x, zero, top, out), binder=lambda x, out: partial(clip, x, zero, top, out)
    )


@kernel("LeakyRelu", "T", dtypes=FLOAT, attrs="alpha")
def _leaky_relu(call: Call) -> Prepared:
    """LeakyRelu (opset 7+) multiplies negative elements by ``alpha`` (default 0.01).

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    spec = call.spec(0)
    alpha = call.float_attr("alpha", 0.01)
    slope = scalar(alpha, spec.dtype)
    pick = np.maximum if alpha <= 1.0 else np.minimum  # the branch of the two lines through 0 that applies

    def run(x: Array, out: Array, s: Array) -> None:
        np.multiply(x, slope, s)
        pick(x, s, out=out)

    return elementwise(call, run, (spec,))


@kernel("Sigmoid", "T", dtypes=FLOAT)
def _sigmoid(call: Call) -> Prepared:
    """Sigmoid (opset 7+) computes 1/(1+exp(-x)).

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    return elementwise(call, Sigmoid(call.spec(0).dtype))


class Sigmoid:
    """The logistic function 1/(1+exp(-x)) on arrays of one float type.

    exp may overflow to inf, whose reciprocal is the right answer.
    """

    def __init__(self, dtype: Dtype) -> None:
        """Keep the number 1 in the element type."""
        self.unit = scalar(1.0, dtype)

    def __call__(self, x: Array, out: Array) -> None:
        """Compute the sigmoid of ``x`` into ``out``, which may be ``x`` itself; allocates nothing."""
        np.negative(x, out)
        np.exp(out, out)
        np.add(out, self.unit, out)
        np.divide(self.unit, out, out)


def _pieces(call: Call, run: Run, scratch: int) -> Prepared:
    """Return an activation that needs ``scratch`` arrays like its input."""
    spec = call.spec(0)
    return elementwise(call, run, (spec,) * scratch)


def _elu_like(call: Call, alpha: float, gamma: float, rate: float) -> Prepared:
    """Return the activation gamma·x for x > 0 and gamma·alpha·(exp(x/rate)-1) below."""
    dtype = call.spec(0).dtype
    zero, factor = scalar(0, dtype), scalar(gamma * alpha, dtype)
    outer, inner = scalar(gamma, dtype), scalar(1.0 / rate, dtype)

    def run(x: Array, out: Array, s: Array) -> None:
        np.minimum(x, zero, out=s)
        if rate != 1.0:
            np.multiply(s, inner, s)
        np.expm1(s, s)
        np.multiply(s, factor, s)
        np.maximum(x, zero, out=out)
        if gamma != 1.0:
            np.multiply(out, outer, out)
        np.add(out, s, out)

    return _pieces(call, run, 1)


@kernel("Elu", "T", dtypes=FLOAT, half=True, attrs="alpha")
def _elu(call: Call) -> Prepared:
    """Elu (opset 7+) computes alpha·(exp(x)-1) for negative x and keeps the rest.

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    return _elu_like(call, call.float_attr("alpha", 1.0), 1.0, 1.0)


@kernel("Selu", "T", dtypes=FLOAT, half=True, attrs="alpha gamma")
def _selu(call: Call) -> Prepared:
    """Selu (opset 7+) computes gamma·x for positive x and gamma·alpha·(exp(x)-1) for the rest.

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    alpha = call.float_attr("alpha", 1.67326319217681884765625)
    return _elu_like(call, alpha, call.float_attr("gamma", 1.05070102214813232421875), 1.0)


@kernel("Celu", "T", since=12, dtypes=FLOAT, half=True, attrs="alpha")
def _celu(call: Call) -> Prepared:
    """Celu (opset 12+) computes alpha·(exp(x/alpha)-1) for negative x and keeps the rest.

    X[…] → Y[…]; floats (float16 via float32). alpha = 0 raises KernelAttributeError. Run allocates nothing.
    """
    alpha = call.float_attr("alpha", 1.0)
    if alpha == 0.0:
        raise KernelAttributeError("Celu: alpha must not be 0")
    return _elu_like(call, alpha, 1.0, alpha)


@kernel("PRelu", "T T", dtypes=NUMERIC)
def _prelu(call: Call) -> Prepared:
    """PRelu (opset 7+) multiplies negative elements by a slope that is an input.

    X[…], slope → Y[…]; numbers of one type. A slope that does not broadcast to X raises KernelShapeError. Run
    allocates nothing.
    """
    x = call.spec(0)
    require_broadcast_to(call, call.spec(1).shape, x.shape)
    zero = scalar(0, x.dtype)

    def run(data: Array, slope: Array, out: Array, s: Array) -> None:
        np.minimum(data, zero, out=s)
        np.multiply(s, slope, s)
        np.maximum(data, zero, out=out)
        np.add(out, s, out)

    return _pieces(call, run, 1)


@kernel("ThresholdedRelu", "T", since=10, dtypes=FLOAT, attrs="alpha")
def _thresholded_relu(call: Call) -> Prepared:
    """ThresholdedRelu (opset 10+) keeps elements above ``alpha`` (default 1) and replaces the rest by 0.

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    spec = call.spec(0)
    alpha = scalar(call.float_attr("alpha", 1.0), spec.dtype)

    def run(x: Array, out: Array, mask: Array) -> None:
        np.greater(x, alpha, mask)
        np.logical_not(mask, mask)  # not less_equal: NaN is not above alpha, and becomes 0
        np.copyto(out, x)
        np.putmask(out, mask, 0)  # not a product: infinity times 0 is not a number

    return elementwise(call, run, (TensorSpec(BOOL, spec.shape),))


def _line_within(x: Array, slope: Array, offset: Array, low: Array, high: Array, out: Array) -> None:
    """Compute slope·x + offset, limited to [low, high], into ``out``, which may be ``x``."""
    np.multiply(x, slope, out)
    np.add(out, offset, out)
    clip(out, low, high, out)


@kernel("HardSigmoid", "T", dtypes=FLOAT, attrs="alpha beta")
def _hard_sigmoid(call: Call) -> Prepared:
    """HardSigmoid (opset 7+) computes alpha·x + beta, limited to [0, 1].

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    a, b = scalar(call.float_attr("alpha", 0.2), dtype), scalar(call.float_attr("beta", 0.5), dtype)
    low, high = scalar(0, dtype), scalar(1, dtype)
    return elementwise(call, lambda x, out: _line_within(x, a, b, low, high, out))


@kernel("HardSwish", "T", since=14, dtypes=FLOAT)
def _hard_swish(call: Call) -> Prepared:
    """HardSwish (opset 14+) multiplies x by x/6 + 1/2, limited to [0, 1].

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    a, b, low, high = (scalar(v, dtype) for v in (1.0 / 6.0, 0.5, 0.0, 1.0))

    def run(x: Array, out: Array, s: Array) -> None:
        _line_within(x, a, b, low, high, s)
        np.multiply(x, s, out)

    return _pieces(call, run, 1)


def _softplus_into(x: Array, zero: Array, out: Array, s: Array) -> None:
    """Compute log(1+exp(x)) as max(x,0) + log(1+exp(-|x|)), which cannot overflow."""
    np.absolute(x, s)
    np.negative(s, s)
    np.exp(s, s)
    np.log1p(s, s)
    np.maximum(x, zero, out=out)
    np.add(out, s, out)


@kernel("Softplus", "T", dtypes=FLOAT, half=True)
def _softplus(call: Call) -> Prepared:
    """Softplus (opset 7+) computes log(1+exp(x)).

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    zero = scalar(0, call.spec(0).dtype)
    return _pieces(call, lambda x, out, s: _softplus_into(x, zero, out, s), 1)


@kernel("Softsign", "T", dtypes=FLOAT)
def _softsign(call: Call) -> Prepared:
    """Softsign (opset 7+) computes x/(1+|x|).

    X[…] → Y[…]; floats. Run allocates nothing.
    """
    unit = scalar(1, call.spec(0).dtype)

    def run(x: Array, out: Array, s: Array) -> None:
        np.absolute(x, s)
        np.add(s, unit, s)
        np.divide(x, s, out)

    return _pieces(call, run, 1)


@kernel("Mish", "T", since=18, dtypes=FLOAT, half=True)
def _mish(call: Call) -> Prepared:
    """Mish (opset 18+) computes x·tanh(log(1+exp(x))).

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    zero = scalar(0, call.spec(0).dtype)

    def run(x: Array, out: Array, s: Array, t: Array) -> None:
        _softplus_into(x, zero, t, s)
        np.tanh(t, t)
        np.multiply(x, t, out)

    return _pieces(call, run, 2)


def _swish_into(x: Array, alpha: Array, sigmoid: Sigmoid, out: Array, s: Array) -> None:
    """Compute x·sigmoid(alpha·x) into ``out``.

    ``s`` is scratch and must not be ``x``; ``out`` may be ``s``.
    """
    np.multiply(x, alpha, s)
    sigmoid(s, s)
    np.multiply(x, s, out)


@kernel("Swish", "T", since=24, dtypes=FLOAT, half=True, attrs="alpha")
def _swish(call: Call) -> Prepared:
    """Swish (opset 24+) computes x·sigmoid(alpha·x).

    X[…] → Y[…]; floats (float16 via float32). Run allocates nothing.
    """
    dtype = call.spec(0).dtype
    alpha, sigmoid = scalar(call.float_attr("alpha", 1.0), dtype), Sigmoid(dtype)
    return _pieces(call, lambda x, out, s: _swish_into(x, alpha, sigmoid, out, s), 1)


@kernel("SwiGLU", "T T", since=28, dtypes=FLOAT, half=True, attrs="alpha")
def _swiglu(call: Call) -> Prepared:
    """SwiGLU (opset 28+) multiplies the Swish of a gate by a value.

    gate[…], value[…] → Y[…]; floats (float16 via float32). Inputs of different shapes raise KernelShapeError.
    Run allocates nothing.
    """
    spec = call.spec(0)
    if call.spec(1) != spec:
        raise KernelShapeError(f"SwiGLU: gate {spec.shape} and value {call.spec(1).shape} differ in shape")
    alpha, sigmoid = scalar(call.float_attr("alpha", 1.0), spec.dtype), Sigmoid(spec.dtype)

    def run(gate: Array, value: Array, out: Array, s: Array) -> None:
        _swish_into(gate, alpha, sigmoid, s, s)
        np.multiply(s, value, out)

    return Prepared((spec,), run, (spec,))


@kernel("Shrink", "T", since=9, dtypes=NUMERIC, attrs="bias lambd")
def _shrink(call: Call) -> Prepared:
    """Shrink (opset 9+) adds ``bias`` below -``lambd``, subtracts it above ``lambd``, and writes 0 between.

    X[…] → Y[…]; numbers (integers via float64, truncated). Run allocates nothing.
    """
    spec = call.spec(0)
    wide = spec.dtype if spec.dtype in FLOAT else F64
    bias, edge = scalar(call.float_attr("bias", 0.0), wide), scalar(call.float_attr("lambd", 0.5), wide)
    lower_edge = np.negative(edge)

    def run(x: Array, out: Array, shifted: Array, mask: Array) -> None:
        np.subtract(x, bias, shifted)
        np.greater(x, edge, mask)
        np.logical_not(mask, mask)  # not less_equal: NaN is above no edge, and becomes 0
        np.putmask(shifted, mask, 0)  # twice as fast as copyto with a mask
        np.less(x, lower_edge, mask)
        np.logical_not(mask, mask)
        np.add(x, bias, out, casting="unsafe")
        if wide == spec.dtype:
            np.putmask(out, mask, shifted)
        else:
            np.copyto(out, shifted, where=mask, casting="unsafe")

    return elementwise(call, run, (TensorSpec(wide, spec.shape), TensorSpec(BOOL, spec.shape)))
