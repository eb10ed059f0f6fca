"""A float function → the same function with QuantizeLinear/DequantizeLinear pairs (QDQ form).

1. An op takes part where its type is in `FOLLOWING`, `FREE` or `WEIGHTED`, its inputs have ranges, and
nobody asked to keep it in float. Ops that carry weights take part only where these are constants.
2. Each activation that such an op reads or makes gets one pair, after its maker. Who takes part reads the
dequantized value. Where the maker takes part, everybody does, and the value keeps its name; else the others
go on reading the float value.
3. No pair stands between an op and the Relu or Clip that alone reads it: TFLite fuses these.
4. Results that are only rearranged keep the parameters of what they come from; Softmax, Sigmoid and Tanh
have those of TFLite's kernels. What a Sigmoid or Tanh alone reads ends where its result does not change any
more: a finer grid for the rest.
5. Weights are int8 constants per output channel, biases int32, each behind a DequantizeLinear. A weight or
bias that several ops read is written once per reader.

6. The ops of a Gelu that is written with Erf take part as one: no pairs inside. A division by a number
takes part as the product that it is.

A function that has pairs already is taken as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from bb_edge.ir import keys
from bb_host.errors import QuantizeError
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx, without_dead_constants
from bb_host.ir.rename import rename_reads
from bb_host.ir.values import Values, constant
from bb_host.passes.device.quantize.calibration import Range
from bb_host.passes.device.quantize.parameters import (
    LOGISTIC,
    TANH,
    Parameters,
    bias_of,
    of_range,
    weights_of,
)
from bb_host.tflite.facts import Fact
from bb_host.tflite.items import items_of

PAIRS_OPSET = 13
"""Of ONNX: the first with an axis on QuantizeLinear."""

WEIGHTED = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
FOLLOWING = (
    *("AveragePool", "GlobalMaxPool", "MaxPool", "Identity", "Pad", "Resize", "DepthToSpace", "SpaceToDepth"),
    *("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Tile", "Gather", "Slice", "Split"),
)
FREE = (
    *("Add", "Mul", "Sub", "Sum", "Concat", "GlobalAveragePool", "ReduceMean", "Softmax"),
    *("Clip", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"),
)
_BY_NUMBER = ("Div",)
_DATA_INPUTS = {
    **dict.fromkeys(("Add", "Einsum", "MatMul", "Mul", "PRelu", "Sub", "Sum"), 2),
    "Concat": None,
}
_FIXED = {"Softmax": LOGISTIC, "Sigmoid": LOGISTIC, "Tanh": TANH}
_ENDS = {"Sigmoid": math.log(511), "Tanh": math.atanh(127.5 / 128)}
"""Beyond it the result on its fixed grid is the first or the last number."""
_FUSED = ("Relu", "Clip")
_HOSTS = (*WEIGHTED, "Add", "Sub", "Sum", "Mul")


@dataclass(frozen=True, slots=True)
class Quantized:
    """`layers`: the first outputs of the ops that take part; `left`: why others do not, by first output."""

    function: Function
    layers: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)


def has_pairs(function: Function) -> bool:
    """Whether a function is in QDQ form already."""
    return any(is_onnx(op, "QuantizeLinear", "DequantizeLinear") for op in function.ops)


def weighted(function: Function) -> bool:
    """Whether a function has an op whose weights are constants: what quantization is for."""
    values = Values(function)
    weights = (op.inputs[1] for op in function.ops if is_onnx(op, *WEIGHTED) and len(op.inputs) > 1)
    return any(name in values.constants for name in weights)


def quantize_function(
    function: Function,
    ranges: Mapping[str, Range],
    keep_float: Collection[str] = (),
    like_litert: bool = False,
) -> Quantized:
    """One backend function. `keep_float` are first outputs or names of ops; `like_litert`: see Quantization.

    QuantizeError below opset 13.
    """
    opset = function.opsets.get(keys.ONNX_DOMAIN, 0)
    if opset < PAIRS_OPSET:
        raise QuantizeError(
            f"it is in opset {opset}, int8 needs {PAIRS_OPSET}",
            f"function {function.name}",
            "convert it: onnx.version_converter",
        )
    if has_pairs(function):
        return Quantized(function, left={"": "it has QuantizeLinear/DequantizeLinear pairs already"})
    return _Rewrite(function, ranges, keep_float, like_litert).run()


class _Rewrite:
    def __init__(
        self,
        function: Function,
        ranges: Mapping[str, Range],
        keep_float: Collection[str],
        like_litert: bool,
    ) -> None:
        self.function = function
        self.like_litert = like_litert
        self.values = Values(function)
        self.ranges = ranges
        self.left: dict[str, str] = {}
        self.joined = self._joined(keep_float)
        self.taking = {id(op) for op in function.ops if self._takes_part(op, keep_float)}
        self.inner = self._fused_values()
        self.ends = {
            op.inputs[0]: _ENDS[op.op_type]
            for op in function.ops
            if id(op) in self.taking
            and is_onnx(op, *_ENDS)
            and self.values.only_reader(op.inputs[0])
            and not like_litert
        }
        self.parameters: dict[str, Parameters] = {}
        self.by_read: dict[str, Parameters] = {}  # by the name under which those that take part read it
        self.replaced: dict[str, str] = {}  # activation → what takes part reads
        self.ops: list[Op] = []

    def run(self) -> Quantized:
        if not self.taking:
            return Quantized(self.function, left=self.left)
        wanted = self._wanted()
        for name in self.function.inputs:
            if name in wanted:
                self._pair(name, name)
        for op in self.function.ops:
            takes = id(op) in self.taking
            if takes:
                op = self._with_parameters(rename_reads(op, self.replaced))
            made = [v for v in op.outputs if v in wanted]
            if not made:
                self.ops.append(op)
                continue
            for value in made:
                self.parameters.setdefault(value, self._parameters(op, value))
            if not takes:
                self.ops.append(op)
                for value in made:
                    self._pair(value, value)
                continue
            floats = {v: self.values.fresh(f"{v}_float") for v in made}
            self.ops.append(dataclasses.replace(op, outputs=tuple(floats.get(v, v) for v in op.outputs)))
            for value in made:
                self._pair(floats[value], value, value)
        function = dataclasses.replace(
            self.function, ops=without_dead_constants(self.ops, self.function.outputs)
        )
        layers = tuple(op.outputs[0] for op in self.function.ops if id(op) in self.taking)
        return Quantized(function, layers, self.left)

    # --- which ops, which values

    def _takes_part(self, op: Op, keep_float: Collection[str]) -> bool:
        if is_onnx(op, "Constant") or not op.outputs:
            return False
        why = self._why_not(op, keep_float)
        if why:
            self.left[op.outputs[0]] = why
        return not why

    def _why_not(self, op: Op, keep_float: Collection[str]) -> str:
        """Why an op stays in float; empty where it takes part."""
        if op.outputs[0] in keep_float or op.name in keep_float:
            return "kept in float as asked"
        if id(op) in self.joined:
            op = self.joined[id(op)]
        elif not is_onnx(op, *WEIGHTED, *FOLLOWING, *FREE, *_BY_NUMBER):
            return f"{op.op_type} has no int8 form"
        if op.op_type in _BY_NUMBER and not self._is_number(op.inputs[1]):
            return "it divides by more than a number"
        if op.op_type in ("Conv", "ConvTranspose", "Gemm") and op.inputs[1] not in self.values.constants:
            return "its weights are not constants"
        if op.op_type == "Gemm" and (op.attrs.get("alpha", 1.0), op.attrs.get("beta", 1.0)) != (1.0, 1.0):
            return "its alpha or beta is not 1"
        if op.op_type == "Sum" and len(op.inputs) != 2:
            return "it adds more than two"
        if op.op_type == "Einsum" and len(op.inputs) != 2:
            return "it has more than two operands, or one"
        if op.op_type == "Pad" and self._pads_with_value(op):
            return "it pads with a number that is not zero"
        if op.op_type == "Clip" and self._is_free_clip(op):
            return "its limits are not constants"
        if op.op_type in FOLLOWING and op.inputs[0] in self.values.constants:
            return "it rearranges a constant"
        for value in (*self._data(op), *(v for v in op.outputs[:1])):
            if value not in self.ranges and value not in self.values.constants:
                return f"{value} has no range: never seen, not finite, or no float32"
        return ""

    def _joined(self, keep_float: Collection[str]) -> dict[int, Op]:
        """Ops that are one operator together, by each of them."""
        numbers = {
            name: Fact(array.shape, array.dtype.name, array)
            for name, array in self.values.constants.items()
            if array.size == 1
        }
        found: dict[int, Op] = {}
        for item in items_of(self.function.ops, self.function.outputs, numbers):
            kept = any(op.name in keep_float or op.outputs[0] in keep_float for op in item.members)
            if len(item.members) > 1 and not kept:
                found.update((id(op), item.op) for op in item.members)
        return found

    def _is_number(self, name: str) -> bool:
        array = self.values.constants.get(name)
        return array is not None and array.size == 1 and array.dtype == np.float32 and bool(np.all(array))

    def _pads_with_value(self, op: Op) -> bool:
        if op.attrs.get("mode", b"constant") != b"constant" or len(op.inputs) < 3 or not op.inputs[2]:
            return False
        value = self.values.constants.get(op.inputs[2])
        return value is None or bool(np.any(value))

    def _is_free_clip(self, op: Op) -> bool:
        return any(v and v not in self.values.constants for v in op.inputs[1:])

    def _data(self, op: Op) -> tuple[str, ...]:
        """What an op reads as tensors to be quantized; shapes, axes and limits are none."""
        if id(op) in self.joined:
            return tuple(v for v in op.inputs if v in self.joined[id(op)].inputs)
        return tuple(v for v in op.inputs[: _DATA_INPUTS.get(op.op_type, 1)] if v)

    def _fused_values(self) -> set[str]:
        """Results without a pair: their only reader is fused with their maker, or one operator with it."""
        maker = self.values.maker
        ends = {v for whole in self.joined.values() for v in whole.outputs}
        inside = {v for op in self.function.ops if id(op) in self.joined for v in op.outputs if v not in ends}
        return inside | {
            op.inputs[0]
            for op in self.function.ops
            if id(op) in self.taking
            and is_onnx(op, *_FUSED)
            and self.values.only_reader(op.inputs[0])
            and op.inputs[0] in maker
            and id(maker[op.inputs[0]]) in self.taking
            and maker[op.inputs[0]].op_type in _HOSTS
        }

    def _wanted(self) -> set[str]:
        found: set[str] = set()
        for op in self.function.ops:
            if id(op) in self.taking:
                found.update(v for v in self._data(op) if v not in self.values.constants)
                found.update(v for v in op.outputs if v and v in self.ranges)
        return found - self.inner

    def _parameters(self, op: Op, value: str) -> Parameters:
        if is_onnx(op, *_FIXED):
            return _FIXED[op.op_type]
        source = op.inputs[0] if op.inputs else ""
        own = _averages_whole(op) and not self.like_litert
        if op.op_type in FOLLOWING and is_onnx(op) and source in self.by_read and not own:
            return self.by_read[source]
        return self._of_range(value)

    def _of_range(self, value: str) -> Parameters:
        low, high = self.ranges[value]
        end = self.ends.get(value, math.inf)
        return of_range((max(low, -end), min(high, end)))

    # --- writing

    def _pair(self, made: str, value: str, result: str = "") -> None:
        """A pair after `made`; its result is `result`, or a new name that those that take part read."""
        if value not in self.parameters:
            self.parameters[value] = self._of_range(value)
        known = self.parameters[value]
        scale = self._stored(f"{value}_scale", np.asarray(known.scale))
        zero = self._stored(f"{value}_zero", np.asarray(known.zero_point))
        stored = self.values.fresh(f"{value}_int8")
        if not result:
            result = self.replaced[value] = self.values.fresh(f"{value}_dq")
        self.by_read[result] = known
        self.ops.append(Op("QuantizeLinear", "", (made, scale, zero), (stored,)))
        self.ops.append(Op("DequantizeLinear", "", (stored, scale, zero), (result,)))

    def _stored(self, wish: str, array: Array) -> str:
        name = self.values.fresh(wish)
        self.ops.append(constant(name, np.asarray(array)))
        return name

    def _constant(self, name: str, stored: Array, scales: Array, axis: int | None) -> str:
        """A constant behind a DequantizeLinear; the name of its result."""
        scale = self._stored(f"{name}_scale", scales if axis is not None else scales.reshape(()))
        inside = self._stored(f"{name}_{stored.dtype}", stored)
        result = self.values.fresh(f"{name}_dq")
        attrs = {} if axis is None else {"axis": axis}
        self.ops.append(Op("DequantizeLinear", "", (inside, scale), (result,), dict(attrs)))
        return result

    def _with_parameters(self, op: Op) -> Op:
        """The op reading its constants quantized."""
        if is_onnx(op, *WEIGHTED) and op.inputs[1] in self.values.constants:
            return self._with_weights(op)
        constants = self.values.constants
        inputs = list(op.inputs)
        for i, name in enumerate(self._data(op)):
            if name in constants and constants[name].dtype == np.float32 and constants[name].size:
                array = constants[name]
                scale, zero = of_range((float(array.min()), float(array.max())))
                grid = np.round(array / np.float64(scale)) + int(zero)
                stored = self._stored(f"{name}_int8", np.clip(grid, -128, 127).astype(np.int8))
                known = (
                    self._stored(f"{name}_scale", np.asarray(scale)),
                    self._stored(f"{name}_zero", np.asarray(zero)),
                )
                inputs[i] = self.values.fresh(f"{name}_dq")
                self.ops.append(Op("DequantizeLinear", "", (stored, *known), (inputs[i],)))
        return dataclasses.replace(op, inputs=tuple(inputs))

    def _with_weights(self, op: Op) -> Op:
        weight = self.values.constants[op.inputs[1]]
        axis = _channel_axis(op, weight)
        known = self.by_read.get(op.inputs[0])
        bias = self.values.constants.get(op.inputs[2]) if len(op.inputs) > 2 else None
        if bias is not None and (known is None or axis is None or bias.size != weight.shape[axis]):
            bias = None  # broadcast, or per tensor: it stays in float
        scale = known.scale if known is not None else np.float32(1)
        stored, scales = weights_of(weight, axis, bias, float(scale))
        inputs = [op.inputs[0], self._constant(op.inputs[1], stored, scales, axis), *op.inputs[2:]]
        if bias is not None:
            # A Gemm's bias may be [1, n]; in int8 it is [n].
            inputs[2] = self._constant(op.inputs[2], *bias_of(bias.reshape(-1), scale, scales), 0)
        return dataclasses.replace(op, inputs=tuple(inputs))


def _channel_axis(op: Op, weight: Array) -> int | None:
    """The axis of a weight that counts output channels; None where it is quantized as a whole."""
    if op.op_type == "Conv":
        return 0
    if op.op_type == "ConvTranspose":
        return 1 if op.attrs.get("group", 1) == 1 else None
    if op.op_type == "Gemm":
        return 0 if op.attrs.get("transB", 0) else 1
    if op.op_type == "Einsum":
        return _einsum_axis(op)
    return 1 if weight.ndim == 2 else None


def _averages_whole(op: Op) -> bool:
    """Whether an op averages windows that lie inside. Means are close together, and a depthwise convolution
    gives them a grid of their own; what is padded has TFLite's pooling alone, with one grid for both sides.
    """
    auto = op.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    padded = any(op.integers("pads")) or bool(op.attrs.get("ceil_mode", 0))
    return op.op_type == "AveragePool" and auto and not padded


def _einsum_axis(op: Op) -> int | None:
    """The only axis of the second operand that the first has not: as weights have it."""
    terms, _, result = op.text("equation").replace(" ", "").partition("->")
    first, second = terms.split(",")
    own = [label for label in second if label not in first]
    return second.index(own[0]) if len(own) == 1 and own[0] in result and "." not in second else None
