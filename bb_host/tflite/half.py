"""Weights that ONNX stores as float16 stay so in the flatbuffer.

1. In question are filters of convolutions and FullyConnected that are float32 constants of at least
`SMALLEST` entries. 2. One whose every entry is a float16 number becomes a float16 constant behind a
DEQUANTIZE, which interpreters run once or fold; the values are the same to the last bit. 3. Any other
stays, so that a weight that was scaled on the way (by a batch normalization) loses nothing.
"""

from __future__ import annotations

import numpy as np

from bb_host.ir.program import Function
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values
from bb_host.tflite.graph import Operator, TfliteGraph

SMALLEST = 64

_FILTERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def has_half_weights(function: Function) -> bool:
    """Whether a function reads float16 constants through Casts."""
    known = Values(function).constants
    casts = (op.inputs[0] for op in function.ops if is_onnx(op, "Cast"))
    return any(name in known and known[name].dtype == np.float16 for name in casts)


def halve_weights(graph: TfliteGraph) -> None:
    """Changes the graph in place."""
    done: dict[int, int] = {}
    made: list[Operator] = []
    for op in graph.operators:
        if op.kind not in _FILTERS:
            continue
        index = op.inputs[1]
        if index not in done:
            tensor = graph.tensors[index]
            data = tensor.data
            if data is None or data.dtype != np.float32 or data.size < SMALLEST:
                continue
            with np.errstate(over="ignore"):
                half = data.astype(np.float16)
            if not np.array_equal(half.astype(np.float32), data):
                continue
            stored = graph.constant(half)
            done[index] = graph.tensor(f"{tensor.name}_f32", tensor.shape)
            made.append(Operator("DEQUANTIZE", (stored,), (done[index],)))
        op.inputs = (op.inputs[0], done[index], *op.inputs[2:])
    graph.operators[:0] = made
