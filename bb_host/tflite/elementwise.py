"""Operators that go element by element, with broadcasting: in whichever layout their inputs are."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Region
from bb_host.tflite.masks import sign
from bb_host.tflite.schema import DTYPES, NONE


def _unary(kind: str) -> Any:
    def rule(region: Region, op: Op) -> None:
        layout = region.layout(op.inputs[:1])
        y = region.op(kind, [region.read(op.inputs[0], layout)], region.result(op, layout))
        region.give(op.outputs[0], y, layout)

    return rule


def _binary(kind: str, **options: int) -> Any:
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
            y = region.op(kind, [y, region.read(name, layout)], result, dtype=dtype, **options)
        if len(op.inputs) > 2 and region.fact(op.inputs[0]).shape != region.fact(op.outputs[0]).shape:
            raise NotLowered("more than two inputs, broadcast")
        region.give(op.outputs[0], y, layout)

    return rule


def _alias(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs[:1])
    region.give(op.outputs[0], region.read(op.inputs[0], layout), layout)


def _pow(region: Region, op: Op) -> None:
    exponent = region.facts[op.inputs[1]].value
    layout = region.layout(op.inputs)
    shape = region.result(op, layout)
    if region.fact(op.inputs[1]).dtype != "float32":
        raise NotLowered("its exponent is of another type")
    x = region.read(op.inputs[0], layout)
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 2.0:
        y = region.op("MUL", [x, x], shape, act=NONE)
    elif exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 3.0:
        y = region.op("MUL", [x, region.op("MUL", [x, x], shape, act=NONE)], shape, act=NONE)
    elif exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 0.5:
        y = region.op("SQRT", [x], shape)
    else:
        y = region.op("POW", [x, region.read(op.inputs[1], layout)], shape)
    region.give(op.outputs[0], y, layout)


def _reciprocal(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    x = region.read(op.inputs[0], layout)
    region.give(
        op.outputs[0], region.op("DIV", [region.floats(1), x], region.result(op, layout), act=NONE), layout
    )


def _clip(region: Region, op: Op) -> None:
    if region.version < 11:
        low, high = op.attrs.get("min"), op.attrs.get("max")
    else:
        low, high = region.constant(op, 1), region.constant(op, 2)
    least = -np.inf if low is None else float(np.asarray(low).reshape(()))
    most = np.inf if high is None else float(np.asarray(high).reshape(()))
    if least > most:
        raise NotLowered("its bounds cross")
    layout = region.layout(op.inputs[:1])
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    if (least, most) == (0.0, 6.0):
        y = region.op("RELU6", [x], shape)
    elif least == 0.0 and most > 3e38:
        y = region.op("RELU", [x], shape)
    else:
        y = region.op("MAXIMUM", [x, region.floats(max(least, -3.4e38))], shape)
        y = region.op("MINIMUM", [y, region.floats(min(most, 3.4e38))], shape)
    region.give(op.outputs[0], y, layout)


def _leaky_relu(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    alpha = float(cast("float", op.attrs.get("alpha", 0.01)))
    y = region.op("LEAKY_RELU", [region.read(op.inputs[0], layout)], region.result(op, layout), alpha=alpha)
    region.give(op.outputs[0], y, layout)


def _thresholded_relu(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    alpha = float(cast("float", op.attrs.get("alpha", 1.0)))
    above = region.op("GREATER", [x, region.floats(alpha)], shape, dtype="bool")
    region.give(op.outputs[0], region.op("SELECT_V2", [above, x, region.floats(0)], shape), layout)


def _exponential(gamma: float, alpha: float) -> Any:
    """Elu, Selu and Celu: `gamma` · x above zero, `gamma` · `alpha` · (exp(x / celu's alpha) - 1) below."""

    def rule(region: Region, op: Op) -> None:
        own = float(cast("float", op.attrs.get("alpha", alpha)))
        scale = float(cast("float", op.attrs.get("gamma", gamma)))
        if (own, scale) == (1.0, 1.0):
            _unary("ELU")(region, op)
            return
        layout = region.layout(op.inputs)
        x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
        below = region.op("MINIMUM", [x, region.floats(0)], shape)
        if op.op_type == "Celu":
            below = region.op("MUL", [below, region.floats(1 / own)], shape, act=NONE)
        below = region.op("SUB", [region.op("EXP", [below], shape), region.floats(1)], shape, act=NONE)
        below = region.op("MUL", [below, region.floats(scale * own)], shape, act=NONE)
        above = region.op("RELU", [x], shape)
        if scale != 1.0:
            above = region.op("MUL", [above, region.floats(scale)], shape, act=NONE)
        region.give(op.outputs[0], region.op("ADD", [above, below], shape, act=NONE), layout)

    return rule


def _hard_sigmoid(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    shape = region.result(op, layout)
    alpha = float(cast("float", op.attrs.get("alpha", 0.2)))
    beta = float(cast("float", op.attrs.get("beta", 0.5)))
    y = region.op("MUL", [region.read(op.inputs[0], layout), region.floats(alpha)], shape, act=NONE)
    y = region.op("ADD", [y, region.floats(beta)], shape, act=NONE)
    y = region.op("MAXIMUM", [y, region.floats(0)], shape)
    region.give(op.outputs[0], region.op("MINIMUM", [y, region.floats(1)], shape), layout)


def _softplus(region: Region, op: Op) -> tuple[int, str]:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow; its layout."""
    layout = region.layout(op.inputs)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    least = region.op("NEG", [region.op("ABS", [x], shape)], shape)
    more = region.op("ADD", [region.op("EXP", [least], shape), region.floats(1)], shape, act=NONE)
    y = region.op("ADD", [region.op("RELU", [x], shape), region.op("LOG", [more], shape)], shape, act=NONE)
    return y, layout


def _soft(region: Region, op: Op) -> None:
    y, layout = _softplus(region, op)
    region.give(op.outputs[0], y, layout)


def _mish(region: Region, op: Op) -> None:
    y, layout = _softplus(region, op)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    y = region.op("MUL", [x, region.op("TANH", [y], shape)], shape, act=NONE)
    region.give(op.outputs[0], y, layout)


def _swish(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
    alpha = float(cast("float", op.attrs.get("alpha", 1.0)))
    scaled = x if alpha == 1.0 else region.op("MUL", [x, region.floats(alpha)], shape, act=NONE)
    y = region.op("MUL", [x, region.op("LOGISTIC", [scaled], shape)], shape, act=NONE)
    region.give(op.outputs[0], y, layout)


def _prelu(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    if region.fact(op.inputs[1]).value is None:
        x, shape = region.read(op.inputs[0], layout), region.result(op, layout)
        below = region.op("MINIMUM", [x, region.floats(0)], shape)
        below = region.op("MUL", [below, region.read(op.inputs[1], layout)], shape, act=NONE)
        y = region.op("ADD", [region.op("RELU", [x], shape), below], shape, act=NONE)
        region.give(op.outputs[0], y, layout)
        return
    inputs = [region.read(name, layout) for name in op.inputs]
    region.give(op.outputs[0], region.op("PRELU", inputs, region.result(op, layout)), layout)


def _gelu(region: Region, op: Op) -> None:
    layout = region.layout(op.inputs)
    near = cast("bytes", op.attrs.get("approximate", b"none")) == b"tanh"
    y = region.op("GELU", [region.read(op.inputs[0], layout)], region.result(op, layout), approximate=near)
    region.give(op.outputs[0], y, layout)


def _erf(region: Region, op: Op) -> None:
    """Abramowitz and Stegun's 7.1.26, within 1.5e-7: 1 - a polynomial of 1 / (1 + p |x|) times exp(-x²)."""
    layout = region.layout(op.inputs)
    x, shape = region.read(op.inputs[0], layout), region.result(op, layout)

    def number(kind: str, a: int, b: float) -> int:
        return region.op(kind, [a, region.floats(b)], shape, act=NONE)

    away = number("ADD", number("MUL", region.op("ABS", [x], shape), 0.3275911), 1.0)
    t = region.op("DIV", [region.floats(1), away], shape, act=NONE)
    total = number("ADD", number("MUL", t, 1.061405429), -1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        total = number("ADD", region.op("MUL", [total, t], shape, act=NONE), factor)
    bell = region.op("EXP", [number("MUL", region.op("MUL", [x, x], shape, act=NONE), -1.0)], shape)
    total = region.op("MUL", [region.op("MUL", [total, t], shape, act=NONE), bell], shape, act=NONE)
    y = region.op("SUB", [region.floats(1), total], shape, act=NONE)
    y = region.op("MUL", [y, sign(region, x)], shape, act=NONE)
    region.give(op.outputs[0], y, layout)


def _where(region: Region, op: Op) -> None:
    if region.fact(op.outputs[0]).dtype != "float32":
        raise NotLowered(f"it chooses {region.fact(op.outputs[0]).dtype}")
    layout = region.layout(op.inputs)
    inputs = [region.read(name, layout) for name in op.inputs]
    region.give(op.outputs[0], region.op("SELECT_V2", inputs, region.result(op, layout)), layout)


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


def _logical(kind: str) -> Any:
    def rule(region: Region, op: Op) -> None:
        layout = region.layout(op.inputs)
        inputs = [region.read(name, layout) for name in op.inputs]
        y = region.op(kind, inputs, region.result(op, layout), dtype="bool")
        region.give(op.outputs[0], y, layout)

    return rule


RULES: dict[str, Any] = {
    "Abs": _unary("ABS"),
    "Add": _binary("ADD", act=NONE),
    "And": _logical("LOGICAL_AND"),
    "Cast": _cast,
    "Ceil": _unary("CEIL"),
    "Celu": _exponential(1.0, 1.0),
    "Clip": _clip,
    "Cos": _unary("COS"),
    "Div": _binary("DIV", act=NONE),
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
    "Mul": _binary("MUL", act=NONE),
    "Neg": _unary("NEG"),
    "Not": _logical("LOGICAL_NOT"),
    "Or": _logical("LOGICAL_OR"),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Relu": _unary("RELU"),
    "Round": _unary("ROUND"),
    "Selu": _exponential(1.0507009873554805, 1.6732632423543772),
    "Sigmoid": _unary("LOGISTIC"),
    "Sign": _unary("SIGN"),
    "Sin": _unary("SIN"),
    "Softplus": _soft,
    "Sqrt": _unary("SQRT"),
    "Sub": _binary("SUB", act=NONE),
    "Sum": _binary("ADD", act=NONE),
    "Swish": _swish,
    "Tanh": _unary("TANH"),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
}
