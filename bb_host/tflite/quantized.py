"""QDQ form as it stands: QuantizeLinear and DequantizeLinear as QUANTIZE and DEQUANTIZE.

`integers` then makes integer operators of what stands between them. uint8 numbers are int8 numbers shifted by
128: the same grid, the same values.
"""

from __future__ import annotations

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.graph import Quantization
from bb_host.tflite.lowering import Region, Rule, Shape, elementwise


def same_grid(one: Quantization | None, other: Quantization | None) -> bool:
    """Whether two tensors of one integer type mean the same by the same numbers."""
    return (
        one is not None
        and other is not None
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )


def _parameters(region: Region, op: Op, dtype: str) -> Quantization:
    if dtype not in ("int8", "uint8"):
        raise NotLowered(f"its integers are {dtype}")
    if op.attrs.get("block_size"):
        raise NotLowered("its scales are by block")
    scale, zero = region.constant(op, 1), region.constant(op, 2)
    if scale is None or scale.size != 1 or scale.dtype != np.float32:
        raise NotLowered("it has a scale per channel, or none in float32")
    point = 0 if zero is None else int(zero.reshape(()))
    return Quantization(scale.reshape(1), np.array([point]))


@elementwise
def _quantize(region: Region, op: Op, x: int, shape: Shape) -> int:
    dtype = region.fact(op.outputs[0]).dtype
    return region.graph.op("QUANTIZE", [x], shape, dtype, {}, _parameters(region, op, dtype))


@elementwise
def _dequantize(region: Region, op: Op, x: int, shape: Shape) -> int:
    known = _parameters(region, op, region.fact(op.inputs[0]).dtype)
    tensor = region.graph.tensors[x]
    if tensor.quantization is None:
        tensor.quantization = known
    own = tensor.quantization
    y = region.op("DEQUANTIZE", [x], shape)
    if not same_grid(own, known):  # the numbers of one grid, read as those of another
        ratio = float(known.scale[0]) / float(own.scale[0])
        shift = float(known.scale[0]) * (int(own.zero_point[0]) - int(known.zero_point[0]))
        y = region.op("MUL", [y, region.floats(ratio)], shape)
        y = region.op("ADD", [y, region.floats(shift)], shape)
    return y


RULES: dict[str, Rule] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
