"""Convolutions whose weights are computed, and the gradient by a convolution's weights.

XNNPACK takes CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV of constant weights alone; the kernels that run
otherwise are four to six times slower. BATCH_MATMUL of two computed operands it does take, at the speed of
constant weights. So a convolution is a product: what all taps of a window see is put side by side, or, where
that is wider than the results, what the taps of one row see; the rows of the filter are further channels of
the product then, and move to their places (`_by_rows`).
Depthwise convolutions are sums of products with the taps, over lines of width times channels: short
broadcasts are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Region, arranged, dynamic
from bb_host.tflite.sliding import Sliding, added, cut, joined, placed
from bb_host.tflite.windows import Window, pads_of, pair_of, window_of

CONV_WEIGHTS = "ConvWeights"
"""A pattern of several ops (`patterns.py`): (images, gradients) → the gradient by the weights of a
convolution of the images, its window in the attributes of Conv.
"""

_MOST_GROUPS = 16
"""Groups that are computed one after the other; a group for each channel is a form of its own."""


def product(region: Region, a: int, b: int, *, adj_a: bool = False, adj_b: bool = False) -> int:
    """The product of two matrices, either of them turned."""
    rows = region.graph.shape(a)[1 if adj_a else 0]
    columns = region.graph.shape(b)[0 if adj_b else 1]
    return region.op("BATCH_MATMUL", [a, b], (rows, columns), adj_x=adj_a, adj_y=adj_b)


def _four(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a filter; that of a series has a height of one."""
    return tuple(shape) if len(shape) == 4 else (*shape[:2], 1, *shape[2:])


def _filter(region: Region, name: str) -> int:
    """A filter, of four dimensions."""
    shape = region.fact(name).shape
    if len(shape) == 4:
        return region.read(name)
    return region.once(("filter", name), lambda: region.reshaped(region.read(name), _four(shape)))


def _taps(region: Region, weight: int, by_rows: bool) -> int:
    """A filter [m, c, h, w] as a matrix [h * w * c, m], or [w * c, h * m] `by_rows`."""
    m, c, h, w = region.graph.shape(weight)
    if by_rows:
        return region.once(
            ("taps by rows", weight),
            lambda: region.reshaped(region.transposed(weight, (3, 1, 2, 0)), (w * c, h * m)),
        )
    return region.once(
        ("taps", weight),
        lambda: region.reshaped(region.transposed(weight, (2, 3, 1, 0)), (h * w * c, m)),
    )


def _by_rows(sliding: Sliding, channels: int, m: int) -> bool:
    """Whether products are computed of whole lines, once for all rows of the window.

    That moves the results, m channels, and not what the taps of a row see; lines that few windows see, or
    rows that see padding alone, are in it as well.
    """
    over = sliding.rows
    if over.stride > 1 or over.taps == 1 or sliding.columns.taps * channels <= m:
        return False
    return 2 * over.size <= 3 * over.windows and all(
        first < end for first, end in map(over.reach, range(over.taps))
    )


def _lines(region: Region, weight: int, width: int) -> list[list[int]]:
    """A depthwise filter [c, 1, h, w], per row and column as a line [width * c] that repeats the tap."""

    def make() -> list[list[int]]:
        c, _, h, w = region.graph.shape(weight)
        turned = region.reshaped(
            region.transposed(region.reshaped(weight, (c, h * w)), (1, 0)), (h * w, 1, c)
        )
        ones = region.floats([[[1.0]] * width])
        wide = region.op("MUL", [turned, ones], (h * w, width, c))
        wide = region.reshaped(wide, (h * w, width * c))
        whole = [
            region.reshaped(cut(region, wide, (t, 0), (1, width * c)), (1, 1, width * c))
            for t in range(h * w)
        ]
        return [whole[i * w : (i + 1) * w] for i in range(h)]

    return region.once(("lines", weight, width), make)


def _part(region: Region, x: int, axis: int, first: int, n: int) -> int:
    """n places of an axis, from the first on."""
    begin, size = [0] * len(region.graph.shape(x)), list(region.graph.shape(x))
    begin[axis], size[axis] = first, n
    return cut(region, x, begin, size)


def _check(batch: int) -> None:
    if dynamic((batch,)):
        raise NotLowered("its weights are computed, and its batch is open")


def _by_group(region: Region, groups: int, axis: int, compute: Callable[[int], int]) -> int:
    """What is computed of each group, by its number, one after the other along an axis."""
    if groups > _MOST_GROUPS:
        raise NotLowered(f"it has {groups} groups, and its weights are computed")
    return joined(region, [compute(g) for g in range(groups)], axis)


def _window(op: Op, kernel: tuple[int, int]) -> Window:
    """Where the taps lie: what its results do not reach is cut off."""
    top, left, *_ = pads_of(op)
    strides, dilations = pair_of(op, "strides", 1), pair_of(op, "dilations", 1)
    return Window(kernel, strides, dilations, (top, left), (0, 0), False)


def _biased(region: Region, op: Op, y: int) -> int:
    if len(op.inputs) < 3 or not op.inputs[2]:
        return y
    return region.op("ADD", [y, region.read(op.inputs[2])], region.graph.shape(y))


def conv(region: Region, op: Op) -> None:
    """Conv, its weights computed."""
    layout, (n, height, width, channels) = region.image(op)
    m, per_group, kh, kw = _four(region.fact(op.inputs[1]).shape)
    groups = op.integer("group", 1)
    _check(n)
    result = region.result(op, layout)
    size, few = (height, width), (result[1], result[2])
    sliding = Sliding(window_of(op, size, few, (kh, kw)), size, few)
    x, weight = region.read(op.inputs[0], layout), _filter(region, op.inputs[1])
    each = m // groups

    def dense(g: int) -> int:
        some = _part(region, x, 3, g * per_group, per_group)
        return _dense(region, some, _part(region, weight, 0, g * each, each), sliding, (*result[:3], each))

    if groups > 1 and groups == channels == m:
        y = _depthwise(region, x, weight, sliding)
    else:
        y = _by_group(region, groups, 3, dense)
    region.give(op.outputs[0], _biased(region, op, y), layout)


def _dense(region: Region, x: int, weight: int, sliding: Sliding, result: Sequence[int]) -> int:
    n, height, width, m = result
    by_rows = _by_rows(sliding, region.graph.shape(x)[3], m)
    taps = _taps(region, weight, by_rows)
    if not by_rows:
        return region.reshaped(product(region, sliding.gathered(region, x), taps), result)
    over = sliding.rows
    y = product(region, sliding.lines.gathered(region, x), taps)
    y = region.reshaped(y, (n, over.size, width, over.taps * m))
    total: int | None = None
    for i in range(over.taps):
        first, end = over.reach(i)
        part = cut(region, y, (0, first, 0, i * m), (n, end - first, width, m))
        row = placed(region, part, first - over.move(i), height)
        total = row if total is None else added(region, total, row)
    assert total is not None
    return total


def _moved_rows(region: Region, dy: int, sliding: Sliding) -> int:
    """Images of windows as a matrix [lines, rows of the window * m]: per row the window that sees a line."""

    def make() -> int:
        over = sliding.rows
        n, _, width, m = region.graph.shape(dy)
        rows = []
        for i in range(over.taps):
            first, end = over.reach(i)
            part = cut(region, dy, (0, first - over.move(i), 0, 0), (n, end - first, width, m))
            rows.append(placed(region, part, first, over.size))
        return region.reshaped(joined(region, rows, 3), (n * over.size * width, over.taps * m))

    return region.once(("moved rows", dy, sliding.key), make)


def _depthwise(region: Region, x: int, weight: int, sliding: Sliding) -> int:
    """Per row of the window the columns times their taps, added; then the rows, each from where it lies."""
    n, *_, channels = region.graph.shape(x)
    over, at = sliding.rows, sliding.columns
    wide = at.windows * channels
    lines = _lines(region, weight, at.windows)
    columns = _columns(region, x, sliding)
    total: int | None = None
    for i in range(over.taps):
        line: int | None = None
        for j, column in enumerate(columns):
            y = region.op("MUL", [column, lines[i][j]], region.graph.shape(column))
            line = y if line is None else added(region, line, y)
        assert line is not None
        row = sliding.row(region, line, i)
        total = row if total is None else added(region, total, row)
    assert total is not None
    assert region.graph.shape(total) == (n, over.windows, wide)
    return region.reshaped(total, (n, over.windows, at.windows, channels))


def _columns(region: Region, x: int, sliding: Sliding) -> list[int]:
    """What the taps of a row see of a whole image, as lines [batch, padded height, windows * channels]."""

    def make() -> list[int]:
        padded = sliding.padded(region, x)
        n, tall, _, channels = region.graph.shape(padded)
        size = (n, tall, sliding.columns.windows * channels)
        return [region.reshaped(sliding.column(region, padded, j), size) for j in range(sliding.columns.taps)]

    return region.once(("columns", x, sliding.key), make)


def conv_transpose(region: Region, op: Op) -> None:
    """ConvTranspose, its weights computed: as the gradient of a convolution from the result to the input."""
    layout, (n, height, width, channels) = region.image(op)
    m, per_group, kh, kw = _four(region.fact(op.inputs[1]).shape)
    groups = op.integer("group", 1)
    _check(n)
    if op.attrs.get("output_shape") or op.attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise NotLowered("its weights are computed, and its output's shape or auto_pad is given")
    result = region.result(op, layout)
    sliding = Sliding(_window(op, (kh, kw)), (result[1], result[2]), (height, width))
    x, weight = region.read(op.inputs[0], layout), _filter(region, op.inputs[1])
    each = m // groups

    def spread(g: int) -> int:
        some = _part(region, x, 3, g * each, each)
        return _spread(region, some, _part(region, weight, 0, g * each, each), sliding)

    if groups > 1 and groups == channels and per_group == 1:
        y = _depthwise_spread(region, x, weight, sliding)
    else:
        y = _by_group(region, groups, 3, spread)
    region.give(op.outputs[0], _biased(region, op, y), layout)


def _spread(region: Region, x: int, weight: int, sliding: Sliding) -> int:
    n, height, width, m = region.graph.shape(x)
    channels = region.graph.shape(weight)[1]
    by_rows = _by_rows(sliding, channels, m)
    taps = _taps(region, weight, by_rows)
    if by_rows:
        y = product(region, _moved_rows(region, x, sliding), taps, adj_b=True)
        return sliding.lines.scattered(region, y, channels)
    rows = region.once(("rows", x), lambda: region.reshaped(x, (n * height * width, m)))
    return sliding.scattered(region, product(region, rows, taps, adj_b=True), channels)


def _depthwise_spread(region: Region, x: int, weight: int, sliding: Sliding) -> int:
    n, height, width, channels = region.graph.shape(x)
    lines = _lines(region, weight, width)
    flat = region.reshaped(x, (n, height, width * channels))

    def tap(i: int, j: int) -> int:
        y = region.op("MUL", [flat, lines[i][j]], region.graph.shape(flat))
        return region.reshaped(y, (n, height, width, channels))

    return sliding.scattered_taps(region, tap)


def conv_weights(region: Region, op: Op) -> None:
    """The gradient by a convolution's weights: what each tap saw, times what each window is to blame for."""
    layout, (n, height, width, channels) = region.image(op)
    given = arranged(region.fact(op.inputs[1]).shape, layout)
    m, per_group, kh, kw = _four(region.fact(op.outputs[0]).shape)
    groups = op.integer("group", 1)
    _check(n)
    sliding = Sliding(_window(op, (kh, kw)), (height, width), (given[1], given[2]))
    x, dy = region.read(op.inputs[0], layout), region.read(op.inputs[1], layout)
    each = m // groups

    def dense(g: int) -> int:
        some = _part(region, x, 3, g * per_group, per_group)
        return _dense_weights(region, some, _part(region, dy, 3, g * each, each), sliding)

    if groups > 1 and groups == channels == m:
        y = _depthwise_weights(region, x, dy, sliding)
    else:
        y = _by_group(region, groups, 0, dense)
    region.give(op.outputs[0], region.reshaped(y, region.fact(op.outputs[0]).shape))


def _dense_weights(region: Region, x: int, dy: int, sliding: Sliding) -> int:
    c, m = region.graph.shape(x)[3], region.graph.shape(dy)[3]
    n, height, width, _ = region.graph.shape(dy)
    h, w = sliding.rows.taps, sliding.columns.taps
    if _by_rows(sliding, c, m):
        seen = sliding.lines.gathered(region, x)
        whole = product(region, seen, _moved_rows(region, dy, sliding), adj_a=True)
        return region.transposed(region.reshaped(whole, (w, c, h, m)), (3, 1, 2, 0))
    rows = region.once(("rows", dy), lambda: region.reshaped(dy, (n * height * width, m)))
    whole = product(region, sliding.gathered(region, x), rows, adj_a=True)
    return region.transposed(region.reshaped(whole, (h, w, c, m)), (3, 2, 0, 1))


def _depthwise_weights(region: Region, x: int, dy: int, sliding: Sliding) -> int:
    n, height, width, c = region.graph.shape(dy)
    flat = region.reshaped(dy, (n, height, width * c))
    columns = _columns(region, x, sliding)
    sums = []
    for i in range(sliding.rows.taps):
        for column in columns:
            seen = sliding.row(region, column, i)
            y = region.op("MUL", [seen, flat], region.graph.shape(flat))
            sums.append(region.op("SUM", [y, region.ints([0, 1])], (1, 1, width * c), keep_dims=True))
    lines = region.reshaped(joined(region, sums, 0), (len(sums), width, c))
    few = region.op("SUM", [lines, region.ints([1])], (len(sums), c), keep_dims=False)
    turned = region.transposed(few, (1, 0))
    return region.reshaped(turned, (c, 1, sliding.rows.taps, sliding.columns.taps))
