"""The gradients of pooling: of a mean, and of a maximum by comparing, so that nobody keeps where it was.

Of equal entries the first has all, as with ONNX's indices: images have constant regions, so that ties are
common. With l_t = 1 where tap t is less than the maximum, D_t = dy * l_0 * ... * l_t is left for the taps
after t, and tap t gets D_(t-1) - D_t; the last gets the rest. All of it has the size of the result.
"""

from __future__ import annotations

from bb_host.ir.program import Op
from bb_host.tflite.lowering import LAST, Region, arranged
from bb_host.tflite.masks import positive
from bb_host.tflite.schema import RELU
from bb_host.tflite.sliding import Sliding, spread
from bb_host.tflite.windows import Window, pads_of, pair_of, window_of

MAX_POOL_GRADIENT = "MaxPoolGradient"
"""A pattern of several ops (`patterns.py`): (images, maxima, gradient by the maxima) → that by the images,
the window in the attributes of MaxPool. The gradient may be in another shape than the maxima are.
"""

MEAN_GRADIENT = "MeanGradient"
"""Another: (what each entry of a window gets, per window) → the gradient by the images."""


def mean_gradient(region: Region, op: Op) -> None:
    """The rule of MEAN_GRADIENT: along each axis, each window's share once per tap."""
    layout, (n, height, width, channels) = region.image(op)
    _, tall, wide, _ = result = region.result(op, layout)
    kernel = pair_of(op, "kernel_shape", 1)
    top, left, *_ = pads_of(op)
    window = Window(
        kernel, pair_of(op, "strides", 1), pair_of(op, "dilations", 1), (top, left), (0, 0), False
    )
    sliding = Sliding(window, (tall, wide), (height, width))
    x = region.reshaped(region.read(op.inputs[0], layout), (n * height, width, channels))
    line = spread(region, dict.fromkeys(range(kernel[1]), x), sliding.columns)
    x = region.reshaped(line, (n, height, wide * channels))
    y = spread(region, dict.fromkeys(range(kernel[0]), x), sliding.rows)
    region.give(op.outputs[0], region.reshaped(y, result), layout)


def max_pool_gradient(region: Region, op: Op) -> None:
    """The rule of MAX_POOL_GRADIENT."""
    name, best_name, dy_name = op.inputs
    layout, (_, height, width, _) = region.image(op)
    shape = region.fact(best_name).shape
    few = arranged(shape, layout)
    size, result = (height, width), (few[1], few[2])
    window = window_of(op, size, result, pair_of(op, "kernel_shape", 1))
    sliding = Sliding(window, size, result)
    x, best = region.read(name, layout), region.read(best_name, layout)
    left = _gradient(region, dy_name, shape)
    padded = sliding.padded(region, x, lowest=True)
    columns = [sliding.column(region, padded, j) for j in range(window.kernel[1])]
    taps = [(i, j) for i in range(window.kernel[0]) for j in range(window.kernel[1])]
    parts: dict[tuple[int, int], int] = {}
    for i, j in taps[:-1]:
        seen = sliding.row(region, columns[j], i)
        less = positive(region, region.op("SUB", [best, seen], few, act=RELU))
        after = region.op("MUL", [left, less], few)
        parts[i, j] = region.op("SUB", [left, after], few)
        left = after
    parts[taps[-1]] = left
    y = sliding.scattered_taps(region, lambda i, j: parts[i, j])
    out = region.fact(op.outputs[0]).shape
    if out == region.fact(name).shape:
        region.give(op.outputs[0], y, layout)
    else:
        back = (0, 3, 1, 2)
        region.give(op.outputs[0], region.reshaped(region.transposed(y, back), out))


def _gradient(region: Region, name: str, shape: tuple[int, ...]) -> int:
    """A gradient in the shape of the maxima, channels last."""
    layout = LAST[len(shape)]
    if region.fact(name).shape == shape:
        return region.read(name, layout)
    whole = shape if len(shape) == 4 else (*shape[:2], 1, *shape[2:])
    return region.transposed(region.reshaped(region.read(name), whole), (0, 2, 3, 1))
