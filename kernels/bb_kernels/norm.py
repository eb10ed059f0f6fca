"""Normalisation: batch, layer, instance, group, root-mean-square, local response, and Lp."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import axes_of, axis_of, require_broadcast_to
from .spec import BOOL, F32, FLOAT, Array, Bound, Prepared, TensorSpec, run_bound
from .ufuncs import add_reduce


def _per_channel(call: Call, first: int, last: int, channels: int) -> None:
    """Raise KernelShapeError unless inputs ``first`` to ``last`` have an element per channel."""
    for i in range(first, last + 1):
        if call.spec(i).shape != (channels,):
            raise KernelShapeError(
                f"{call.op_type}: input {i} has shape {call.spec(i).shape}, expected ({channels},)"
            )


def _batch_norm_inference(call: Call) -> Prepared:
    """Return (x-mean)/sqrt(var+eps)·scale+bias with a multiplication and an addition per element.

    The statistics become a factor and an offset per channel: when preparing where they are known, else in
    every run.
    """
    x = call.spec(0)
    if len(x.shape) < 2:
        raise KernelShapeError(f"BatchNormalization: input {x.shape} must be [N,C,…]")
    channels = x.shape[1]
    _per_channel(call, 1, 4, channels)
    epsilon = call.float_attr("epsilon", 1e-5)
    column = (channels, *(1,) * (len(x.shape) - 2))
    small = TensorSpec(x.dtype, (channels,))
    offset_of_var = np.array(epsilon, x.dtype)

    def fold(scale: Array, bias: Array, mean: Array, var: Array, factor: Array, offset: Array) -> None:
        np.add(var, offset_of_var, factor, casting="unsafe")
        np.sqrt(factor, factor)
        np.divide(scale, factor, factor, casting="unsafe")
        np.multiply(mean, factor, offset, casting="unsafe")
        np.subtract(bias, offset, offset, casting="unsafe")

    known = [call.constant(i) for i in range(1, 5)]
    if all(k is not None for k in known):
        factor_k, offset_k = np.empty(small.shape, x.dtype), np.empty(small.shape, x.dtype)
        arrays: list[Any] = [*known, factor_k, offset_k]
        fold(*arrays)
        a, b = factor_k.reshape(column), offset_k.reshape(column)

        def run_known(
            data: Array, _s: Array, _b: Array, _m: Array, _v: Array, out: Array, *_unused: Any
        ) -> None:
            np.multiply(data, a, out)
            np.add(out, b, out)

        return Prepared((x,), run_known, inplace=(0,))

    def run(
        data: Array, scale: Array, bias: Array, mean: Array, var: Array, out: Array, f: Array, o: Array
    ) -> None:
        fold(scale, bias, mean, var, f, o)
        np.multiply(data, f.reshape(column), out)
        np.add(out, o.reshape(column), out)

    return Prepared((x,), run, (small, small), inplace=(0,))


@kernel("BatchNormalization", "T T T T T", until=8, dtypes=FLOAT, half=True, attrs="epsilon momentum spatial")
def _batch_norm_7(call: Call) -> Prepared:
    """BatchNormalization (opsets 7 to 8) scales each channel by known statistics.

    X[N,C,…], scale[C], bias[C], mean[C], var[C] → Y like X; floats (float16 via float32). spatial=0 raises
    KernelAttributeError. Run allocates nothing.
    """
    if call.int_attr("spatial", 1) != 1:
        raise KernelAttributeError("BatchNormalization: spatial=0 is not implemented")
    return _batch_norm_inference(call)


@kernel(
    "BatchNormalization", "T T T T T", since=9, until=13, dtypes=FLOAT, half=True, attrs="epsilon momentum"
)
def _batch_norm_9(call: Call) -> Prepared:
    """BatchNormalization (opsets 9 to 13) scales each channel by known statistics.

    X[N,C,…], scale[C], bias[C], mean[C], var[C] → Y like X; floats (float16 via float32). Run allocates
    nothing.
    """
    return _batch_norm_inference(call)


@kernel(
    "BatchNormalization", "T A A A A", since=14, dtypes=FLOAT, half=True, max_outputs=3,
    attrs="epsilon momentum training_mode",
)  # fmt: skip
def _batch_norm(call: Call) -> Prepared:
    """BatchNormalization (opset 14+) scales each channel by known statistics, or in training by the batch's.

    X[N,C,…], scale[C], bias[C], mean[C], var[C] → Y like X, running mean[C]?, running var[C]? (training only,
    else KernelShapeError); floats (float16 via float32), statistics of any type. Run allocates nothing in
    inference, a few vectors [C] in training.
    """
    if call.int_attr("training_mode", 0) == 0:
        if call.n_outputs != 1:
            raise KernelShapeError(
                "BatchNormalization: the running statistics come out in training mode only"
            )
        return _batch_norm_inference(call)
    x, mean_spec = call.spec(0), call.spec(3)
    channels = x.shape[1]
    _per_channel(call, 1, 4, channels)
    axes = (0, *range(2, len(x.shape)))
    column = (channels, *(1,) * (len(x.shape) - 2))
    keep = call.float_attr("momentum", 0.9)
    epsilon = call.float_attr("epsilon", 1e-5)
    share = 1.0 / max(1, prod(x.shape) // max(1, channels))
    row = TensorSpec(x.dtype, (1, *column))

    def run(
        data: Array, scale: Array, bias: Array, old_mean: Array, old_var: Array, out: Array, *rest: Any
    ) -> None:
        new = rest[: call.n_outputs - 1]
        mean, var, temp = rest[call.n_outputs - 1 :]
        add_reduce(data, axes, x.dtype, mean, True)
        np.multiply(mean, share, mean)
        np.subtract(data, mean, temp)
        np.square(temp, out)
        add_reduce(out, axes, x.dtype, var, True)
        np.multiply(var, share, var)
        for target, old, fresh in zip(new, (old_mean, old_var), (mean, var), strict=False):
            if target is not None:
                np.copyto(target, old * keep + fresh.reshape(-1) * (1.0 - keep), casting="unsafe")
        np.add(var, epsilon, var)
        np.sqrt(var, var)
        np.divide(temp, var, temp)
        np.multiply(temp, scale.reshape(column), temp, casting="unsafe")
        np.add(temp, bias.reshape(column), out, casting="unsafe")

    outputs = (x, TensorSpec(mean_spec.dtype, (channels,)), TensorSpec(call.spec(4).dtype, (channels,)))
    return Prepared(outputs[: call.n_outputs], run, (row, row, x))


def standardise(
    x: Array,
    axes: tuple[int, ...],
    share: float,
    epsilon: float,
    out: Array,
    mean: Array,
    spread: Array,
    temp: Array,
) -> None:
    """Compute (x-mean)/sqrt(var+eps) over ``axes`` into ``out``, which may be ``x``; allocates nothing.

    x[…] → out like x; ``mean`` and ``spread`` have 1 in place of the axes, ``temp`` is like x. ``share`` is 1
    divided by the number of elements per mean. ``spread`` is left as 1/sqrt(var+eps).
    """
    add_reduce(x, axes, None, mean, True)
    np.multiply(mean, share, mean)
    np.subtract(x, mean, out)
    np.square(out, temp)
    add_reduce(temp, axes, None, spread, True)
    np.multiply(spread, share, spread)
    np.add(spread, epsilon, spread)
    np.sqrt(spread, spread)
    np.reciprocal(spread, spread)
    np.multiply(out, spread, out)


@kernel(
    "LayerNormalization",
    "T T T?",
    since=17,
    dtypes=FLOAT,
    half=True,
    max_outputs=3,
    attrs="axis epsilon stash_type",
)
def _layer_norm(call: Call) -> Prepared:
    """LayerNormalization (opset 17+) standardises the axes from ``axis`` on, then scales and shifts.

    X[…], scale, bias? → Y like X, mean?, 1/deviation? (float32, 1 in place of the axes); floats (float16 via
    float32). Scales that do not broadcast raise KernelShapeError, a ``stash_type`` other than 1
    KernelAttributeError. Run allocates nothing.
    """
    x = call.spec(0)
    rank = len(x.shape)
    axes = tuple(range(axis_of(call, call.int_attr("axis", -1), rank), rank))
    if call.int_attr("stash_type", 1) != 1:
        raise KernelAttributeError("LayerNormalization: stash_type other than 1 (float32) is not implemented")
    for i in (1, 2):
        if call.has(i):
            require_broadcast_to(call, call.spec(i).shape, x.shape)
    share = 1.0 / max(1, prod(x.shape[a] for a in axes))
    epsilon = call.float_attr("epsilon", 1e-5)
    row = TensorSpec(x.dtype, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))
    n_in, n_out = len(call.inputs), call.n_outputs

    def run(*arrays: Any) -> None:
        out, extra = arrays[n_in], arrays[n_in + 1 : n_in + n_out]
        mean, spread, temp = arrays[n_in + n_out :]
        standardise(arrays[0], axes, share, epsilon, out, mean, spread, temp)
        np.multiply(out, arrays[1], out)
        if n_in > 2:
            np.add(out, arrays[2], out)
        for target, source in zip(extra, (mean, spread), strict=False):
            if target is not None:
                np.copyto(target, source, casting="unsafe")

    outputs = (x, TensorSpec(F32, row.shape), TensorSpec(F32, row.shape))
    return Prepared(outputs[:n_out], run, (row, row, x), inplace=(0,))


@kernel(
    "RMSNormalization",
    "T U",
    since=23,
    dtypes=FLOAT,
    dtypes2=FLOAT,
    half=True,
    attrs="axis epsilon stash_type",
)
def _rms_norm(call: Call) -> Prepared:
    """RMSNormalization (opset 23+) divides by the root of the mean square from ``axis`` on, then scales.

    X[…], scale → Y like X in scale's type; floats (float16 via float32). A scale that does not broadcast
    raises KernelShapeError, a ``stash_type`` other than 1 KernelAttributeError. Run allocates nothing.
    """
    x = call.spec(0)
    rank = len(x.shape)
    axes = tuple(range(axis_of(call, call.int_attr("axis", -1), rank), rank))
    if call.int_attr("stash_type", 1) != 1:
        raise KernelAttributeError("RMSNormalization: stash_type other than 1 (float32) is not implemented")
    require_broadcast_to(call, call.spec(1).shape, x.shape)
    share = 1.0 / max(1, prod(x.shape[a] for a in axes))
    epsilon = call.float_attr("epsilon", 1e-5)
    row = TensorSpec(x.dtype, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))

    def run(data: Array, scale: Array, out: Array, temp: Array, spread: Array) -> None:
        np.square(data, temp)
        add_reduce(temp, axes, None, spread, True)
        np.multiply(spread, share, spread)
        np.add(spread, epsilon, spread)
        np.sqrt(spread, spread)
        np.divide(data, spread, out)
        np.multiply(out, scale, out, casting="unsafe")

    return Prepared((TensorSpec(call.spec(1).dtype, x.shape),), run, (x, row))


@kernel("InstanceNormalization", "T T T", dtypes=FLOAT, half=True, attrs="epsilon")
def _instance_norm(call: Call) -> Prepared:
    """InstanceNormalization (opset 7+) standardises each channel of each image, then scales and shifts it.

    X[N,C,…], scale[C], bias[C] → Y like X; floats (float16 via float32). A rank below 3 raises
    KernelShapeError. Run allocates nothing.
    """
    x = call.spec(0)
    if len(x.shape) < 3:
        raise KernelShapeError(f"InstanceNormalization: input {x.shape} must be [N,C,spatial]")
    _per_channel(call, 1, 2, x.shape[1])
    return _grouped(call, x.shape[1], per_group=False)


@kernel(
    "GroupNormalization", "T T T", since=18, until=20, dtypes=FLOAT, half=True, attrs="epsilon num_groups"
)
def _group_norm_18(call: Call) -> Prepared:
    """GroupNormalization (opsets 18 to 20) standardises groups of channels, with scale and bias per group.

    X[N,C,…], scale[G], bias[G] → Y like X; floats (float16 via float32). Channels that do not divide into
    ``num_groups`` raise KernelShapeError. Run allocates nothing.
    """
    groups = call.int_attr("num_groups")
    _per_channel(call, 1, 2, groups)
    return _grouped(call, groups, per_group=True)


@kernel(
    "GroupNormalization", "T T T", since=21, dtypes=FLOAT, half=True, attrs="epsilon num_groups stash_type"
)
def _group_norm(call: Call) -> Prepared:
    """GroupNormalization (opset 21+) standardises groups of channels, with scale and bias per channel.

    X[N,C,…], scale[C], bias[C] → Y like X; floats (float16 via float32). Channels that do not divide into
    ``num_groups`` raise KernelShapeError. Run allocates nothing.
    """
    _per_channel(call, 1, 2, call.spec(0).shape[1])
    return _grouped(call, call.int_attr("num_groups"), per_group=False)


def _grouped(call: Call, groups: int, per_group: bool) -> Prepared:
    """Return a kernel that standardises groups of channels, then scales and shifts per channel or group."""
    x = call.spec(0)
    batch, channels = x.shape[:2]
    if groups < 1 or channels % groups:
        raise KernelShapeError(f"{call.op_type}: {channels} channels do not divide into {groups} groups")
    parts = (batch, groups, prod(x.shape[1:]) // groups)
    share = 1.0 / max(1, parts[2])
    epsilon = call.float_attr("epsilon", 1e-5)
    row = TensorSpec(x.dtype, (batch, groups, 1))

    def bind(data: Any, scale: Any, bias: Any, out: Any, temp: Any, mean: Any, spread: Any) -> Bound:
        flat_out, flat_temp = out.reshape(parts), temp.reshape(parts)
        shaped = flat_out if per_group else out.reshape(batch, channels, -1)
        s, b = scale.reshape(-1, 1), bias.reshape(-1, 1)

        def run() -> None:
            np.copyto(out, data)
            standardise(flat_out, (2,), share, epsilon, flat_out, mean, spread, flat_temp)
            np.multiply(shaped, s, shaped)
            np.add(shaped, b, shaped)

        return run

    return Prepared((x,), run_bound(bind), (x, row, row), inplace=(0,), binder=bind)


@kernel("LpNormalization", "T", dtypes=FLOAT, half=True, attrs="axis p")
def _lp_norm(call: Call) -> Prepared:
    """LpNormalization (opset 7+) divides by the 1- or 2-norm along an axis; a zero vector stays zero.

    X[…] → Y like X; floats (float16 via float32). Another ``p`` raises KernelAttributeError. Run allocates
    nothing.
    """
    x = call.spec(0)
    axis = axis_of(call, call.int_attr("axis", -1), len(x.shape))
    p = call.int_attr("p", 2)
    if p not in (1, 2):
        raise KernelAttributeError(f"LpNormalization: p={p}, only 1 and 2 exist")
    row = TensorSpec(x.dtype, tuple(1 if i == axis else d for i, d in enumerate(x.shape)))

    def run(data: Array, out: Array, total: Array, temp: Array, zero: Array) -> None:
        (np.absolute if p == 1 else np.square)(data, temp)
        add_reduce(temp, axis, None, total, True)
        if p == 2:
            np.sqrt(total, total)
        np.equal(total, 0, zero)
        np.copyto(total, 1, where=zero)  # a zero vector stays zero
        np.divide(data, total, out)

    return Prepared((x,), run, (row, x, TensorSpec(BOOL, row.shape)), inplace=(0,))


@kernel("MeanVarianceNormalization", "T", since=9, dtypes=FLOAT, half=True, attrs="axes")
def _mean_variance_norm(call: Call) -> Prepared:
    """MeanVarianceNormalization (opset 9+) standardises over some axes, by default [0, 2, 3].

    X[…] → Y like X; floats (float16 via float32). Axes out of range raise KernelShapeError. Run allocates
    nothing.
    """
    x = call.spec(0)
    axes = axes_of(call, call.ints_attr("axes") or [0, 2, 3], len(x.shape))
    row = TensorSpec(x.dtype, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))
    share = 1.0 / max(1, prod(x.shape[a] for a in axes))

    def run(data: Array, out: Array, mean: Array, spread: Array, temp: Array) -> None:
        standardise(data, axes, share, 1e-9, out, mean, spread, temp)

    return Prepared((x,), run, (row, row, x), inplace=(0,))


@kernel("LRN", "T", dtypes=FLOAT, half=True, attrs="alpha beta bias size")
def _lrn(call: Call) -> Prepared:
    """LRN (opset 7+) computes x / (bias + alpha/size·Σ x²)^beta, the sum over ``size`` neighbouring channels.

    X[N,C,…] → Y like X; floats (float16 via float32). A rank below 2 and a size below 1 raise
    KernelShapeError. Run allocates nothing.
    """
    x = call.spec(0)
    if len(x.shape) < 2:
        raise KernelShapeError(f"LRN: input {x.shape} must be [N,C,…]")
    size, channels = call.int_attr("size"), x.shape[1]
    if size < 1:
        raise KernelShapeError(f"LRN: size must be positive, got {size}")
    scale = call.float_attr("alpha", 1e-4) / size
    beta, bias = call.float_attr("beta", 0.75), call.float_attr("bias", 1.0)
    below, above = (size - 1) // 2, size - 1 - (size - 1) // 2

    def run(data: Array, out: Array, squares: Array, total: Array) -> None:
        np.square(data, squares)
        total.fill(0)
        for shift in range(max(-below, 1 - channels), min(above, channels - 1) + 1):
            first, end = max(0, -shift), min(channels, channels - shift)
            if first < end:
                part = total[:, first:end]
                np.add(part, squares[:, first + shift : end + shift], part)
        np.multiply(total, scale, total)
        np.add(total, bias, total)
        np.power(total, -beta, total)
        np.multiply(data, total, out)

    return Prepared((x,), run, (x, x), inplace=(0,))
