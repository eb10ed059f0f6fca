"""Gradients of what resizes, repeats, pads and takes along axes by a fixed pattern."""

from __future__ import annotations

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Array, Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import slopes, unary
from bb_host.learn.linear_maps import adjoint, matrix_of

# --- Resize ---------------------------------------------------------------------------------------


@unary("Resize")
def _resize(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Every mode is a matrix along each axis that changes: nearest, linear and cubic alike."""
    rank = g.rank(op, x)
    if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotDifferentiableError(op, "it keeps the aspect ratio", "resize by sizes or scales alone")
    axes = g.int_list(op, "axes", len(op.inputs)) or list(range(rank))
    axes = [axis % rank for axis in axes]
    known_x = g.shape(x) or (None,) * rank
    known_y = g.shape(y) or (None,) * rank
    scales = _settings(g, op, 2, len(axes))
    region = _settings(g, op, 1, 2 * len(axes))
    crops = op.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    matrices: dict[int, Array] = {}
    for place, axis in enumerate(axes):
        before, after = known_x[axis], known_y[axis]
        part = None if not crops or region is None else (region[place], region[place + len(axes)])
        if scales is not None and scales[place] == 1 and part is None:
            continue
        if before == after and not isinstance(before, int) and before is not None and scales is None:
            continue
        if not isinstance(before, int) and axis < 2 and scales is None:
            continue  # batch and channels keep their number, whoever computes the sizes
        (length,) = g.static_dims(op, x, [axis])
        matrices[axis] = _along(g, op, length, after, None if scales is None else scales[place], part)
    shape = [
        matrices[axis].shape[0] if axis in matrices else dim for axis, dim in enumerate(known_x)
    ]  # fmt: skip
    return adjoint(g, dy, tuple(shape), matrices, x)


def _settings(g: GradientBuilder, op: Op, position: int, count: int) -> list[float] | None:
    """A constant input as numbers; None where it is left out or empty."""
    if position >= len(op.inputs) or not op.inputs[position]:
        return None
    shape = g.shape(op.inputs[position])
    known = g.constant(op.inputs[position])
    if known is None and shape == (0,):
        return None
    if known is None:
        raise NotDifferentiableError(op, "its scales or its region are computed", "make them constants")
    numbers = [float(v) for v in known.reshape(-1)]
    return numbers if len(numbers) == count else None


def _along(
    g: GradientBuilder,
    op: Op,
    length: int,
    after: int | str | None,
    scale: float | None,
    region: tuple[float, float] | None,
) -> Array:
    """The matrix along one axis, from the kernel: the same op on a square whose second axis stays."""
    settings: dict[int, Array] = {}
    if region is not None:
        settings[1] = np.array([region[0], 0, region[1], 1], np.float32)
    if scale is not None:
        settings[2] = np.array([scale, 1], np.float32)
    elif isinstance(after, int):
        settings[3] = np.array([after, length], np.int64)
    else:
        what = "the sizes that it resizes to are not known in numbers"
        hint = "give the model's input fixed dimensions, or resize by constant scales"
        raise NotDifferentiableError(op, what, hint)
    attrs = {k: v for k, v in op.attrs.items() if k not in ("axes", "extrapolation_value")}
    attrs["extrapolation_value"] = 0.0
    plain = Op(op.op_type, op.domain, (), (), attrs, name=op.name)
    return matrix_of(g, plain, length, settings)


# --- padding --------------------------------------------------------------------------------------


@unary("Pad")
def _pad(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Constant padding is cut off, and what was cut gets zeros; mirrored entries add up."""
    rank = g.rank(op, x)
    given = g.int_list(op, "pads", 1)
    if given is None:
        raise NotDifferentiableError(op, "it has no pads")
    axes = g.int_list(op, "axes", 3) or list(range(rank))
    begin, end = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begin[axis % rank], end[axis % rank] = given[place], given[place + len(axes)]
    if op.text("mode", "constant") != "constant":
        matrices: dict[int, Array] = {}
        shape = list(g.shape(x) or (None,) * rank)
        for axis in (a for a in range(rank) if begin[a] or end[a]):
            (length,) = g.static_dims(op, x, [axis])
            pads = np.array([begin[axis], 0, end[axis], 0], np.int64)
            plain = Op("Pad", op.domain, (), (), {"mode": op.attrs["mode"]}, name=op.name)
            matrices[axis] = matrix_of(g, plain, length, {1: pads})
            shape[axis] = matrices[axis].shape[0]
        return adjoint(g, dy, tuple(shape), matrices, x)
    if min(begin + end, default=0) < 0:  # what was cut comes back as zeros
        return g.op("Pad", dy, g.ints(*(-p for p in (*begin, *end))))
    far = np.iinfo(np.int64).max
    ends = [-p if p else far for p in end]
    return g.op("Slice", dy, g.ints(*begin), g.ints(*ends))


# --- taking ---------------------------------------------------------------------------------------


@unary("Slice")
def _slice(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Zeros around the gradient, and between its entries where it steps."""
    rank = g.rank(op, x)
    starts, ends = g.int_list(op, "starts", 1), g.int_list(op, "ends", 2)
    assert starts is not None
    assert ends is not None
    axes = g.int_list(op, "axes", 3) or list(range(len(starts)))
    steps = g.int_list(op, "steps", 4) or [1] * len(starts)
    before, after = [0] * rank, [0] * rank
    far = np.iinfo(np.int32).max  # what exporters write for an end that is meant to be none
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis % rank
        if start == 0 and end >= far and step == 1:
            continue  # whole, whatever its length
        if start >= 0 and end < 0 and step == 1 and not isinstance((g.shape(x) or ())[axis], int):
            before[axis], after[axis] = start, -end  # both ends are told from their own side
            continue
        (dim,) = g.static_dims(op, x, [axis])
        taken = range(*slice(start, end, step).indices(dim))
        if step == 1 or not taken:
            before[axis] = taken.start if taken else 0
            after[axis] = dim - before[axis] - len(taken)
        else:
            dy = _spread(g, dy, rank, axis, dim, taken)
    if any(before) or any(after):
        dy = g.op("Pad", dy, g.ints(*before, *after))
    return dy


def _spread(g: GradientBuilder, dy: str, rank: int, axis: int, dim: int, taken: range) -> str:
    """Each entry to its place of `dim`; all others take the zero that is put behind the entries."""
    places = np.full(dim, len(taken), np.int64)
    places[np.asarray(taken)] = np.arange(len(taken))
    ends = [0] * rank
    ends[axis] = 1
    with_zero = g.op("Pad", dy, g.ints(*[0] * rank, *ends))
    return g.op("Gather", with_zero, g.const(places), axis=axis)


@unary("Tile")
def _tile(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The copies lie one behind the other along each axis; they are summed."""
    rank = g.rank(op, x)
    repeats = g.int_list(op, "repeats", 1)
    assert repeats is not None
    dims = list(g.shape(x) or ())
    repeated = [axis for axis in range(rank) if repeats[axis] != 1]
    if not repeated:
        return dy
    split: list[int | str | None] = []
    copies: list[int] = []
    for axis, dim in enumerate(dims):
        if repeats[axis] != 1:
            copies.append(len(split))
            split.append(repeats[axis])
        split.append(dim)
    if sum(not isinstance(d, int) for d in split) > 1 or 0 in split:
        g.static_dims(op, x, range(rank))
    apart = g.op("Reshape", dy, g.ints(*(d if isinstance(d, int) else -1 for d in split)))
    return g.op("ReduceSum", apart, g.ints(*copies), keepdims=0)


# --- channels and space ---------------------------------------------------------------------------


@unary("DepthToSpace")
def _depth_to_space(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """SpaceToDepth undoes mode DCR; in mode CRD its channels are exchanged afterwards."""
    block = op.integer("blocksize", 1)
    dx = g.op("SpaceToDepth", dy, blocksize=block)
    if op.text("mode", "DCR") == "CRD":
        (channels,) = g.static_dims(op, x, [1])
        order = np.arange(channels, dtype=np.int64).reshape(block * block, -1).T.reshape(-1)
        dx = g.op("Gather", dx, g.const(order), axis=1)
    return dx


slopes(SpaceToDepth=lambda g, op, x, y, dy: g.op("DepthToSpace", dy, blocksize=op.integer("blocksize", 1)))
