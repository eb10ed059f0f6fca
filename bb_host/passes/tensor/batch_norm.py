"""Folds `BatchNormalization` of inference into the `Conv`, `ConvTranspose`, `Gemm` or `MatMul` before it.

1. Weights, bias and all four statistics are constants; the normalisation alone reads what it normalises. 2.
With `s = scale / sqrt(var + epsilon)`: the weights of each output channel times `s`, the bias
`(bias - mean) · s + B`, computed in float64. 3. A `MatMul` with a constant on its right becomes a `MatMul`
and an `Add`; an `Add` of a constant vector between the two is folded as well. 4. A `Gemm` keeps its alpha;
its beta is taken into the bias. 5. What does not fit (training, unknown weights, groups of a transposed
convolution) stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bb_host.ir.program import Array, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values, constant


def run(function: Function) -> Function:
    """The function with its normalisations folded; itself where none can be."""
    values = Values(function)
    replaced: dict[int, Sequence[Op]] = {}  # by the id of the op that it stands for
    for op in function.ops:
        if not is_onnx(op, "BatchNormalization") or id(op) in replaced:
            continue
        affine = _affine(op, values)
        producer = values.maker.get(op.inputs[0])
        if (
            affine is None
            or producer is None
            or not values.only_reader(op.inputs[0])
            or id(producer) in replaced
        ):
            continue
        folded = _fold(producer, op, *affine, values)
        if folded is not None:
            gone, ops = folded
            if any(id(other) in replaced for other in gone):
                continue
            replaced.update((id(other), ()) for other in gone)
            replaced[id(op)] = ops
    return function.with_ops(new for op in function.ops for new in replaced.get(id(op), (op,)))


def _affine(op: Op, values: Values) -> tuple[Array, Array] | None:
    """Factor and offset per channel, in float64; None where they are not known."""
    if op.attrs.get("training_mode") == 1 or op.attrs.get("spatial", 1) == 0:
        return None
    if any(op.outputs[1:]) or len(op.inputs) != 5:
        return None
    found = [values.constants.get(name) for name in op.inputs[1:]]
    parts = [array.astype(np.float64) for array in found if array is not None]
    if len(parts) != 4:
        return None
    scale, shift, mean, var = parts
    epsilon = op.attrs.get("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    factor = scale / np.sqrt(var + epsilon)
    return factor, shift - mean * factor


def _fold(
    producer: Op, norm: Op, factor: Array, offset: Array, values: Values
) -> tuple[tuple[Op, ...], list[Op]] | None:
    """The ops that go, beside the normalisation, and those that stand in its place."""
    if is_onnx(producer, "Conv", "ConvTranspose"):
        return _fold_conv(producer, norm, factor, offset, values)
    if is_onnx(producer, "Gemm"):
        return _fold_gemm(producer, norm, factor, offset, values)
    if is_onnx(producer, "MatMul"):
        return _fold_matmul(producer, None, norm, factor, offset, values)
    if is_onnx(producer, "Add"):
        for product, bias in (producer.inputs, producer.inputs[::-1]):
            maker = values.maker.get(product)
            array = values.constants.get(bias)
            if (
                maker is None
                or array is None
                or not is_onnx(maker, "MatMul")
                or not values.only_reader(product)
            ):
                continue
            return _fold_matmul(maker, (producer, array), norm, factor, offset, values)
    return None


def _new(name: str, wish: str, array: Array, dtype: np.dtype[Any], values: Values) -> tuple[str, Op]:
    fresh = values.fresh(f"{name or wish}_normalized")
    return fresh, constant(fresh, np.ascontiguousarray(array.astype(dtype)))


def _fold_conv(
    conv: Op, norm: Op, factor: Array, offset: Array, values: Values
) -> tuple[tuple[Op, ...], list[Op]] | None:
    weights = values.constants.get(conv.inputs[1])
    bias_name = conv.inputs[2] if len(conv.inputs) > 2 else ""
    bias = values.constants.get(bias_name) if bias_name else np.zeros(1)
    if weights is None or bias is None:
        return None
    axis = 0
    if conv.op_type == "ConvTranspose":
        if conv.attrs.get("group", 1) != 1:
            return None
        axis = 1
    if weights.ndim < 2 or weights.shape[axis] != factor.size:
        return None
    shape = [1] * weights.ndim
    shape[axis] = factor.size
    w_name, w = _new(conv.inputs[1], "weights", weights * factor.reshape(shape), weights.dtype, values)
    b_name, b = _new(bias_name, f"{conv.outputs[0]}_bias", bias * factor + offset, weights.dtype, values)
    folded = dataclasses.replace(conv, inputs=(conv.inputs[0], w_name, b_name), outputs=norm.outputs[:1])
    return (conv,), [w, b, folded]


def _fold_gemm(
    gemm: Op, norm: Op, factor: Array, offset: Array, values: Values
) -> tuple[tuple[Op, ...], list[Op]] | None:
    weights = values.constants.get(gemm.inputs[1])
    bias_name = gemm.inputs[2] if len(gemm.inputs) > 2 else ""
    bias = values.constants.get(bias_name) if bias_name else np.zeros(1)
    if weights is None or bias is None or weights.ndim != 2 or bias.size not in (1, factor.size):
        return None
    if gemm.attrs.get("transA") and values.rank(gemm.inputs[0]) != 2:
        return None
    transposed = bool(gemm.attrs.get("transB"))
    if weights.shape[0 if transposed else 1] != factor.size:
        return None
    beta = gemm.attrs.get("beta", 1.0)
    assert isinstance(beta, (int, float))
    total = float(beta) * bias.reshape(-1) * factor + offset
    scaled = weights * (factor[:, None] if transposed else factor)
    w_name, w = _new(gemm.inputs[1], "weights", scaled, weights.dtype, values)
    b_name, b = _new(bias_name, f"{gemm.outputs[0]}_bias", total, weights.dtype, values)
    attrs = {key: value for key, value in gemm.attrs.items() if key != "beta"}
    inputs = (gemm.inputs[0], w_name, b_name)
    return (gemm,), [w, b, dataclasses.replace(gemm, inputs=inputs, outputs=norm.outputs[:1], attrs=attrs)]


def _fold_matmul(
    matmul: Op, add: tuple[Op, Array] | None, norm: Op, factor: Array, offset: Array, values: Values
) -> tuple[tuple[Op, ...], list[Op]] | None:
    weights = values.constants.get(matmul.inputs[1])
    if weights is None or weights.ndim != 2 or weights.shape[1] != factor.size:
        return None
    if values.rank(matmul.inputs[0]) != 2:  # elsewhere the channels are not the last axis
        return None
    bias = np.zeros(1) if add is None else add[1]
    if bias.size not in (1, factor.size) or bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1):
        return None
    w_name, w = _new(matmul.inputs[1], "weights", weights * factor, weights.dtype, values)
    total = bias.reshape(-1) * factor + offset
    b_name, b = _new("", f"{matmul.outputs[0]}_bias", total, weights.dtype, values)
    product = values.fresh(f"{matmul.outputs[0]}_normalized")
    gone = (matmul,) if add is None else (matmul, add[0])
    return gone, [
        w,
        b,
        dataclasses.replace(matmul, inputs=(matmul.inputs[0], w_name), outputs=(product,)),
        Op("Add", "", (product, b_name), norm.outputs[:1]),
    ]
