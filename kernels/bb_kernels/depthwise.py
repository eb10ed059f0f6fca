"""Depthwise convolution of narrow images with known weights.

A window that slides along a line is a banded matrix: a line of W elements times [W, OW] is the line of
results, padding on the left and right included. Stacked for the lines of the kernel, a matrix [kernel lines ·
W, OW] per channel turns the lines under the window into a line of results, in its place. Most entries are
zero; for narrow images that costs less than moving the elements window by window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .bias import spread
from .spec import Array, Bound, Dtype, Prepared, TensorSpec, run_bound
from .windows import Windows, view_of

#: Bytes that the banded matrices of one convolution may take: they stay for as long as the plan does.
TABLE_BYTES = 128 << 10


def suits(win: Windows, channels: int, dtype: Dtype) -> bool:
    """Whether the banded matrices of a two-dimensional depthwise convolution stay below TABLE_BYTES."""
    if len(win.size) != 2 or win.taps == 1:
        return False
    return 0 < channels * win.kernel[0] * win.size[1] * win.out[1] * dtype.itemsize <= TABLE_BYTES


def banded(weights: Array, win: Windows) -> Array:
    """Return the banded matrices of a convolution; allocates them.

    weights[C,1,kernel lines,kernel columns] → [C,kernel lines · W,OW], same type.
    """
    width, results = win.size[1], win.out[1]
    table = np.zeros((weights.shape[0], win.kernel[0], width, results), weights.dtype)
    at = np.arange(results)
    for column in range(win.kernel[1]):
        source = at * win.strides[1] + column * win.dilations[1] - win.before[1]
        inside = (source >= 0) & (source < width)
        table[:, :, source[inside], at[inside]] = weights[:, 0, :, column, None]
    return table.reshape(weights.shape[0], -1, results)


def narrow(batch: int, win: Windows, weights: Array, n_inputs: int, known_bias: bool) -> Prepared:
    """Return a kernel with Conv's arguments for known weights: X[N,C,H,W] → Y[N,C,OH,OW].

    The weights among the arguments are not read. Run allocates nothing.
    """
    channels, dtype = weights.shape[0], weights.dtype
    table = banded(weights, win)
    lines, width = win.padded[0], win.size[1]
    front, height = win.before[0], win.size[0]
    pads = lines != height
    columns = TensorSpec(dtype, (channels, win.out[0], win.kernel[0], width))
    scratch = (TensorSpec(dtype, (channels, lines, width)), columns) if pads else (columns,)

    def image(x: Array, bias: Array | None, out: Array, temps: tuple[Any, ...]) -> Bound:
        source = temps[0] if pads else x
        gathered = temps[-1]
        middle = source[:, front : front + height]
        plane, line, item = source.strides
        under = view_of(
            source, columns.shape, (plane, line * win.strides[0], line * win.dilations[0], item)
        )  # fmt: skip
        rows = gathered.reshape(channels, win.out[0], -1)
        flat = out.reshape(channels, -1)
        bias = spread(bias, flat.shape, known_bias)

        def run() -> None:
            if pads:
                source.fill(0)
                np.copyto(middle, x)
            np.copyto(gathered, under)
            np.matmul(rows, table, out)
            if bias is not None:
                np.add(flat, bias, flat)

        return run

    def bind(*arrays: Any) -> Bound:
        bias = arrays[2].reshape(-1, 1) if n_inputs > 2 else None
        out, temps = arrays[n_inputs], arrays[n_inputs + 1 :]
        steps = [image(arrays[0][n], bias, out[n], temps) for n in range(batch)]
        if len(steps) == 1:
            return steps[0]

        def run() -> None:
            for step in steps:
                step()

        return run

    out_spec = TensorSpec(dtype, (batch, channels, *win.out))
    return Prepared((out_spec,), run_bound(bind), scratch, binder=bind)
