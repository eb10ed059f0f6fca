"""Bias correction: what rounding shifts a layer's result by on average is taken off its bias.

Rounded weights times what their inputs are on average, and what rounding the inputs shifts those by, make an
error that is the same for all samples; of a mean over an image it is what is left. It is known per channel
once the data have run in float, so each layer is corrected for its own share, whatever lies before it.
(Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, section 4.2;
calibration data take the place of what they know from batch normalization.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bb_edge.ir import keys
from bb_host.ir.program import Array, Function, FunctionKey, Op, Program
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values, constant
from bb_host.passes.device.quantize.calibration import batches, observed_bodies, runs
from bb_host.passes.device.quantize.parameters import BIAS_MOST
from bb_host.passes.device.quantize.qdq import Quantized
from bb_kernels import TensorSpec, evaluate, prepare


@dataclass(slots=True)
class _Layer:
    """An op in float and its opset; how its input is rounded; its weight before and after; its stored bias.

    `x` and `rounded_x` are sums of an input without all but its channels, `count` is of how many.
    """

    op: Op
    opset: int
    scale: np.float32
    zero_point: int
    weight: Array
    rounded_weight: Array
    bias: str
    stored: Array
    bias_scales: Array
    x: Array | float = 0.0
    rounded_x: Array | float = 0.0
    count: int = 0
    size: tuple[int, ...] = ()

    def add(self, x: Array) -> None:
        """One run's input."""
        turned = self.op.op_type == "Gemm" and bool(self.op.attrs.get("transA", 0))
        others = (1,) if turned else (0, *range(2, x.ndim))
        grid = x / self.scale
        np.rint(grid, out=grid)
        np.clip(grid, -128 - self.zero_point, 127 - self.zero_point, out=grid)
        self.x = self.x + x.sum(others, dtype=np.float64, keepdims=True)
        self.rounded_x = self.rounded_x + grid.sum(others, dtype=np.float64, keepdims=True) * self.scale
        self.count += int(np.prod([x.shape[i] for i in others]))
        self.size = x.shape[2:]

    def corrected(self) -> Array:
        """The stored bias, less what the result is shifted by."""
        shift = self._result(self.rounded_x, self.rounded_weight) - self._result(self.x, self.weight)
        bias = self.stored - np.round(shift / self.bias_scales.astype(np.float64))
        return np.clip(bias, -BIAS_MOST, BIAS_MOST).astype(np.int32)

    def _result(self, total: Array | float, weight: Array) -> Array:
        """The op on its mean input, without its bias, and of that the mean per channel: so padding counts."""
        mean = (np.asarray(total) / self.count).astype(np.float32)
        x = np.broadcast_to(mean, (*mean.shape[:2], *self.size)).copy()
        specs = [TensorSpec(array.dtype, array.shape) for array in (x, weight)]
        prepared = prepare(self.op.op_type, self.opset, self.op.attrs, specs, [None, weight], 1)
        with np.errstate(all="ignore"):  # a BLAS may compute with lanes that nobody reads
            (y,) = evaluate(prepared, [x, weight])
        return np.asarray(y.mean((0, *range(2, y.ndim)), dtype=np.float64))


def corrected(
    program: Program,
    main: Function,
    target: str,
    data: Mapping[str, Array],
    done: Mapping[FunctionKey, Quantized],
) -> dict[FunctionKey, Quantized]:
    """The quantized functions with corrected biases; the data run through `program`, which is in float."""
    layers: dict[FunctionKey, list[_Layer]] = {}
    for key, quantized in done.items():
        before = program.function(*key)
        assert before is not None
        layers[key] = _layers(before, quantized.function)
    bodies = observed_bodies(program)
    for given in batches(data, main, target):
        for key, values in runs(program, main, given, bodies):
            for layer in layers.get(key, ()):
                layer.add(values[layer.op.inputs[0]])
    return {key: _with_biases(quantized, layers[key]) for key, quantized in done.items()}


def _with_biases(quantized: Quantized, layers: Sequence[_Layer]) -> Quantized:
    new = {layer.bias: layer.corrected() for layer in layers if layer.count}
    ops = tuple(
        constant(op.outputs[0], new[op.outputs[0]])
        if is_onnx(op, "Constant") and op.outputs[0] in new
        else op
        for op in quantized.function.ops
    )
    return dataclasses.replace(quantized, function=dataclasses.replace(quantized.function, ops=ops))


def _layers(before: Function, after: Function) -> list[_Layer]:
    """The ops with an int8 input, int8 weights and an int32 bias."""
    old, new = Values(before), Values(after)
    kinds = ("Conv", "ConvTranspose", "Gemm")
    pairs = zip(
        (op for op in before.ops if is_onnx(op, *kinds)),
        (op for op in after.ops if is_onnx(op, *kinds)),
        strict=True,
    )
    found = []
    for op, quantized in pairs:
        makers = [new.maker.get(name) for name in quantized.inputs]
        if len(makers) < 3 or any(m is None or m.op_type != "DequantizeLinear" for m in makers):
            continue
        x, weight, bias = (cast("Op", maker) for maker in makers)
        if "axis" not in weight.attrs or op.inputs[0] in old.constants:
            continue
        axis = weight.integer("axis")
        stored, scales = (new.constants[name] for name in weight.inputs[:2])
        shape = [-1 if i == axis else 1 for i in range(stored.ndim)]
        scale, zero_point = (new.constants[name] for name in x.inputs[1:3])
        found.append(
            _Layer(
                op,
                before.opsets.get(keys.ONNX_DOMAIN, 0),
                np.float32(scale),
                int(zero_point),
                old.constants[op.inputs[1]],
                stored * scales.reshape(shape),
                bias.inputs[0],
                new.constants[bias.inputs[0]],
                new.constants[bias.inputs[1]],
            )
        )
    return found
