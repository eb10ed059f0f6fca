"""Which TFLite operators compute on int8, and what each asks of the grids of what it reads and gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MOVES = "moves"
"""It gives numbers that it reads, or the larger of them: any grid, one for all it reads and gives. So it may
change places with QUANTIZE and DEQUANTIZE, and the result is the same to the last bit.
"""

SAME = "same"
"""One grid for all it reads and gives, but it computes: only where the grid that is asked for is that one."""

CLAMPS = "clamps"
"""Free, but it may change places with QUANTIZE after it: clamping before rounding or after is the same."""

FREE = "free"
"""What it reads and gives has a grid of its own each."""

LOGISTIC = (1 / 256, -128)
SYMMETRIC = (1 / 128, 0)


class Form(NamedTuple):
    """`data` are the inputs that are activations (empty: all), `fixed` the only grid of its results;
    `filter` the input that is int8 per channel of `axis`, `bias` the one that is int32 at their product.
    """

    grid: str
    data: tuple[int, ...] = (0,)
    fixed: tuple[float, int] | None = None
    filter: int | None = None
    axis: int = 0
    bias: int = 2


_TWO = (0, 1)

FORMS: Mapping[str, Form] = {
    "ADD": Form(FREE, _TWO),
    "AVERAGE_POOL_2D": Form(SAME),
    "BATCH_MATMUL": Form(FREE, _TWO),
    "CONCATENATION": Form(MOVES, ()),
    "CONV_2D": Form(FREE, filter=1),
    "DEPTHWISE_CONV_2D": Form(FREE, filter=1, axis=3),
    "DEPTH_TO_SPACE": Form(MOVES),
    "FULLY_CONNECTED": Form(FREE, filter=1),
    "GATHER": Form(MOVES),
    "GELU": Form(FREE),
    "HARD_SWISH": Form(FREE),
    "LEAKY_RELU": Form(FREE),
    "LOGISTIC": Form(FREE, fixed=LOGISTIC),
    "MAXIMUM": Form(MOVES, _TWO),
    "MAX_POOL_2D": Form(MOVES),
    "MEAN": Form(FREE),
    "MINIMUM": Form(MOVES, _TWO),
    "MUL": Form(FREE, _TWO),
    "PAD": Form(MOVES),
    "PADV2": Form(MOVES, (0, 2)),
    "PRELU": Form(FREE, _TWO),
    "REDUCE_MAX": Form(MOVES),
    "REDUCE_MIN": Form(MOVES),
    "RELU": Form(CLAMPS),
    "RELU6": Form(CLAMPS),
    "RESHAPE": Form(MOVES),
    "RESIZE_BILINEAR": Form(SAME),
    "RESIZE_NEAREST_NEIGHBOR": Form(MOVES),
    "SLICE": Form(MOVES),
    "SOFTMAX": Form(FREE, fixed=LOGISTIC),
    "STRIDED_SLICE": Form(MOVES),
    "SUB": Form(FREE, _TWO),
    "SUM": Form(FREE),
    "TANH": Form(FREE, fixed=SYMMETRIC),
    "TILE": Form(MOVES),
    "TRANSPOSE": Form(MOVES),
    "TRANSPOSE_CONV": Form(FREE, (2,), filter=1, bias=3),
}
