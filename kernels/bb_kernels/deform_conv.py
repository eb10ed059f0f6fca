"""Convolution whose windows are bent: every tap is read where an input says, between pixels."""

from __future__ import annotations

from math import prod

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .spec import F64, FLOAT, Array, Prepared, TensorSpec
from .windows import windows

_FAR = -1e6  # where a position that is not a number is read: outside, so it is zero


@kernel(
    "DeformConv",
    "T T T T? T?",
    since=19,
    dtypes=FLOAT,
    half=True,
    attrs="dilations group kernel_shape offset_group pads strides",
)
def _deform_conv(call: Call) -> Prepared:
    """DeformConv (opset 19+) convolves images with windows whose taps are moved by offsets, and weighted.

    X[N,C,H,W], weights[M,C/group,h,w], offsets[N,D·h·w·2,y,x] in pixels (y before x), bias[M]?,
    mask[N,D·h·w,y,x]? → Y[N,M,y,x], with D as offset_group; between pixels it reads linearly, outside zeros.
    Floats (float16 via float32). Shapes that do not fit raise KernelShapeError. Run allocates, per image, the
    windows of all positions, their places and their shares.
    """
    x, w = call.spec(0), call.spec(1)
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise KernelShapeError(f"DeformConv: X {x.shape} and W {w.shape} must be [N,C,H,W]: images")
    group, bent = call.int_attr("group", 1), call.int_attr("offset_group", 1)
    n, channels, height, width = x.shape
    count, size = w.shape[0], w.shape[2:]
    if tuple(call.ints_attr("kernel_shape") or size) != size:
        raise KernelAttributeError(
            f"DeformConv: kernel_shape {call.attrs['kernel_shape']} and W {w.shape} differ"
        )
    if min(group, bent) < 1 or channels % bent or count % group or channels != w.shape[1] * group:
        raise KernelShapeError(
            f"DeformConv: X {x.shape} and W {w.shape} do not fit {group} groups and {bent} of offsets"
        )
    win = windows(call, x.shape[2:], size)
    taps, points = win.taps, prod(win.out)
    expected = {2: (n, bent * taps * 2, *win.out), 3: (count,), 4: (n, bent * taps, *win.out)}
    for i, shape in expected.items():
        if call.has(i) and call.spec(i).shape != shape:
            raise KernelShapeError(f"DeformConv: input {i} has shape {call.spec(i).shape}, expected {shape}")
    out = TensorSpec(x.dtype, (n, count, *win.out))
    rows, columns = (
        np.arange(o)[None, :] * s + np.arange(k)[:, None] * d - front
        for o, s, k, d, front in zip(win.out, win.strides, size, win.dilations, win.before, strict=True)
    )
    # [taps, positions]: where each tap of each window lies before it is moved.
    start_y = np.broadcast_to(rows[:, None, :, None], (*size, *win.out)).reshape(taps, points).astype(F64)
    start_x = np.broadcast_to(columns[None, :, None, :], (*size, *win.out)).reshape(taps, points).astype(F64)
    n_in = len(call.inputs)

    def bent_windows(image: Array, moved: Array, weights: Array | None) -> Array:
        """Return the windows [channels, taps·positions] of one image."""
        moved = moved.reshape(bent, taps, 2, points)
        found = np.zeros((bent, channels // bent, taps * points), x.dtype)
        source = image.reshape(bent, channels // bent, height * width)
        for d in range(bent):
            at_y, at_x = start_y + moved[d, :, 0], start_x + moved[d, :, 1]
            at_y, at_x = (np.where(np.isfinite(at), at, _FAR) for at in (at_y, at_x))
            low_y, low_x = np.floor(at_y), np.floor(at_x)
            for y, share_y in ((low_y, 1 - (at_y - low_y)), (low_y + 1, at_y - low_y)):
                for z, share_x in ((low_x, 1 - (at_x - low_x)), (low_x + 1, at_x - low_x)):
                    inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
                    place = np.clip(y, 0, height - 1) * width + np.clip(z, 0, width - 1)
                    share = (share_y * share_x * inside).astype(x.dtype)
                    found[d] += source[d][:, place.astype(np.intp).reshape(-1)] * share.reshape(-1)
            if weights is not None:
                found[d] *= weights.reshape(bent, -1)[d]
        return found

    def run(*arrays: Array | None) -> None:
        data, kernels, moved = arrays[:3]
        bias, weights = (arrays[i] if i < n_in else None for i in (3, 4))
        result = arrays[n_in]
        assert data is not None and kernels is not None and moved is not None and result is not None
        flat = np.ascontiguousarray(kernels).reshape(group, count // group, -1)
        for i in range(n):
            found = bent_windows(data[i], moved[i], None if weights is None else weights[i])
            np.matmul(flat, found.reshape(group, -1, points), result[i].reshape(group, -1, points))
            del found  # before those of the next image are made
        if bias is not None:
            np.add(result, bias.reshape(-1, 1, 1), result)

    # The windows, what is added to those of one group, and starts, places and shares of the taps.
    working = taps * points * (x.dtype.itemsize * (channels + 2 * channels // bent) + 14 * 8)
    return Prepared((out,), run, working=working if n else 0)
