"""Sampling and selection in images: GridSample, AffineGrid, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .errors import KernelShapeError
from .registry import Call, allow, kernel
from .shapes import bounded
from .spec import F32, F64, FLOAT, I64, Array, Prepared, TensorSpec

_MODES = {
    "bilinear": "linear", "bicubic": "cubic", "nearest": "nearest", "linear": "linear", "cubic": "cubic",
}  # fmt: skip
_CUBIC = -0.75


def _reflected(at: Array, low: float, high: float) -> Array:
    """Return positions mirrored at both borders until they lie inside."""
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    folded = np.mod(np.abs(at - low), 2 * span)
    return np.where(folded > span, 2 * span - folded, folded) + low


def _taps(at: Array, mode: str) -> Iterator[tuple[Array, Array]]:
    """Yield (places, weights) of every element that a position looks at along an axis."""
    if mode == "nearest":
        yield np.rint(at), np.ones_like(at)
        return
    first = np.floor(at)
    t = at - first
    if mode == "linear":
        yield first, 1.0 - t
        yield first + 1, t
        return
    for step in (-1, 0, 1, 2):
        d = np.abs(t - step)
        near = ((_CUBIC + 2.0) * d - (_CUBIC + 3.0)) * d * d + 1.0
        far = _CUBIC * (((d - 5.0) * d + 8.0) * d - 4.0)
        yield first + step, np.where(d <= 1.0, near, far)


@kernel("GridSample", "T U", since=16, dtypes2=FLOAT, attrs="align_corners mode padding_mode")
def _grid_sample(call: Call) -> Prepared:
    """GridSample (opset 16+) samples an image at given positions: Y[n,c,…] = X[n,c] at grid[n,…].

    X[N,C,size…], grid[N,out…,rank] in [-1, 1], innermost axis first → Y[N,C,out…]; any type, grid float.
    Shapes that do not fit raise KernelShapeError. Run allocates positions, weights and a float64 result.
    """
    x, grid = call.spec(0), call.spec(1)
    rank = len(x.shape) - 2
    if rank < 1 or len(grid.shape) != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise KernelShapeError(f"GridSample: X {x.shape} and grid {grid.shape} do not fit")
    if 0 in x.shape[2:]:
        raise KernelShapeError(f"GridSample: X {x.shape} has an empty axis, nothing to sample from")
    choices = ("linear", "nearest", "cubic") if call.version >= 20 else ("bilinear", "nearest", "bicubic")
    mode = _MODES[call.str_attr("mode", choices[0], choices)]
    padding = call.str_attr("padding_mode", "zeros", ("zeros", "border", "reflection"))
    align = call.int_attr("align_corners", 0) != 0
    size = x.shape[2:]
    out = TensorSpec(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * rank)

    def along(axis: int, position: Array) -> list[tuple[Array, Array]]:
        n = size[axis]
        at = (position + 1.0) / 2.0 * (n - 1) if align else ((position + 1.0) * n - 1.0) / 2.0
        at = np.where(np.isfinite(at), at, -1e6)
        low, high = (0.0, n - 1.0) if align else (-0.5, n - 0.5)
        if mode != "cubic" and padding == "reflection":
            at = _reflected(at, low, high)
        if mode != "cubic" and padding != "zeros":
            at = np.clip(at, 0, n - 1)
        taps = []
        for place, weight in _taps(at, mode):
            if padding == "reflection":
                place = _reflected(place, low, high)
            share = weight * ((place >= 0) & (place < n)) if padding == "zeros" else weight
            taps.append((np.clip(place, 0, n - 1).astype(np.intp), share))
        return taps

    def run(data: Array, where: Array, result: Array) -> None:
        positions = where.astype(F64)
        axes = [along(axis, positions[..., rank - 1 - axis]) for axis in range(rank)]
        last = np.moveaxis(data, 1, -1)
        total = np.zeros((*result.shape[:1], *result.shape[2:], x.shape[1]))
        for choice in product(*axes):
            places = (batch, *(place for place, _ in choice))
            share: Any = 1.0
            for _, weight in choice:
                share = share * weight
            total += last[places] * share[..., None]
        np.copyto(result, np.moveaxis(total, -1, 1), casting="unsafe")

    # Positions, and their places and weights for every tap; the sum, an addend, and what is picked for it.
    points = prod(grid.shape[:-1])
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
    working = points * 8 * (rank + 2 * rank * taps + 6) + out.size * (16 + x.dtype.itemsize)
    return Prepared((out,), run, working=working)


@kernel("AffineGrid", "T I", since=20, dtypes=FLOAT, half=True, needs=(1,), attrs="align_corners")
def _affine_grid(call: Call) -> Prepared:
    """AffineGrid (opset 20+) gives the positions of an image's elements under affine maps.

    theta[N,rank,rank+1], size[2+rank] → grid[N,size…,rank]; floats (float16 via float32). Sizes that do not
    fit raise KernelShapeError. Run allocates nothing.
    """
    theta, size = call.spec(0), call.int_list(1) or []
    rank = len(size) - 2
    if rank < 1 or theta.shape != (size[0], rank, rank + 1) or any(d < 0 for d in size):
        raise KernelShapeError(f"AffineGrid: theta {theta.shape} and size {size} do not fit")
    bounded(call, prod(size[2:]) * (rank + 1), "positions", 24)
    steps = []
    for n in size[2:]:
        edge = 1.0 if call.int_attr("align_corners", 0) else 1.0 - 1.0 / max(1, n)
        steps.append(np.linspace(-edge, edge, n) if n > 1 else np.zeros(n))
    axes = np.meshgrid(*steps, indexing="ij")
    points = np.stack([*axes[::-1], np.ones_like(axes[0])], -1).reshape(-1, rank + 1).astype(theta.dtype)
    out = TensorSpec(theta.dtype, (size[0], *size[2:], rank))

    def run(maps: Array, _size: Array, result: Array) -> None:
        np.matmul(points, maps.swapaxes(1, 2), result.reshape(size[0], -1, rank))

    return Prepared((out,), run)


def _corners(boxes: Array, centred: bool) -> Array:
    """Return boxes […, 4] as lower and upper corners, whichever diagonal they name."""
    if centred:
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)
    start, end = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(start, end), np.maximum(start, end)], -1)


def _overlap(box: Array, others: Array) -> Array:
    """Return the intersection over union of a box [4] with others [n,4], as [n]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    ratio: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratio


_ROW_BYTES = 256
"""Bytes of a kept box, as three Python numbers and as a row of the result."""


@kernel("NonMaxSuppression", "T T I? T? T?", since=10, dtypes=frozenset({F32}), attrs="center_point_box")
def _non_max_suppression(call: Call) -> Prepared:
    """NonMaxSuppression (opset 10+) keeps the best boxes, and none that overlaps a kept one too much.

    boxes[N,n,4], scores[N,C,n], most[]?, overlap[]?, least[]? → rows[k,3] = [batch, class, box], int64;
    float32. Shapes that do not fit raise KernelShapeError. The count depends on the data: run allocates its
    result.
    """
    boxes, scores = call.spec(0), call.spec(1)
    if (
        len(boxes.shape) != 3
        or len(scores.shape) != 3
        or boxes.shape != (scores.shape[0], scores.shape[2], 4)
    ):
        raise KernelShapeError(f"NonMaxSuppression: boxes {boxes.shape} and scores {scores.shape} do not fit")
    for i in (2, 3, 4):
        if call.has(i) and call.spec(i).size != 1:
            raise KernelShapeError(
                f"NonMaxSuppression: input {i} must be a single value, got shape {call.spec(i).shape}"
            )
    centred = call.int_attr("center_point_box", 0) != 0

    def run(places: Array, values: Array, *limits: Array | None, most: int = 0) -> tuple[Array]:
        count, overlap, least = (
            None if i >= len(limits) or limits[i] is None else np.asarray(limits[i]).reshape(()).item()
            for i in range(3)
        )
        kept: list[tuple[int, int, int]] = []
        corners = _corners(places, centred)
        for batch, label in product(range(values.shape[0]), range(values.shape[1])):
            own = values[batch, label]
            order = np.argsort(-own, kind="stable")
            if least is not None:
                order = order[own[order] > least]
            for _ in range(max(0, int(count or 0))):
                if not order.size:
                    break
                best = int(order[0])
                kept.append((batch, label, best))
                allow("NonMaxSuppression", _ROW_BYTES * len(kept), most)
                rest = order[1:]
                order = rest[_overlap(corners[batch, best], corners[batch, rest]) <= (overlap or 0.0)]
        return (np.array(kept, I64).reshape(-1, 3),)

    return Prepared((), run, dynamic=True)
