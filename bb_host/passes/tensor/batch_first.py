"""Puts recurrent layers batch first (ONNX's layout 1), without the transposes of exporters around them.

1. An LSTM, GRU or RNN of a `Transpose` that swaps steps and batch reads what lies before it, in ONNX's layout
1; a `Transpose` of each result follows, which other passes move on. 2. States that it begins with are
transposed too; zeros, in whatever shape they are made, are what it begins with anyway. 3. A `Reshape` that
joins the last two dims of a value whose first two were swapped goes before the swap. So a batch that is open
stays the first dimension.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bb_host.ir.program import Function, Op
from bb_host.ir.queries import is_onnx, onnx_opset
from bb_host.ir.values import Values

_LAYERS = ("GRU", "LSTM", "RNN")
_LAYOUT_SINCE = 14
_SWAP = [1, 0, 2]
_TO_STEPS_FIRST = ([1, 2, 0, 3], _SWAP, _SWAP)
"""From layout 1 to layout 0: all hidden states, the last one, the last cell."""
_STATES = (5, 6)


def run(function: Function) -> Function:
    """The function with transposed inputs of recurrent layers as they were before; itself where none are."""
    values = Values(function)
    version = onnx_opset(function.opsets)
    ops: list[Op] = []
    for op in function.ops:
        source = values.maker.get(op.inputs[0]) if op.inputs else None
        perm = source.attrs.get("perm") if source is not None and is_onnx(source, "Transpose") else None
        if source is None or not isinstance(perm, list):
            ops.append(op)
        elif is_onnx(op, *_LAYERS) and perm == _SWAP and version >= _LAYOUT_SINCE:
            ops += [op] if op.attrs.get("layout", 0) else _batch_first(op, source.inputs[0], values)
        elif is_onnx(op, "Reshape") and perm == [*_SWAP, 3] and _joins_last(op, values):
            inner = values.fresh(f"{op.outputs[0]}_before")
            ops.append(dataclasses.replace(op, inputs=(*source.inputs, op.inputs[1]), outputs=(inner,)))
            ops.append(Op("Transpose", "", (inner,), op.outputs, {"perm": list(_SWAP)}))
        else:
            ops.append(op)
    return function.with_ops(ops)


def _joins_last(op: Op, values: Values) -> bool:
    shape = values.constants.get(op.inputs[1])
    return shape is not None and shape.tolist() == [0, 0, -1] and not op.attrs.get("allowzero", 0)


def _batch_first(op: Op, source: str, values: Values) -> list[Op]:
    before: list[Op] = []
    inputs = [source, *op.inputs[1:]]
    for position in _STATES:
        state = inputs[position] if position < len(inputs) else ""
        if not state:
            continue
        if _is_zeros(state, values):
            inputs[position] = ""
            continue
        inputs[position] = values.fresh(f"{state}_before")
        before.append(Op("Transpose", "", (state,), (inputs[position],), {"perm": list(_SWAP)}))
    while not inputs[-1]:
        inputs.pop()
    results = [values.fresh(f"{name}_before") if name else "" for name in op.outputs]
    layer = dataclasses.replace(
        op, inputs=tuple(inputs), outputs=tuple(results), attrs={**op.attrs, "layout": 1}
    )
    after = [
        Op("Transpose", "", (new,), (old,), {"perm": list(perm)})
        for new, old, perm in zip(results, op.outputs, _TO_STEPS_FIRST, strict=False)
        if old
    ]
    return [*before, layer, *after]


def _is_zeros(name: str, values: Values) -> bool:
    if name in values.constants:
        return not values.constants[name].any()
    maker = values.maker.get(name)
    if maker is None:
        return False
    if is_onnx(maker, "ConstantOfShape"):
        value = maker.attrs.get("value")
        return value is None or (isinstance(value, np.ndarray) and not value.any())
    if is_onnx(maker, "Expand", "Tile", "Transpose", "Unsqueeze", "Identity"):
        return _is_zeros(maker.inputs[0], values)
    return False
