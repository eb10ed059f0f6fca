"""Which ONNX operators are lowered, and by which rule."""

from __future__ import annotations

from bb_host.ir.program import Op
from bb_host.tflite import (
    attention,
    computed,
    convolution,
    elementwise,
    linear,
    masks,
    movement,
    normalization,
    pool_gradient,
    products,
    quantized,
    recurrent,
    reduction,
)
from bb_host.tflite.errors import NotLowered, fault
from bb_host.tflite.lowering import Region, Rule

RULES: dict[str, Rule] = {
    **attention.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **linear.RULES,
    **movement.RULES,
    **normalization.RULES,
    **products.RULES,
    **quantized.RULES,
    **recurrent.RULES,
    **reduction.RULES,
}

PATTERNS: dict[str, Rule] = {
    computed.CONV_WEIGHTS: computed.conv_weights,
    pool_gradient.MAX_POOL_GRADIENT: pool_gradient.max_pool_gradient,
    pool_gradient.MEAN_GRADIENT: pool_gradient.mean_gradient,
}
"""Rules for what several ops together are (`items.py`, `patterns.py`)."""

MAX_RANK = 4
"""Beyond it kernels of the older runtime differ in what they take."""

_RANK_FIVE = {
    "Einsum",
    *("Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    *("QuantizeLinear", "DequantizeLinear"),
}
"""What only moves: heads of attention, and shuffled channels, pass through five dimensions. Einsum
moves what it reads before it computes.
"""

_SEVERAL_RESULTS = {"BatchNormalization", "LayerNormalization", "Split", *recurrent.RULES}

_OTHER_DTYPES = {"Cast", "Where", "And", "Or", "Not", "Gather", "DequantizeLinear"}
"""Rules that check dtypes themselves; all others compute on float32."""


def apply(region: Region, op: Op) -> None:
    """Lowers one op into a region. NotLowered says why it has to stay.

    A rule that fails otherwise has a fault, which costs speed and never the compilation.
    """
    rule = RULES.get(op.op_type) or PATTERNS.get(op.op_type)
    if region.gradient:
        rule = masks.RULES.get(op.op_type, rule)
    if rule is None:
        raise NotLowered("there is no rule for it")
    if any(op.outputs[1:]) and op.op_type not in _SEVERAL_RESULTS:
        raise NotLowered("its further results are asked for")
    for name in (*op.inputs, *op.outputs):
        if not name:
            continue
        fact = region.fact(name)
        if len(fact.shape) > MAX_RANK + (op.op_type in _RANK_FIVE):
            raise NotLowered(f"{len(fact.shape)} dimensions")
        if 0 in fact.shape:
            raise NotLowered("a value is empty")
    first = region.fact(op.inputs[0])
    if op.op_type not in _OTHER_DTYPES and first.dtype != "float32":
        raise NotLowered(f"it computes on {first.dtype}")
    try:
        rule(region, op)
    except NotLowered:
        raise
    except Exception as error:
        raise fault(op.op_type, error) from error
