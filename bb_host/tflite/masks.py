"""Conditions as numbers, 0 and 1, where a graph is a gradient.

XNNPACK takes none of GREATER, SELECT_V2, SIGN and their kin, which would cut a graph in pieces. What it takes
is a product that is clipped as it is computed: MUL(x, 3e38) within -1 and 1 is the sign of x. So a comparison
is the sign of a difference that is not below zero, `And` a product, `Where` a sum of two products. A value
that is not chosen is multiplied by 0, which an infinite one survives: gradients choose between finite values.
"""

from __future__ import annotations

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Layout, Region, Rule
from bb_host.tflite.schema import DTYPES, NONE, RELU, RELU_N1_TO_1

_LARGE = 3e38
"""Times any normal number it is at least 1 away from zero; a denormal may count in part."""

_SIX = 6.0


def sign(region: Region, x: int) -> int:
    """-1, 0 or 1."""
    return region.op("MUL", [x, region.floats(_LARGE)], region.graph.shape(x), act=RELU_N1_TO_1)


def positive(region: Region, x: int) -> int:
    """1 where a tensor is above zero, else 0."""
    maker = region.maker(x)
    known = maker is not None and (maker.kind in ("RELU", "RELU6", "ABS") or maker.options.get("act") == RELU)
    return sign(region, x if known else region.op("RELU", [x], region.graph.shape(x)))


def _difference(region: Region, a: int, b: int, act: int = RELU) -> int:
    """a - b, 0 where that is below it."""
    shape = np.broadcast_shapes(region.graph.shape(a), region.graph.shape(b))
    return region.op("SUB", [a, b], shape, act=act)


def _above(region: Region, a: str, b: str, layout: Layout) -> int:
    """a > b, as a number.

    Where a or b is a number and the other is clamped by a Relu or Clip in this region already, its result
    says the same: then nobody needs what came before that.
    """
    low, high = _scalar(region, b), _scalar(region, a)
    x, y = region.read(a, layout), region.read(b, layout)
    if low is not None and low >= 0:
        x = region.result_of(("RELU", "RELU6") if low < _SIX else ("RELU",), x)
    if low == 0:
        return positive(region, x)
    if high is not None and high > 0:
        y = region.result_of(("RELU", "RELU6") if high <= _SIX else ("RELU",), y)
    return positive(region, _difference(region, x, y))


def _scalar(region: Region, name: str) -> float | None:
    value = region.fact(name).value
    return float(value.reshape(())) if value is not None and value.size == 1 else None


def _not(region: Region, x: int) -> int:
    return region.op("SUB", [region.floats(1), x], region.graph.shape(x))


def compare(region: Region, op: Op) -> None:
    """Greater, Less, Equal and the two between."""
    a, b = op.inputs
    layout = region.layout(op.inputs)
    if op.op_type == "Equal":
        away = _difference(region, region.read(a, layout), region.read(b, layout), NONE)
        y = _not(region, positive(region, region.op("ABS", [away], region.graph.shape(away))))
    elif op.op_type in ("Greater", "Less"):
        y = _above(region, *((a, b) if op.op_type == "Greater" else (b, a)), layout)
    else:
        y = _not(region, _above(region, *((b, a) if op.op_type == "GreaterOrEqual" else (a, b)), layout))
    region.give_number(op.outputs[0], y, layout)


def to_number(region: Region, name: str, layout: Layout) -> int:
    """A condition as 0 and 1, in a layout."""
    found = region.read_number(name, layout)
    if found is not None:
        return found
    x = region.read(name, layout)
    tensor = region.graph.tensors[x]
    if tensor.data is not None:
        return region.floats(tensor.data.astype(np.float32))
    return region.op("CAST", [x], tensor.shape, in_type=DTYPES["bool"], out_type=DTYPES["float32"])


def logic(region: Region, op: Op) -> None:
    """And, Or, Not."""
    layout = region.layout(op.inputs)
    result = region.result(op, layout)
    given = [to_number(region, name, layout) for name in op.inputs]
    if op.op_type == "Not":
        y = _not(region, given[0])
    elif op.op_type == "And":
        y = region.op("MUL", given, result)
    else:
        y = region.op("MAXIMUM", given, result)
    region.give_number(op.outputs[0], y, layout)


def where(region: Region, op: Op) -> None:
    """Where: a product with the condition, and one with its contrary."""
    layout = region.layout(op.inputs)
    result = region.result(op, layout)
    chosen = to_number(region, op.inputs[0], layout)
    total: int | None = None
    for name, is_other in ((op.inputs[1], False), (op.inputs[2], True)):
        value = region.fact(name).value
        if value is not None and not value.any():
            continue
        if value is not None and not np.isfinite(value).all():
            raise NotLowered("it chooses a number that is not finite")
        mask = _not(region, chosen) if is_other else chosen
        if value is not None and (value == 1).all() and region.graph.shape(mask) == result:
            part = mask
        else:
            x = region.read(name, layout)
            shape = np.broadcast_shapes(region.graph.shape(mask), region.graph.shape(x))
            part = region.op("MUL", [mask, x], shape)
        total = part if total is None else region.op("ADD", [total, part], result)
    if total is None:
        total = region.floats(np.zeros(result))
    elif region.graph.shape(total) != result:
        total = region.op("MUL", [total, region.floats(np.ones(result))], result)
    region.give(op.outputs[0], total, layout)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), compare),
    **dict.fromkeys(("And", "Or", "Not"), logic),
    "Where": where,
}
