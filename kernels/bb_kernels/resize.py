"""Resize and Upsample: separable sampling along each axis.

Per axis the position of every result in the input is computed when preparing. Nearest neighbour is then a
list of indices; linear and cubic are a small matrix of weights per axis, applied as a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, prod
from typing import Any, NamedTuple

import numpy as np

from .errors import KernelShapeError, UnsupportedDtypeError
from .registry import Call, kernel
from .shapes import axes_of, bounded
from .spec import F64, FLOAT, Array, Bound, Prepared, TensorSpec, run_bound

_TRANSFORMS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
_LARGEST_SCALE = 1e9
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class _Axis(NamedTuple):
    """An axis: n input elements, m results, the scale, and the part of the input that is looked at."""

    n: int
    m: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _positions(axis: _Axis, transform: str) -> Array:
    """Return where each of the m results lies in the input, in elements, float64 [m]."""
    i = np.arange(axis.m, dtype=F64)
    n, s = axis.n, axis.scale
    if transform == "align_corners":
        span = n * s - 1.0
        return i * (n - 1) / span if axis.m > 1 and span else np.zeros_like(i)
    if transform == "asymmetric":
        return i / s
    if transform == "tf_half_pixel_for_nn":
        return (i + 0.5) / s
    if transform == "tf_crop_and_resize":
        if axis.m > 1:
            return axis.start * (n - 1) + i * (axis.end - axis.start) * (n - 1) / (axis.m - 1)
        return np.full_like(i, 0.5 * (axis.start + axis.end) * (n - 1))
    if transform == "pytorch_half_pixel" and axis.m == 1:
        return np.zeros_like(i)
    at = (i + 0.5) / s - 0.5
    if transform == "half_pixel_symmetric":
        at += n / 2.0 * (1.0 - axis.m / (n * s))
    return at


def _nearest(at: Array, rounding: str, n: int) -> Array:
    """Return the index of the element nearest to each position, within 0..n-1."""
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }[rounding]()
    return np.clip(rounded, 0, n - 1).astype(np.intp)


def _linear(distance: Array) -> Array:
    """Return the weights of linear interpolation at a distance."""
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _cubic(distance: Array, a: float) -> Array:
    """Return the weights of Keys' cubic convolution at a distance."""
    t = np.abs(distance)
    near = ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
    far = a * (((t - 5.0) * t + 8.0) * t - 4.0)
    return np.where(t <= 1.0, near, np.where(t < 2.0, far, 0.0))


def _taps(axis: _Axis, mode: str, antialias: bool) -> int:
    """Return how many elements on each side of a position have a share in its result."""
    reach = 1 if mode == "linear" else 2
    return floor(reach / (min(1.0, axis.scale) if antialias else 1.0)) + 1


def _weights(axis: _Axis, at: Array, mode: str, a: float, antialias: bool, inside_only: bool) -> Array:
    """Return the weights [m, n] of every input element in every result, float64."""
    stretch = min(1.0, axis.scale) if antialias else 1.0
    taps = _taps(axis, mode, antialias)
    first = np.floor(at).astype(np.int64)
    places = first[:, None] + np.arange(-taps, taps + 1)
    distance = (places - at[:, None]) * stretch
    share = _linear(distance) if mode == "linear" else _cubic(distance, a)
    if inside_only:
        share = np.where((places >= 0) & (places < axis.n), share, 0.0)
    if inside_only or antialias:
        share = share / share.sum(1, keepdims=True)
    table = np.zeros((axis.m, axis.n))
    np.add.at(table, (np.arange(axis.m)[:, None], np.clip(places, 0, axis.n - 1)), share)
    return table


def _resized(call: Call, axes: list[_Axis], transform: str, mode: str) -> Prepared:
    """Return a kernel that samples every axis; KernelShapeError where its tables would be too large."""
    spec = call.spec(0)
    n_in = len(call.inputs)
    out = TensorSpec(spec.dtype, tuple(axis.m for axis in axes))
    rounding = call.str_attr("nearest_mode", "round_prefer_floor", _ROUNDINGS)
    if call.version < 11:
        rounding = "floor"  # before opset 11 there was neither choice
    moving = [
        i
        for i, axis in enumerate(axes)
        if axis.m != axis.n or axis.scale != 1.0 or transform.startswith("tf_crop")
    ]
    antialias = call.int_attr("antialias", 0) != 0
    for i in moving:
        if mode == "nearest":
            bounded(call, axes[i].m, f"indices for axis {i}", 40)
        else:
            bounded(call, axes[i].m * axes[i].n, f"weights for axis {i}", 8)
            taps = axes[i].m * (2 * _taps(axes[i], mode, antialias) + 1)
            bounded(call, taps, f"weights for axis {i}", 48)
    if transform == "tf_crop_and_resize":
        bounded(call, prod(axes[i].m for i in moving), "results to mask")
    at = {i: _positions(axes[i], transform) for i in moving}
    outside = None
    if transform == "tf_crop_and_resize":
        masks = [
            ((at[i] < 0) | (at[i] > axes[i].n - 1)).reshape(-1, *(1,) * (len(axes) - 1 - i)) for i in moving
        ]
        outside = np.logical_or.reduce(np.broadcast_arrays(*masks)) if masks else None
    fill = np.array(call.float_attr("extrapolation_value", 0.0))

    def finish(result: Array) -> None:
        if outside is not None:
            np.copyto(result, fill, where=outside, casting="unsafe")

    if mode == "nearest" or not moving:
        return _nearest_resized(call, out, {i: _nearest(at[i], rounding, axes[i].n) for i in moving}, finish)
    if spec.dtype not in FLOAT:
        raise UnsupportedDtypeError(
            f"{call.op_type}: mode {mode} of element type {spec.dtype} is not implemented"
        )
    a, inside = call.float_attr("cubic_coeff_a", -0.75), call.int_attr("exclude_outside", 0) != 0
    antialias = call.int_attr("antialias", 0) != 0
    tables = {i: _weights(axes[i], at[i], mode, a, antialias, inside).astype(spec.dtype) for i in moving}
    shapes, shape = [], list(spec.shape)
    for i in moving:
        shape[i] = axes[i].m
        shapes.append(tuple(shape))

    def bind(*arrays: Any) -> Bound:
        targets = [*arrays[n_in + 1 :], arrays[n_in]]
        result = arrays[n_in]

        def run() -> None:
            source = arrays[0]
            for i, target in zip(moving, targets, strict=True):
                lead, tail = prod(source.shape[:i]), prod(source.shape[i + 1 :])
                np.matmul(tables[i], source.reshape(lead, -1, tail), target.reshape(lead, -1, tail))
                source = target
            finish(result)

        return run

    scratch = tuple(TensorSpec(spec.dtype, s) for s in shapes[:-1])
    return Prepared((out,), run_bound(bind), scratch, binder=bind)


def _nearest_resized(
    call: Call, out: TensorSpec, sources: dict[int, Array], finish: Callable[[Array], None]
) -> Prepared:
    """Return a kernel that picks elements axis by axis, by lists of indices."""
    n_in = len(call.inputs)
    # The last axis first: those before it are then copied line by line, which is faster.
    order = sorted(sources, reverse=True)
    shape, partial = list(call.spec(0).shape), []
    for axis in order[:-1]:
        shape[axis] = out.shape[axis]
        partial.append(TensorSpec(out.dtype, tuple(shape)))

    def run(*arrays: Any) -> None:
        data, result, temps = arrays[0], arrays[n_in], arrays[n_in + 1 :]
        for axis, target in zip(order, (*temps, result), strict=False):
            data.take(sources[axis], axis, target, "clip")
            data = target
        if not order:
            np.copyto(result, data)
        finish(result)

    return Prepared((out,), run, tuple(partial))


def _by_scales(call: Call, scales: list[float], transform: str) -> Prepared:
    """Return a Resize by a scale per axis; KernelShapeError where they do not fit the shape."""
    shape = call.spec(0).shape
    if len(scales) != len(shape) or not all(0 < s < _LARGEST_SCALE for s in scales):
        raise KernelShapeError(f"{call.op_type}: scales {scales} do not fit shape {shape}")
    axes = [_Axis(n, floor(n * s), s) for n, s in zip(shape, scales, strict=True)]
    return _resized(call, axes, transform, call.str_attr("mode", "nearest", ("nearest", "linear", "cubic")))


@kernel("Upsample", "T", until=8, attrs="mode scales")
def _upsample_attr(call: Call) -> Prepared:
    """Upsample (opsets 7 to 8) resizes by scales from an attribute.

    X[d…] → Y[floor(d·scale)…]; any type, floats for linear. Scales that do not fit raise KernelShapeError.
    Run allocates nothing where X is contiguous.
    """
    return _by_scales(call, call.floats_attr("scales") or [], "asymmetric")


def _scales_input(call: Call) -> Prepared:
    """Upsample (opset 9+) and Resize (opset 10) resize by scales from an input.

    X[d…], scales → Y[floor(d·scale)…]; any type, floats for linear. Scales that do not fit raise
    KernelShapeError. Run allocates nothing where X is contiguous. Opset 10 replaced Upsample by Resize; older
    programs still have it.
    """
    values = call.constant(1)
    return _by_scales(call, [] if values is None else [float(v) for v in values.reshape(-1)], "asymmetric")


# Upsample was deprecated in opset 10 in favour of Resize; the kernel stays for programs that still use it.
kernel("Upsample", "T A", since=9, attrs="mode", needs=(1,))(_scales_input)
kernel("Resize", "T A", since=10, until=10, attrs="mode", needs=(1,))(_scales_input)


def _resize(call: Call) -> Prepared:
    """Resize (opset 11+) resizes by scales or to sizes.

    X[d…], region?, scales?, sizes? → Y[…]; any type, floats for linear and cubic (float16 via float32).
    Neither scales nor sizes, and those that do not fit, raise KernelShapeError; other types raise
    UnsupportedDtypeError. Run allocates nothing where X is contiguous.
    """
    spec = call.spec(0)
    rank = len(spec.shape)
    named = call.ints_attr("axes")
    chosen = tuple(range(rank)) if named is None else axes_of(call, named, rank)
    transform = call.str_attr("coordinate_transformation_mode", "half_pixel", _TRANSFORMS)
    roi, factors, sizes = call.constant(1), call.constant(2), call.int_list(3)
    scales = [1.0] * rank
    target = list(spec.shape)
    if sizes:
        if len(sizes) != len(chosen):
            raise KernelShapeError(f"Resize: {len(sizes)} sizes for {len(chosen)} axes")
        ratios = [size / max(1, spec.shape[axis]) for axis, size in zip(chosen, sizes, strict=True)]
        policy = call.str_attr(
            "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
        )
        for axis, size, ratio in zip(chosen, sizes, ratios, strict=True):
            scales[axis], target[axis] = ratio, size
        if policy != "stretch":
            common = min(ratios) if policy == "not_larger" else max(ratios)
            for axis in chosen:
                scales[axis], target[axis] = common, floor(common * spec.shape[axis] + 0.5)
    elif factors is not None and factors.size == len(chosen):
        for axis, value in zip(chosen, factors.reshape(-1), strict=True):
            scales[axis] = float(value)
            if not 0 < scales[axis] < _LARGEST_SCALE:
                raise KernelShapeError(f"Resize: scale {value} is out of range")
            target[axis] = floor(spec.shape[axis] * scales[axis])
    else:
        raise KernelShapeError("Resize: either sizes or a scale per axis is required")
    if not all(0 < s < _LARGEST_SCALE for s in scales):
        raise KernelShapeError(f"Resize: scales {scales} must be positive")
    region = [(0.0, 1.0)] * rank
    if transform == "tf_crop_and_resize":
        if roi is None or roi.size != 2 * len(chosen):
            raise KernelShapeError(
                "Resize: tf_crop_and_resize needs a region with start and end of every axis"
            )
        bounds = [float(v) for v in roi.reshape(-1)]
        for i, axis in enumerate(chosen):
            region[axis] = (bounds[i], bounds[i + len(chosen)])
    axes = [_Axis(n, m, s, *r) for n, m, s, r in zip(spec.shape, target, scales, region, strict=True)]
    if any(axis.m < 0 or (axis.n == 0 and axis.m) for axis in axes):
        raise KernelShapeError(f"Resize: {spec.shape} cannot become {target}")
    return _resized(call, axes, transform, call.str_attr("mode", "nearest", ("nearest", "linear", "cubic")))


kernel(
    "Resize", "T A? A? I?", since=11, needs=(1, 2, 3), half=True,
    attrs="coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value mode nearest_mode"
    " antialias@18 axes@18 keep_aspect_ratio_policy@18",
)(_resize)  # fmt: skip
