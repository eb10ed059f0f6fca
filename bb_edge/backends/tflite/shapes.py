"""Computes the shape of a TFLite operator's result; None if its inputs or options do not fit.

The kernels of some interpreters do not check their constants, and read or write beyond their arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

__all__ = ["SAME", "result_shape"]

Shape = tuple[int, ...]
Options = Sequence[float]
Rule = Callable[[Sequence[Shape], Sequence[tuple[int, ...]], Options], "Shape | None"]
"""(shapes of inputs, contents of each that is an int32 constant, else (), options) → shape or None."""

SAME = 0
"""Padding: the output has one element per stride. VALID, 1: one element per whole window."""


def result_shape(
    name: str, shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options
) -> Shape | None:
    """The shape of an operator's result; None if its inputs or options do not fit."""
    rule = _RULES.get(name, _like_the_first)
    try:
        return rule(shapes, constants, options)
    except (IndexError, ValueError):  # a shape has another rank than the rule needs
        return None


def _like_the_first(shapes: Sequence[Shape], constants: object, options: object) -> Shape | None:
    return shapes[0] if len(shapes) == 1 else None


def _broadcast(shapes: Sequence[Shape], constants: object, options: object) -> Shape | None:
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    shape = []
    for column in columns:
        widest = max(column)
        if any(dim not in (1, widest) for dim in column):
            return None
        shape.append(widest)
    return tuple(shape)


def _window(size: int, window: int, stride: int, dilation: int, padding: float) -> int:
    if padding == SAME:
        return -(-size // stride)
    return (size - (window - 1) * dilation - 1) // stride + 1


def _image(shape: Shape, filter_hw: Shape, strides: Shape, dilations: Shape, padding: float) -> Shape | None:
    batch, height, width, _ = shape
    h = _window(height, filter_hw[0], strides[0], dilations[0], padding)
    w = _window(width, filter_hw[1], strides[1], dilations[1], padding)
    return (batch, h, w) if h > 0 and w > 0 else None


def _biased(shapes: Sequence[Shape], channels: int) -> bool:
    return shapes[2] in ((), (channels,))


def _conv(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    padding, sw, sh, _, dw, dh = options
    channels, h, w, depth = shapes[1]
    strides, dilations = (int(sh), int(sw)), (int(dh), int(dw))
    image = _image(shapes[0], (h, w), strides, dilations, padding)
    if image is None or depth != shapes[0][3] or not _biased(shapes, channels):
        return None
    return (*image, channels)


def _depthwise(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    padding, sw, sh, multiplier, _, dw, dh = options
    leading, h, w, channels = shapes[1]
    image = _image(shapes[0], (h, w), (int(sh), int(sw)), (int(dh), int(dw)), padding)
    if image is None or leading != 1 or not _biased(shapes, channels):
        return None
    return (*image, channels) if shapes[0][3] * multiplier == channels else None


def _transposed(
    shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options
) -> Shape | None:
    padding, sw, sh, _ = options
    channels, h, w, depth = shapes[1]
    result = constants[0]
    # It is the gradient of a convolution that maps the result to the input.
    image = _image(result, (h, w), (int(sh), int(sw)), (1, 1), padding) if min(result) > 0 else None
    if image != shapes[2][:3] or depth != shapes[2][3] or shapes[3:] not in ([], [(channels,)]):
        return None
    return result if result[3] == channels else None


def _pool(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    padding, sw, sh, w, h, _ = options
    image = _image(shapes[0], (int(h), int(w)), (int(sh), int(sw)), (1, 1), padding)
    return None if image is None else (*image, shapes[0][3])


def _dense(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    units, depth = shapes[1]
    if prod(shapes[0]) % depth or not _biased(shapes, units):
        return None
    if options[2]:
        return (*shapes[0][:-1], units) if shapes[0][-1] == depth else None
    return prod(shapes[0]) // depth, units


def _products(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    x, y = shapes
    (n, k) = (x[-1], x[-2]) if options[0] else x[-2:]
    (m, p) = (y[-1], y[-2]) if options[1] else y[-2:]
    outer = _broadcast((x[:-2], y[:-2]), (), ())
    return (*outer, n, p) if k == m and outer is not None else None


def _axes(axes: Sequence[int], rank: int) -> frozenset[int] | None:
    return frozenset(axis % rank for axis in axes) if all(-rank <= axis < rank for axis in axes) else None


def _reduced(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    shape, axes = shapes[0], _axes(constants[1], len(shapes[0]))
    if axes is None or not axes:
        return None
    if options[0]:
        return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)


def _arg(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    axes = _axes(constants[1], len(shapes[0]))
    if axes is None or len(constants[1]) != 1:
        return None
    return tuple(dim for i, dim in enumerate(shapes[0]) if i not in axes)


def _joined(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    rank, axis = len(shapes[0]), int(options[0])
    if not -rank <= axis < rank:
        return None
    axis %= rank
    rest = {(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) != 1:
        return None
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _reshaped(
    shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options
) -> Shape | None:
    count, wanted = prod(shapes[0]), constants[1]
    known = prod(dim for dim in wanted if dim != -1)
    if any(dim < 1 and dim != -1 for dim in wanted) or wanted.count(-1) > 1 or count % known:
        return None
    shape = tuple(count // known if dim == -1 else dim for dim in wanted)
    return shape if prod(shape) == count else None


def _turned(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    order = constants[1]
    return tuple(shapes[0][i] for i in order) if sorted(order) == list(range(len(shapes[0]))) else None


def _slice(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    shape = []
    for dim, begin, size in zip(shapes[0], constants[1], constants[2], strict=True):
        size = dim - begin if size == -1 else size
        if begin < 0 or size < 1 or begin + size > dim:
            return None
        shape.append(size)
    return tuple(shape)


def _strided(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    begins, ends, *others = (int(mask) for mask in options)
    if any(others):
        return None
    shape = []
    for i, (dim, begin, end, step) in enumerate(zip(shapes[0], *constants[1:], strict=True)):
        part = slice(None if begins >> i & 1 else begin, None if ends >> i & 1 else end, step)
        shape.append(len(range(*part.indices(dim))))
    return tuple(shape) if all(shape) else None


def _padded(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    pads = constants[1]
    if len(pads) != 2 * len(shapes[0]) or shapes[1] != (len(shapes[0]), 2) or any(n < 0 for n in pads):
        return None
    if len(shapes) > 2 and prod(shapes[2]) != 1:
        return None
    return tuple(pads[2 * i] + dim + pads[2 * i + 1] for i, dim in enumerate(shapes[0]))


def _tiled(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    times = constants[1]
    if shapes[1] != (len(shapes[0]),) or any(n < 1 for n in times):
        return None
    return tuple(dim * n for dim, n in zip(shapes[0], times, strict=True))


def _gathered(
    shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options
) -> Shape | None:
    shape, axis = shapes[0], int(options[0])
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    if any(not 0 <= index < shape[axis] for index in constants[1]):
        return None
    return (*shape[:axis], *shapes[1], *shape[axis + 1 :])


def _resized(shapes: Sequence[Shape], constants: Sequence[tuple[int, ...]], options: Options) -> Shape | None:
    batch, _, _, channels = shapes[0]
    height, width = constants[1]
    return (batch, height, width, channels) if height > 0 and width > 0 else None


def _depth_to_space(shapes: Sequence[Shape], constants: object, options: Options) -> Shape | None:
    batch, height, width, channels = shapes[0]
    block = int(options[0])
    if channels % block**2:
        return None
    return batch, height * block, width * block, channels // block**2


_RULES: dict[str, Rule] = {
    "AVERAGE_POOL_2D": _pool,
    "ARG_MAX": _arg,
    "BATCH_MATMUL": _products,
    "CONCATENATION": _joined,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "DEPTH_TO_SPACE": _depth_to_space,
    "FULLY_CONNECTED": _dense,
    "GATHER": _gathered,
    "MAX_POOL_2D": _pool,
    "PAD": _padded,
    "PADV2": _padded,
    "RESHAPE": _reshaped,
    "RESIZE_BILINEAR": _resized,
    "RESIZE_NEAREST_NEIGHBOR": _resized,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided,
    "TILE": _tiled,
    "TRANSPOSE": _turned,
    "TRANSPOSE_CONV": _transposed,
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), _reduced),
    **dict.fromkeys(
        ("ADD", "SUB", "MUL", "DIV", "POW", "FLOOR_MOD", "MAXIMUM", "MINIMUM", "PRELU", "SELECT_V2", "LESS",
         "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL", "LOGICAL_AND", "LOGICAL_OR"),
        _broadcast,
    ),
}  # fmt: skip
