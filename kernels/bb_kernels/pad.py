"""Padding: constant, reflect, edge and wrap; negative amounts cut away."""

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
    """Return a kernel that pads (or cuts) the given axes.

    ``fill`` is the constant, or None where input 2 brings it in every run. Pads that do not fit raise
    KernelShapeError.
    """
    spec = call.spec(0)
    mode = call.str_attr("mode", "constant", modes)
    if len(pads) != 2 * len(axes):
        raise KernelShapeError(f"{call.op_type}: {len(axes)} axes need {2 * len(axes)} pads, got {len(pads)}")
    before, after = [0] * len(spec.shape), [0] * len(spec.shape)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    shape = tuple(b + n + a for b, n, a in zip(before, spec.shape, after, strict=True))
    if any(n < 0 for n in shape):
        raise KernelShapeError(f"{call.op_type}: pads {pads} cut away more than shape {spec.shape} has")
    out = TensorSpec(spec.dtype, shape)
    n_in = len(call.inputs)
    if mode == "constant":
        return _constant(call, out, before, after, fill)
    sources = tuple(
        _source_indices(call, mode, n, b, a) for n, b, a in zip(spec.shape, before, after, strict=True)
    )
    changed = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b or a]
    # Axis by axis, each from the result of the one before; the last writes the output.
    partial = [TensorSpec(spec.dtype, (*shape[: axis + 1], *spec.shape[axis + 1 :])) for axis in changed[:-1]]

    def run(x: Array, *rest: Array) -> None:
        result, temps = rest[n_in - 1], rest[n_in:]
        data = x
        for axis, target in zip(changed, (*temps, result), strict=False):
            data.take(sources[axis], axis, target, "clip")
            data = target
        if not changed:
            np.copyto(result, data)

    return Prepared((out,), run, tuple(partial))


def _constant(call: Call, out: TensorSpec, before: list[int], after: list[int], fill: Any) -> Prepared:
    """Return a kernel that fills the output with a constant and copies the input into its middle."""
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
    """Return which element each place of a padded axis repeats, int64 [before + n + after]."""
    bounded(call, before + n + after, "elements of a padded axis", 32)
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
    """Pad (opsets 7 to 10) pads every axis by attributes; ``mode`` is constant, reflect or edge.

    X[d…] → Y[before+d+after…]; floats. Missing pads raise KernelAttributeError, pads that do not fit
    KernelShapeError. Run allocates nothing.
    """
    pads = call.ints_attr("pads")
    if pads is None:
        raise KernelAttributeError("Pad: attribute pads is required")
    fill = np.array(call.float_attr("value", 0.0), call.spec(0).dtype)
    return _padded(call, pads, tuple(range(len(call.spec(0).shape))), ("constant", "reflect", "edge"), fill)


def _pad(call: Call) -> Prepared:
    """Pad (opsets 11 to 17; opset 18+ with axes; wrap since 19) pads or cuts axes by inputs.

    X[d…], pads, value[]?, axes? → Y[before+d+after…]; any type. ``mode`` is constant, reflect, edge or wrap.
    Pads that do not fit raise KernelShapeError. Run allocates nothing.
    """
    rank = len(call.spec(0).shape)
    named = call.int_list(3)
    axes = tuple(range(rank)) if named is None else axes_of(call, named, rank)
    if call.has(2) and call.spec(2).size != 1:
        raise KernelShapeError(f"Pad: the constant must be a single value, got shape {call.spec(2).shape}")
    modes = ("constant", "reflect", "edge", "wrap") if call.version >= 19 else ("constant", "reflect", "edge")
    fill = None if call.has(2) else np.zeros((), call.spec(0).dtype)
    return _padded(call, call.int_list(1) or [], axes, modes, fill)


kernel("Pad", "T I T?", since=11, until=17, attrs="mode", needs=(1,))(_pad)
kernel("Pad", "T I T? I?", since=18, attrs="mode", needs=(1, 3))(_pad)


@kernel("CenterCropPad", "T I", since=18, attrs="axes", needs=(1,))
def _center_crop_pad(call: Call) -> Prepared:
    """CenterCropPad (opset 18+) cuts or zero-pads axes around their centre to given sizes.

    X[d…], sizes → Y[size…]; any type. Sizes that do not fit the axes raise KernelShapeError. Run allocates
    nothing.
    """
    spec = call.spec(0)
    rank = len(spec.shape)
    named = call.ints_attr("axes")
    axes = tuple(range(rank)) if named is None else axes_of(call, named, rank)
    sizes = call.int_list(1) or []
    if len(sizes) != len(axes):
        raise KernelShapeError(f"CenterCropPad: {len(sizes)} sizes do not fit {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, sizes, strict=True):
        more = size - spec.shape[axis]
        # Both ways the odd element goes behind: floor of the half in front.
        before[axis] = more // 2 if more >= 0 else -(-more // 2)
        after[axis] = more - before[axis]
    shape = tuple(b + n + a for b, n, a in zip(before, spec.shape, after, strict=True))
    return _constant(call, TensorSpec(spec.dtype, shape), before, after, np.zeros((), spec.dtype))
