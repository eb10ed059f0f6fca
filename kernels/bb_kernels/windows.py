"""Sliding windows over the spatial axes: padding rules, output sizes, and views that gather windows."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call
from .spec import Array

#: Elements of one window, unless it is the whole input: kernels go through them one by one.
MAX_TAPS = 1 << 14

_AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Windows(NamedTuple):
    """Geometry of one convolution or pooling; every tuple has one entry per spatial axis."""

    size: tuple[int, ...]  # of the input, in elements
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # padding in front
    after: tuple[int, ...]  # padding behind
    out: tuple[int, ...]

    @property
    def padded(self) -> tuple[int, ...]:
        """Return the size with padding on both sides."""
        return tuple(b + n + a for b, n, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def taps(self) -> int:
        """Return the number of elements in a window."""
        return prod(self.kernel)

    @property
    def pads_nothing(self) -> bool:
        """Whether there is no padding at all."""
        return not any(self.before) and not any(self.after)

    @property
    def pointwise(self) -> bool:
        """Whether the window is a single element that visits every element once."""
        return self.taps == 1 and self.pads_nothing and all(s == 1 for s in self.strides)

    @property
    def whole(self) -> bool:
        """Whether there is a single window, the whole input."""
        return self.pads_nothing and self.kernel == self.size and all(o == 1 for o in self.out)

    def offsets(self) -> list[tuple[int, ...]]:
        """Return the distance of every tap from the window's start, in elements per axis, row-major."""
        return [
            tuple(i * d for i, d in zip(tap, self.dilations, strict=True))
            for tap in product(*(range(k) for k in self.kernel))
        ]


def windows(call: Call, size: tuple[int, ...], kernel: tuple[int, ...], round_up: bool = False) -> Windows:
    """Return the geometry from strides, dilations, pads and auto_pad, as convolutions and pooling have them.

    ``size`` is the input's spatial shape; ``round_up`` also counts a last window that reaches beyond the
    padding. Raises KernelShapeError for windows that do not fit and KernelAttributeError for lists that do
    not.
    """
    rank = len(size)
    if rank < 1 or len(kernel) != rank:
        raise KernelShapeError(f"{call.op_type}: kernel shape {kernel} does not fit spatial shape {size}")
    strides = _per_axis(call, "strides", rank)
    dilations = _per_axis(call, "dilations", rank)
    if any(k < 1 for k in kernel):
        raise KernelShapeError(f"{call.op_type}: kernel shape {kernel} has an empty axis")
    pads = call.ints_attr("pads") or [0] * (2 * rank)
    if len(pads) != 2 * rank or any(p < 0 for p in pads):
        raise KernelAttributeError(f"{call.op_type}: pads {pads} do not fit {rank} spatial axes")
    auto = call.str_attr("auto_pad", "NOTSET", _AUTO_PAD)
    if prod(kernel) > MAX_TAPS and kernel != size:
        raise KernelShapeError(f"{call.op_type}: a window of {kernel} has more than {MAX_TAPS} elements")
    before, after, out = [], [], []
    for i, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        if auto.startswith("SAME"):
            total = max(0, (-(-n // s) - 1) * s + reach - n)
            front = total // 2 if auto == "SAME_UPPER" else total - total // 2
            back = total - front
        elif auto == "VALID":
            front = back = 0
        else:
            front, back = pads[i], pads[i + rank]
        span = n + front + back - reach
        if span < 0:
            raise KernelShapeError(
                f"{call.op_type}: window of {reach} is larger than axis {i} with {n} elements"
            )
        count = span // s + 1
        if round_up and auto != "VALID" and span % s and (count * s) < n + front:
            count += 1  # one more window, which starts inside the data or the front padding
        before.append(front)
        after.append(back)
        out.append(count)
    return Windows(size, kernel, strides, dilations, tuple(before), tuple(after), tuple(out))


def _per_axis(call: Call, name: str, rank: int) -> tuple[int, ...]:
    """Return an attribute with a positive number per spatial axis, by default 1."""
    values = call.ints_attr(name) or [1] * rank
    if len(values) != rank or any(v < 1 for v in values):
        raise KernelAttributeError(f"{call.op_type}: {name} {values} do not fit {rank} spatial axes")
    return tuple(values)


def window_view(x: Array, w: Windows, lead: int) -> Array:
    """Return every window of an already padded array as a view: x[lead…,padded…] → [lead…,kernel…,out…].

    ``lead`` is the number of leading axes. Nothing is copied.
    """
    steps = x.strides[lead:]
    strides = (
        *x.strides[:lead],
        *(step * d for step, d in zip(steps, w.dilations, strict=True)),
        *(step * s for step, s in zip(steps, w.strides, strict=True)),
    )
    return view_of(x, (*x.shape[:lead], *w.kernel, *w.out), strides)


def view_of(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a strided, read-only view from x's first element; the caller vouches for the bounds."""
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def tap_slices(w: Windows, offset: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return the output positions that a tap reaches and the elements that it finds there, both as slices.

    None where the tap meets padding only.
    """
    where_out: list[slice] = []
    where_in: list[slice] = []
    for n, s, front, count, off in zip(w.size, w.strides, w.before, w.out, offset, strict=True):
        first = max(0, -(-(front - off) // s))
        last = min(count - 1, (n - 1 + front - off) // s)
        if last < first:
            return None
        where_out.append(slice(first, last + 1))
        start = first * s + off - front
        where_in.append(slice(start, (last - first) * s + start + 1, s))
    return tuple(where_out), tuple(where_in)
