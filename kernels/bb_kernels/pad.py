"""Pad: constant, reflect, edge and wrap; negative amounts cut away."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .shapes import axes_of, bounded
from .spec import FLOAT, Array, Bound, Prepared, TensorSpec, run_bound


def _padded(
    call: Call, pads: list[int], axes: tuple[int, ...], modes: tuple[str, ...], fill: Any
) -> Prepared:
    """``fill``: the constant, or None when input 2 brings it in every run."""
    spec = call.spec(0)
    mode = call.str_attr("mode", "constant", modes)
    if len(pads) != 2 * len(axes):
        raise KernelShapeError(f"{call.op_type}: {len(pads)} pads for {len(axes)} axes")
    before, after = [0] * len(spec.shape), [0] * len(spec.shape)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    shape = tuple(b + n + a for b, n, a in zip(before, spec.shape, after, strict=True))
    if any(n < 0 for n in shape):
        raise KernelShapeError(f"{call.op_type}: pads {pads} cut more away than {spec.shape} has")
    out = TensorSpec(spec.dtype, shape)
    n_in = len(call.inputs)
    if mode == "constant":
        return _constant(call, out, before, after, fill)
    sources = tuple(
        _source_indices(call, mode, n, b, a) for n, b, a in zip(spec.shape, before, after, strict=True)
    )
    changed = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b or a]

    def run(x: Array, *rest: Array) -> None:
        data = x
        for axis in changed[:-1]:
            data = np.take(data, sources[axis], axis)
        if changed:
            np.take(data, sources[changed[-1]], changed[-1], rest[n_in - 1], "clip")
        else:
            np.copyto(rest[n_in - 1], data)

    return Prepared((out,), run)


def _constant(call: Call, out: TensorSpec, before: list[int], after: list[int], fill: Any) -> Prepared:
    n_in = len(call.inputs)
    source = tuple(
        slice(max(0, -b), max(0, n - max(0, -a)))
        for b, n, a in zip(before, call.spec(0).shape, after, strict=True)
    )
    target = tuple(
        slice(max(0, b), max(0, b) + s.stop - s.start) for b, s in zip(before, source, strict=True)
    )

    def bind(*arrays: Any) -> Bound:
        result, value = arrays[n_in], arrays[2] if fill is None else fill
        inner, data = result[target], arrays[0][source]

        def run() -> None:
            np.copyto(result, value)
            np.copyto(inner, data)

        return run

    return Prepared((out,), run_bound(bind), binder=bind)


def _source_indices(call: Call, mode: str, n: int, before: int, after: int) -> Array:
    """Which element each place of the padded axis repeats."""
    bounded(call, before + n + after, "elements of a padded axis")
    at: Array = np.arange(-before, n + after)
    if n == 0 and at.size:
        raise KernelShapeError(f"{call.op_type}: mode {mode} cannot pad an empty axis")
    if mode == "edge":
        return np.clip(at, 0, max(0, n - 1))
    if mode == "wrap":
        return np.mod(at, max(1, n))
    if n == 1:
        return np.zeros_like(at)
    at = np.mod(at, 2 * (n - 1))  # reflect runs there and back without repeating the edges
    return np.where(at >= n, 2 * (n - 1) - at, at)


@kernel("Pad", "T", until=10, dtypes=FLOAT, attrs="mode pads value")
def _pad_attrs(call: Call) -> Prepared:
    pads = call.ints_attr("pads")
    if pads is None:
        raise KernelAttributeError("Pad: attribute pads is required")
    fill = np.array(call.float_attr("value", 0.0), call.spec(0).dtype)
    return _padded(call, pads, tuple(range(len(call.spec(0).shape))), ("constant", "reflect", "edge"), fill)


def _pad(call: Call) -> Prepared:
    rank = len(call.spec(0).shape)
    named = call.int_list(3)
    axes = tuple(range(rank)) if named is None else axes_of(call, named, rank)
    if call.has(2) and call.spec(2).size != 1:
        raise KernelShapeError(f"Pad: the constant value must be one element, got shape {call.spec(2).shape}")
    modes = ("constant", "reflect", "edge", "wrap") if call.version >= 19 else ("constant", "reflect", "edge")
    fill = None if call.has(2) else np.zeros((), call.spec(0).dtype)
    return _padded(call, call.int_list(1) or [], axes, modes, fill)


kernel("Pad", "T I T?", since=11, until=17, attrs="mode", needs=(1,))(_pad)
kernel("Pad", "T I T? I?", since=18, attrs="mode", needs=(1, 3))(_pad)


@kernel("CenterCropPad", "T I", since=18, attrs="axes", needs=(1,))
def _center_crop_pad(call: Call) -> Prepared:
    """Cut or zero-pad each axis around its centre to a given size."""
    spec = call.spec(0)
    rank = len(spec.shape)
    named = call.ints_attr("axes")
    axes = tuple(range(rank)) if named is None else axes_of(call, named, rank)
    sizes = call.int_list(1) or []
    if len(sizes) != len(axes):
        raise KernelShapeError(f"CenterCropPad: {len(sizes)} sizes for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, sizes, strict=True):
        more = size - spec.shape[axis]
        # Both ways the odd element goes behind: floor of the half in front.
        before[axis] = more // 2 if more >= 0 else -(-more // 2)
        after[axis] = more - before[axis]
    shape = tuple(b + n + a for b, n, a in zip(before, spec.shape, after, strict=True))
    return _constant(call, TensorSpec(spec.dtype, shape), before, after, np.zeros((), spec.dtype))
