"""Windows over images: what an ONNX op's pads, strides and dilations are, and how TFLite says the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Region
from bb_host.tflite.schema import SAME, VALID

LOWEST = -3.4028234663852886e38
"""The least float32: what padding is for a maximum (TFLite's pooling has no minus infinity of its own)."""


class Window(NamedTuple):
    """All (height, width); `pads` before and after, as they really are: ceil_mode's extra column included."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    is_same: bool

    @property
    def is_padded(self) -> bool:
        return any(self.before) or any(self.after)


def pair_of(op: Op, name: str, default: int) -> tuple[int, int]:
    """An attribute per (height, width); what a series says is the width's."""
    values = op.integers(name, (default, default))
    height, width = values if len(values) == 2 else (default, *values)
    return height, width


def pads_of(op: Op) -> tuple[int, int, int, int]:
    """`pads` as (top, left, bottom, right)."""
    pads = op.integers("pads", (0, 0, 0, 0))
    top, left, bottom, right = pads if len(pads) == 4 else (0, pads[0], 0, pads[1])
    return top, left, bottom, right


def window_of(op: Op, size: tuple[int, int], result: tuple[int, int], kernel: tuple[int, int]) -> Window:
    """The window that leads from `size` to `result`. NotLowered for pads that cut away."""
    strides, dilations, pads = pair_of(op, "strides", 1), pair_of(op, "dilations", 1), pads_of(op)
    auto = op.text("auto_pad", "NOTSET")
    before, after, same = [], [], []
    for axis in range(2):
        reach = (result[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = max(0, reach - size[axis])
        if auto == "SAME_UPPER":
            first = total // 2
        elif auto == "SAME_LOWER":
            first = total - total // 2
        elif auto == "VALID":
            first = 0
        else:
            first = pads[axis]
        if first < 0 or pads[axis + 2] < 0:
            raise NotLowered("its pads cut away")
        last = max(0, reach - size[axis] - first)
        before.append(first)
        after.append(last)
        # Where windows end short of the image, XNNPACK of the older runtime takes SAME's padding for a
        # negative number and gives zeros: PAD and VALID say it without a doubt.
        same.append(
            -(-size[axis] // strides[axis]) == result[axis]
            and reach >= size[axis]
            and (first, last) == (total // 2, total - total // 2)
        )
    return Window(
        kernel,
        strides,
        dilations,
        (before[0], before[1]),
        (after[0], after[1]),
        all(same),
    )


def padded(region: Region, x: int, window: Window, *, lowest: bool = False) -> tuple[int, int]:
    """The image to slide over, and TFLite's padding: SAME where that says the same, else PAD and VALID."""
    if not window.is_padded:
        return x, VALID
    if window.is_same:
        return x, SAME
    n, h, w, c = region.graph.shape(x)
    (top, left), (bottom, right) = window.before, window.after
    shape = (n, h + top + bottom, w + left + right, c)
    pads = region.ints([[0, 0], [top, bottom], [left, right], [0, 0]])
    if lowest and region.gradient:
        return padded_lowest(region, x, ((top, bottom), (left, right))), VALID
    if lowest:
        return region.op("PADV2", [x, pads, region.floats(LOWEST)], shape), VALID
    return region.op("PAD", [x, pads], shape), VALID


def padded_lowest(region: Region, x: int, around: tuple[tuple[int, int], tuple[int, int]]) -> int:
    """An image in the least number there is: zeros, to which that is added. XNNPACK has no PADV2."""
    n, h, w, c = region.graph.shape(x)
    (top, bottom), (left, right) = around
    shape = (n, h + top + bottom, w + left + right, c)
    x = region.op("PAD", [x, region.ints([[0, 0], [top, bottom], [left, right], [0, 0]])], shape)
    low = np.full((1, *shape[1:3], 1), LOWEST, np.float32)
    low[:, top : top + h, left : left + w] = 0
    return region.op("ADD", [x, region.floats(low)], shape)
