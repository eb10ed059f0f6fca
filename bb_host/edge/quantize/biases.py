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
from dataclasses import dataclass, field
from functools import reduce
from typing import cast

import numpy as np

from bb_edge.ir import keys
from bb_host.edge.cleanup.values import Values, constant, is_onnx
from bb_host.edge.quantize.calibration import batches, observed_values, runs
from bb_host.edge.quantize.parameters import BIAS_MOST
from bb_host.edge.quantize.qdq import Quantized
from bb_host.program import Array, Function, Op, Program

__all__ = ["corrected"]

FunctionKey = tuple[str, str]


@dataclass(slots=True)
class _Layer:
    """An op in float, how its input is rounded, its weight before and after, and its bias's constant."""

    op: Op
    scale: float
    zero_point: int
    weights: tuple[Array, Array]
    bias: str
    stored: Array
    bias_scales: Array
    sums: list[Array] = field(default_factory=list)
    count: int = 0
    covered: tuple[Array, ...] = ()

    def add(self, x: Array, y: Array) -> None:
        """One run's input and result."""
        axis = 0 if self.op.op_type == "Gemm" and self.op.attrs.get("transA", 0) else 1
        others = tuple(i for i in range(x.ndim) if i != axis)
        grid = x / np.float32(self.scale)
        np.rint(grid, out=grid)
        np.clip(grid, -128 - self.zero_point, 127 - self.zero_point, out=grid)
        both = [x.sum(others, dtype=np.float64), grid.sum(others, dtype=np.float64) * self.scale]
        self.sums = [a + b for a, b in zip(self.sums, both, strict=True)] if self.sums else both
        self.count += x.size // x.shape[axis]
        if not self.covered and self.op.op_type != "Gemm":
            self.covered = _covered(self.op, self.weights[0].shape[2:], x.shape[2:], y.shape[2:])

    def corrected(self) -> Array:
        """The stored bias, less what the result is shifted by."""
        exact, rounded = (
            _product(self.op, weight, total / self.count, self.covered)
            for weight, total in zip(self.weights, self.sums, strict=True)
        )
        bias = self.stored + np.round((exact - rounded) / self.bias_scales.astype(np.float64))
        return np.clip(bias, -BIAS_MOST, BIAS_MOST).astype(np.int32)


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
    bodies = {f.key: observed_values(f) for f in program.functions if f.domain == keys.BACKEND_DOMAIN}
    for given in batches(data, main, target):
        for key, values in runs(program, main, given, bodies):
            for layer in layers.get(key, ()):
                layer.add(values[layer.op.inputs[0]], values[layer.op.outputs[0]])
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
        axis = cast("int", weight.attrs["axis"])
        stored, scales = (new.constants[name] for name in weight.inputs[:2])
        shape = [-1 if i == axis else 1 for i in range(stored.ndim)]
        rounded = stored.astype(np.float64) * scales.astype(np.float64).reshape(shape)
        scale, zero_point = (new.constants[name] for name in x.inputs[1:3])
        found.append(
            _Layer(
                op,
                float(scale),
                int(zero_point),
                (old.constants[op.inputs[1]].astype(np.float64), rounded),
                bias.inputs[0],
                new.constants[bias.inputs[0]],
                new.constants[bias.inputs[1]],
            )
        )
    return found


def _product(op: Op, weight: Array, mean: Array, covered: Sequence[Array]) -> Array:
    """The mean result per channel, without the bias."""
    if op.op_type == "Gemm":
        return np.asarray((weight if op.attrs.get("transB", 0) else weight.T) @ mean)
    seen: Array = reduce(np.multiply.outer, covered) if covered else np.ones(())
    taps = (weight * seen).reshape(*weight.shape[:2], -1).sum(-1)
    if op.op_type == "ConvTranspose":
        return np.asarray(mean @ taps)
    groups = cast("int", op.attrs.get("group", 1))
    by_group = taps.reshape(groups, -1, taps.shape[1])
    return np.asarray((by_group @ mean.reshape(groups, -1, 1)).reshape(-1))


def _covered(op: Op, kernel: Sequence[int], size: Sequence[int], result: Sequence[int]) -> tuple[Array, ...]:
    """Per axis and tap, how many of the results read it from inside the image: padding adds nothing."""
    n = len(kernel)
    strides, dilations = (_ints(op, name, [1] * n) for name in ("strides", "dilations"))
    given, auto = _ints(op, "pads", [0] * 2 * n), cast("bytes", op.attrs.get("auto_pad", b"NOTSET"))
    transposed = op.op_type == "ConvTranspose"
    small, large = (size, result) if transposed else (result, size)
    found = []
    for axis in range(n):
        step, wide = strides[axis], dilations[axis]
        before = given[axis]
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            total = max(0, (small[axis] - 1) * step + (kernel[axis] - 1) * wide + 1 - large[axis])
            before = total // 2 if auto == b"SAME_UPPER" else total - total // 2
        at = np.arange(small[axis])[:, None] * step + np.arange(kernel[axis]) * wide - before
        found.append(((at >= 0) & (at < large[axis])).sum(0) / result[axis])
    return tuple(found)


def _ints(op: Op, name: str, default: list[int]) -> list[int]:
    return cast("list[int]", op.attrs.get(name) or default)
