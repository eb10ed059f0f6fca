"""QDQ form: pairs as QUANTIZE and DEQUANTIZE, and integer FULLY_CONNECTED where they stand around one.

What stands between pairs and has no integer form here is computed in float, between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_host.edge.tflite.errors import NotLowered
from bb_host.edge.tflite.graph import Quantization, TfliteGraph
from bb_host.edge.tflite.lowering import Region
from bb_host.program import Op

__all__ = ["RULES", "to_integers"]


def _parameters(region: Region, op: Op) -> Quantization:
    scale, zero = region.constant(op, 1), region.constant(op, 2)
    if scale is None or scale.size != 1 or zero is None or zero.dtype != np.int8:
        raise NotLowered("it is not int8 with one scale and a zero point")
    return Quantization(scale.reshape(1), zero.reshape(1))


def _quantize(region: Region, op: Op) -> None:
    known = _parameters(region, op)
    x, shape = region.read(op.inputs[0]), region.result(op)
    region.give(op.outputs[0], region.graph.op("QUANTIZE", [x], shape, "int8", {}, known))


def _dequantize(region: Region, op: Op) -> None:
    known = _parameters(region, op)
    x = region.read(op.inputs[0])
    tensor = region.graph.tensors[x]
    if tensor.quantization is None:
        if x not in region.graph.inputs:
            raise NotLowered("its integers were moved on the way")
        tensor.quantization = known
    same = tensor.quantization
    if not (np.array_equal(same.scale, known.scale) and np.array_equal(same.zero_point, known.zero_point)):
        raise NotLowered("its parameters are not those of its integers")
    region.give(op.outputs[0], region.op("DEQUANTIZE", [x], region.result(op)))


def to_integers(graph: TfliteGraph) -> None:
    """In place: QUANTIZE(FULLY_CONNECTED(DEQUANTIZE(x), weights)) becomes one int8 operator."""
    producers, readers, asked = graph.producers(), graph.readers(), set(graph.outputs)
    gone: set[int] = set()
    for op in graph.operators:
        before = producers.get(op.inputs[0])
        after = readers.get(op.outputs[0], [])
        if op.kind != "FULLY_CONNECTED" or before is None or before.kind != "DEQUANTIZE":
            continue
        if len(after) != 1 or after[0].kind != "QUANTIZE" or op.outputs[0] in asked:
            continue
        weight, x = graph.tensors[op.inputs[1]], graph.tensors[before.inputs[0]]
        if weight.quantization is None or weight.data is None or x.quantization is None:
            continue
        scales = np.broadcast_to(weight.quantization.scale.reshape(-1), (len(weight.data),)).astype(
            np.float32
        )
        stored = np.round(weight.data / scales[:, None].astype(np.float64)).astype(np.int8)
        both = scales * x.quantization.scale[0]
        bias = np.zeros(len(scales), np.float32)
        if op.inputs[2] >= 0:
            data = graph.tensors[op.inputs[2]].data
            if data is None:
                continue
            bias = data
        whole = np.round(bias / both.astype(np.float64))
        if np.abs(whole).max() >= 2**31:
            continue
        zeros = np.zeros(len(scales), np.int64)
        w = graph.constant(stored, "", Quantization(scales, zeros))
        b = graph.constant(whole.astype(np.int32), "", Quantization(both, zeros))
        op.inputs = (before.inputs[0], w, b)
        op.outputs = after[0].outputs
        gone.add(id(after[0]))
    graph.operators = [op for op in graph.operators if id(op) not in gone]
    for tensor in graph.tensors:
        if tensor.dtype == "float32":
            tensor.quantization = None


RULES: dict[str, Any] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
