"""Operators that go element by element, with broadcasting: in whichever layout their inputs are."""

from __future__ import annotations

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Region, Rule, Shape, elementwise
from bb_host.tflite.masks import sign
from bb_host.tflite.schema import DTYPES


def _unary(kind: str) -> Rule:
    return elementwise(lambda region, op, x, shape: region.op(kind, [x], shape))


def _together(kind: str, dtype: str = "float32") -> Rule:
    """One operator over all inputs, as many as it has."""

    def rule(region: Region, op: Op) -> None:
        layout = region.layout(op.inputs)
        inputs = [region.read(name, layout) for name in op.inputs]
        region.give(op.outputs[0], region.op(kind, inputs, region.result(op, layout), dtype=dtype), layout)

    return rule


def _binary(kind: str) -> Rule:
    """Two inputs, or a chain of them (Max, Min, Sum)."""

    def rule(region: Region, op: Op) -> None:
        layout = region.layout(op.inputs)
        dtype = region.fact(op.outputs[0]).dtype
        result = region.result(op, layout)
        y = region.read(op.inputs[0], layout)
        if len(op.inputs) == 1:
            y = region.reshaped(y, result)
        for name in op.inputs[1:]:
            if len(op.inputs) > 2 and region.fact(name).shape != region.fact(op.outputs[0]).shape:
                raise NotLowered("more than two inputs, broadcast")
            y = region.op(kind, [y, region.read(name, layout)], result, dtype=dtype)
        if len(op.inputs) > 2 and region.fact(op.inputs[0]).shape != region.fact(op.outputs[0]).shape:
            raise NotLowered("more than two inputs, broadcast")
        region.give(op.outputs[0], y, layout)

    return rule


@elementwise
def _alias(region: Region, op: Op, x: int, shape: Shape) -> int:
    return x


def _mod(region: Region, op: Op) -> None:
    """The rest of the magnitudes, with the sign of the dividend (fmod=1); TFLite's own has the divisor's."""
    if op.integer("fmod", 0) != 1 or region.fact(op.outputs[0]).dtype != "float32":
        raise NotLowered("only floats with fmod=1")
    layout = region.layout(op.inputs)
    shape = region.result(op, layout)
    x, by = (region.read(name, layout) for name in op.inputs)
    sizes = [region.op("ABS", [v], region.graph.shape(v)) for v in (x, by)]
    rest = region.op("FLOOR_MOD", sizes, shape)
    sign = region.op("SIGN", [x], region.graph.shape(x))
    region.give(op.outputs[0], region.op("MUL", [rest, sign], shape), layout)


def _pow(region: Region, op: Op) -> None:
    exponent = region.facts[op.inputs[1]].value
    layout = region.layout(op.inputs)
    shape = region.result(op, layout)
    if region.fact(op.inputs[1]).dtype != "float32":
        raise NotLowered("its exponent is of another type")
    x = region.read(op.inputs[0], layout)
    power = float(exponent.reshape(())) if exponent is not None and exponent.size == 1 else None
    if power == 2.0:
        y = region.op("MUL", [x, x], shape)
    elif power == 3.0:
        y = region.op("MUL", [x, region.op("MUL", [x, x], shape)], shape)
    elif power == 0.5:
        y = region.op("SQRT", [x], shape)
    else:
        y = region.op("POW", [x, region.read(op.inputs[1], layout)], shape)
    region.give(op.outputs[0], y, layout)


@elementwise
def _reciprocal(region: Region, op: Op, x: int, shape: Shape) -> int:
    return region.op("DIV", [region.floats(1), x], shape)


@elementwise
def _clip(region: Region, op: Op, x: int, shape: Shape) -> int:
    if region.version < 11:
        low, high = op.attrs.get("min"), op.attrs.get("max")
    else:
        low, high = region.constant(op, 1), region.constant(op, 2)
    least = -np.inf if low is None else float(np.asarray(low).reshape(()))
    most = np.inf if high is None else float(np.asarray(high).reshape(()))
    if least > most:
        raise NotLowered("its bounds cross")
    if (least, most) == (0.0, 6.0):
        return region.op("RELU6", [x], shape)
    if least == 0.0 and most > 3e38:
        return region.op("RELU", [x], shape)
    y = region.op("MAXIMUM", [x, region.floats(max(least, -3.4e38))], shape)
    return region.op("MINIMUM", [y, region.floats(min(most, 3.4e38))], shape)


@elementwise
def _leaky_relu(region: Region, op: Op, x: int, shape: Shape) -> int:
    return region.op("LEAKY_RELU", [x], shape, alpha=op.number("alpha", 0.01))


@elementwise
def _thresholded_relu(region: Region, op: Op, x: int, shape: Shape) -> int:
    above = region.op("GREATER", [x, region.floats(op.number("alpha", 1.0))], shape, dtype="bool")
    return region.op("SELECT_V2", [above, x, region.floats(0)], shape)


def _exponential(gamma: float, alpha: float) -> Rule:
    """Elu, Selu and Celu: `gamma` · x above zero, `gamma` · `alpha` · (exp(x / celu's alpha) - 1) below."""

    def compute(region: Region, op: Op, x: int, shape: Shape) -> int:
        own, scale = op.number("alpha", alpha), op.number("gamma", gamma)
        if (own, scale) == (1.0, 1.0):
            return region.op("ELU", [x], shape)
        below = region.op("MINIMUM", [x, region.floats(0)], shape)
        if op.op_type == "Celu":
            below = region.op("MUL", [below, region.floats(1 / own)], shape)
        below = region.op("SUB", [region.op("EXP", [below], shape), region.floats(1)], shape)
        below = region.op("MUL", [below, region.floats(scale * own)], shape)
        above = region.op("RELU", [x], shape)
        if scale != 1.0:
            above = region.op("MUL", [above, region.floats(scale)], shape)
        return region.op("ADD", [above, below], shape)

    return elementwise(compute)


@elementwise
def _hard_sigmoid(region: Region, op: Op, x: int, shape: Shape) -> int:
    y = region.op("MUL", [x, region.floats(op.number("alpha", 0.2))], shape)
    y = region.op("ADD", [y, region.floats(op.number("beta", 0.5))], shape)
    y = region.op("MAXIMUM", [y, region.floats(0)], shape)
    return region.op("MINIMUM", [y, region.floats(1)], shape)


def _softplus(region: Region, op: Op, x: int, shape: Shape) -> int:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    least = region.op("NEG", [region.op("ABS", [x], shape)], shape)
    more = region.op("ADD", [region.op("EXP", [least], shape), region.floats(1)], shape)
    return region.op("ADD", [region.op("RELU", [x], shape), region.op("LOG", [more], shape)], shape)


@elementwise
def _mish(region: Region, op: Op, x: int, shape: Shape) -> int:
    return region.op("MUL", [x, region.op("TANH", [_softplus(region, op, x, shape)], shape)], shape)


@elementwise
def _swish(region: Region, op: Op, x: int, shape: Shape) -> int:
    alpha = op.number("alpha", 1.0)
    scaled = x if alpha == 1.0 else region.op("MUL", [x, region.floats(alpha)], shape)
    return region.op("MUL", [x, region.op("LOGISTIC", [scaled], shape)], shape)


def _prelu(region: Region, op: Op) -> None:
    if region.fact(op.inputs[1]).value is not None:
        _together("PRELU")(region, op)
        return
    layout = region.layout(op.inputs)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    below = region.op("MINIMUM", [x, region.floats(0)], shape)
    below = region.op("MUL", [below, region.read(op.inputs[1], layout)], shape)
    y = region.op("ADD", [region.op("RELU", [x], shape), below], shape)
    region.give(op.outputs[0], y, layout)


@elementwise
def _gelu(region: Region, op: Op, x: int, shape: Shape) -> int:
    return region.op("GELU", [x], shape, approximate=op.text("approximate", "none") == "tanh")


@elementwise
def _erf(region: Region, op: Op, x: int, shape: Shape) -> int:
    """Abramowitz and Stegun's 7.1.26, within 1.5e-7: 1 - a polynomial of 1 / (1 + p |x|) times exp(-x²)."""

    def number(kind: str, a: int, b: float) -> int:
        return region.op(kind, [a, region.floats(b)], shape)

    away = number("ADD", number("MUL", region.op("ABS", [x], shape), 0.3275911), 1.0)
    t = region.op("DIV", [region.floats(1), away], shape)
    total = number("ADD", number("MUL", t, 1.061405429), -1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        total = number("ADD", region.op("MUL", [total, t], shape), factor)
    bell = region.op("EXP", [number("MUL", region.op("MUL", [x, x], shape), -1.0)], shape)
    total = region.op("MUL", [region.op("MUL", [total, t], shape), bell], shape)
    y = region.op("SUB", [region.floats(1), total], shape)
    return region.op("MUL", [y, sign(region, x)], shape)


def _where(region: Region, op: Op) -> None:
    if region.fact(op.outputs[0]).dtype != "float32":
        raise NotLowered(f"it chooses {region.fact(op.outputs[0]).dtype}")
    _together("SELECT_V2")(region, op)


_CASTS = {
    ("bool", "float32"), ("float32", "float32"), ("float32", "int32"), ("float32", "int64"),
    ("int32", "float32"), ("int32", "int64"), ("int64", "float32"), ("int64", "int32"),
}  # fmt: skip


def _cast(region: Region, op: Op) -> None:
    source, result = region.fact(op.inputs[0]).dtype, region.fact(op.outputs[0]).dtype
    if (source, result) not in _CASTS:
        raise NotLowered(f"{source} to {result}")
    if source == result:
        _alias(region, op)
        return
    layout = region.layout(op.inputs)
    number = region.read_number(op.inputs[0], layout)
    if number is not None and result == "float32":
        region.give(op.outputs[0], number, layout)
        return
    x = region.read(op.inputs[0], layout)
    options = {"in_type": DTYPES[source], "out_type": DTYPES[result]}
    y = region.op("CAST", [x], region.result(op, layout), dtype=result, **options)
    region.give(op.outputs[0], y, layout)


RULES: dict[str, Rule] = {
    "Abs": _unary("ABS"),
    "Add": _binary("ADD"),
    "And": _together("LOGICAL_AND", "bool"),
    "Cast": _cast,
    "Ceil": _unary("CEIL"),
    "Celu": _exponential(1.0, 1.0),
    "Clip": _clip,
    "Cos": _unary("COS"),
    "Div": _binary("DIV"),
    "Elu": _exponential(1.0, 1.0),
    "Equal": _binary("EQUAL"),
    "Erf": _erf,
    "Exp": _unary("EXP"),
    "Floor": _unary("FLOOR"),
    "Gelu": _gelu,
    "Greater": _binary("GREATER"),
    "GreaterOrEqual": _binary("GREATER_EQUAL"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary("HARD_SWISH"),
    "Identity": _alias,
    "LeakyRelu": _leaky_relu,
    "Less": _binary("LESS"),
    "LessOrEqual": _binary("LESS_EQUAL"),
    "Log": _unary("LOG"),
    "Max": _binary("MAXIMUM"),
    "Min": _binary("MINIMUM"),
    "Mish": _mish,
    "Mod": _mod,
    "Mul": _binary("MUL"),
    "Neg": _unary("NEG"),
    "Not": _together("LOGICAL_NOT", "bool"),
    "Or": _together("LOGICAL_OR", "bool"),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Relu": _unary("RELU"),
    "Round": _unary("ROUND"),
    "Selu": _exponential(1.0507009873554805, 1.6732632423543772),
    "Sigmoid": _unary("LOGISTIC"),
    "Sign": _unary("SIGN"),
    "Sin": _unary("SIN"),
    "Softplus": elementwise(_softplus),
    "Sqrt": _unary("SQRT"),
    "Sub": _binary("SUB"),
    "Sum": _binary("ADD"),
    "Swish": _swish,
    "Tanh": _unary("TANH"),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
}
