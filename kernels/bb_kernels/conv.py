"""Convolution as a matrix product.

A batch of small images goes through ``conv_rows``, with one channel per group through ``depthwise_bands``,
and where a window is the whole image through ``conv_whole``. Else there are three ways, chosen when
preparing:

* a pointwise kernel is a product with the input as it is;
* with stride 1 the padded image is treated as one long row: the columns matrix is made of shifted, contiguous
  runs of it (its last columns of each line are garbage that wraps around, and are dropped when the result is
  copied out together with the bias). Long runs copy several times faster than image lines;
* else the columns matrix is gathered window by window.

Groups are a leading axis of the product; a depthwise convolution is the case of one channel per group. With
known weights and narrow images it goes through ``depthwise`` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .bias import spread
from .conv_rows import Correlation, scratch_of
from .conv_whole import Whole
from .depthwise import narrow
from .depthwise import suits as narrow_suits
from .depthwise_bands import WIDEST, bands_of
from .errors import KernelShapeError
from .registry import Call, kernel
from .spec import FLOAT, Array, Bound, Dtype, Prepared, TensorSpec, Ufunc, run_bound
from .windows import Windows, view_of, window_view, windows

#: With full channel mixing, the long-row way multiplies garbage columns too: up to this share of extra work.
_GARBAGE = 1.3

#: Results per image up to which ``conv_rows`` takes a batch; with _WIDE or more channels, four times as many.
_SMALL = 64
_WIDE = 8
#: Results per image up to which it takes windows of more elements than that.
_FEW = 16

ATTRS = "auto_pad dilations group kernel_shape pads strides"


class Convolution(NamedTuple):
    """A convolution without element type: X [N,C,*size] with W [M,C/groups,*kernel] gives Y [N,M,*out]."""

    batch: int
    channels: int
    maps: int
    groups: int
    win: Windows

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Return the shape of Y."""
        return (self.batch, self.maps, *self.win.out)

    @property
    def _row(self) -> int:
        """Return the length of the long row that holds all useful results."""
        steps = _steps(self.win.padded)
        return sum((n - 1) * step for n, step in zip(self.win.out, steps, strict=True)) + 1

    @property
    def _long_rows(self) -> bool:
        """Whether the long-row way applies and does not multiply too much garbage."""
        if self.win.taps == 1 or any(s != 1 for s in self.win.strides) or 0 in self.out_shape:
            return False
        return self.channels == self.groups or self._row <= _GARBAGE * prod(self.win.out)

    @property
    def whole(self) -> Whole | None:
        """Return the way of ``conv_whole`` for a batch, where windows are whole images, else None."""
        win = self.win
        if (
            not win.whole
            or self.groups > 1
            or self.batch < 2
            or win.taps == 1
            or not self.channels * self.maps
        ):
            return None
        return Whole(self.batch, self.channels, self.maps, win.taps)

    @property
    def rows(self) -> Correlation | None:
        """Return the way of ``conv_rows`` for a group where it is the faster one, else None.

        Measured against the others: for batches of images of up to 64 results 0.25 to 0.7 of their time, up
        to 256 about the same (but with a tenth of the views to make), beyond 1.05 to 3; for few results of
        large windows, as weights' gradients are, 0.06 to 0.8.
        """
        win, area = self.win, prod(self.win.out)
        channels, maps = self.channels // self.groups, self.maps // self.groups
        if win.taps == 1 or 0 in (*self.out_shape, channels, *win.size):
            return None
        many = area <= _FEW < win.taps
        small = self.batch > 1 and (
            (area <= _SMALL and self.groups == 1)
            or (channels >= _WIDE and max(area, prod(win.size)) <= 4 * _SMALL)
        )
        if not (many or small):
            return None
        return Correlation(
            self.batch, channels, maps, win.size, win.kernel, win.strides, win.dilations,
            win.before, win.out,
        )  # fmt: skip

    def scratch(self, dtype: Dtype) -> tuple[TensorSpec, ...]:
        """Return the scratch for ``bind``: padded image, columns, result rows; only those needed."""
        if self.win.pointwise:
            return ()
        rows, whole = self.rows, self.whole
        if whole is not None:
            return whole.scratch(dtype)
        if rows is not None:
            return scratch_of([rows], dtype)
        specs = []
        if not self.win.pads_nothing:
            specs.append(TensorSpec(dtype, (self.channels, *self.win.padded)))
        if self._long_rows:
            lines = self.win.out[0] * (prod(self.win.padded[1:]))
            specs.append(TensorSpec(dtype, (self.channels, *self.win.kernel, self._row)))
            specs.append(TensorSpec(dtype, (self.maps, lines)))
        else:
            specs.append(TensorSpec(dtype, (self.channels, *self.win.kernel, *self.win.out)))
        return tuple(specs)

    def bind(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        out: Array,
        scratch: tuple[Array, ...],
        known_bias: bool = False,
    ) -> Bound:
        """Return a run over these arrays.

        ``b`` is [M] or None, and never changes where ``known_bias``. The run allocates nothing where ``x`` is
        contiguous; binding allocates a copy of weights that are a view.
        """
        bias = None if b is None else b.reshape(-1, 1)
        if 0 in out.shape:
            return _nothing
        rows, whole = self.rows, self.whole
        if whole is not None:
            return whole.bind(x, w, b, out, scratch)
        if rows is not None:
            return self._groups(rows, x, w, b, out, scratch)
        if not w.flags.c_contiguous:
            # Weights that are a view, such as a transposed activation in a gradient: reshaping them below
            # would copy what they hold now. Copied anew at each run instead.
            own = np.empty(w.shape, w.dtype)
            inner = self.bind(x, own, b, out, scratch, known_bias)

            def refreshed() -> None:
                np.copyto(own, w)
                inner()

            return refreshed
        if self.win.pointwise:
            return self.pointwise(x, w, bias, out, known_bias)
        image = self._image(x, w, bias, out, scratch, known_bias)
        steps = [image(n) for n in range(self.batch)]
        if len(steps) == 1:
            return steps[0]

        def run() -> None:
            for step in steps:
                step()

        return run

    def _groups(
        self, rows: Correlation, x: Array, w: Array, b: Array | None, out: Array, scratch: tuple[Array, ...]
    ) -> Bound:
        """Return the run of ``conv_rows``, group by group."""
        weights = w.transpose(*range(2, w.ndim), 1, 0)
        if self.groups == 1:
            return rows.bind(x, weights, b, out, scratch)
        runs = []
        for group in range(self.groups):
            own = slice(group * rows.channels, (group + 1) * rows.channels)
            made = slice(group * rows.maps, (group + 1) * rows.maps)
            bias = None if b is None else b[made]
            runs.append(rows.bind(x[:, own], weights[..., made], bias, out[:, made], scratch))

        def run() -> None:
            for each in runs:
                each()

        return run

    def pointwise(self, x: Array, w: Array, bias: Array | None, out: Array, known_bias: bool) -> Bound:
        """Return the run of a kernel of one element: a product per image, with a bias [M,1] or None."""
        area = prod(self.win.out)
        groups = self.groups
        weights = w.reshape(groups, self.maps // groups, -1)
        shape_in: tuple[int, ...] = (self.batch, groups, self.channels // groups, area)
        result: Array = out.reshape(self.batch, groups, -1, area)
        plane = out.reshape(self.batch, -1, area) if self.batch > 1 else out.reshape(-1, area)
        bias = spread(bias, plane.shape, known_bias)
        if groups == 1:
            shape_in, weights, result = (self.batch, self.channels, area), weights[0], result[:, 0]
        if x.flags.c_contiguous:
            columns = x.reshape(shape_in)
            product: Ufunc = partial(np.matmul, weights)
            if self.batch == 1:
                columns, result = columns[0], result[0]
                if groups == 1:
                    product = weights.dot
            if bias is None:
                return partial(product, columns, result)
            add = np.add

            def run() -> None:
                product(columns, result)
                add(plane, bias, plane)

            return run

        def run_copy() -> None:
            np.matmul(weights, x.reshape(shape_in), result)
            if bias is not None:
                np.add(plane, bias, plane)

        return run_copy

    def _image(
        self,
        x: Array,
        w: Array,
        bias: Array | None,
        out: Array,
        scratch: tuple[Array, ...],
        known_bias: bool,
    ) -> Callable[[int], Bound]:
        """Return what makes the run for an image: pad, gather columns, multiply, add the bias.

        What images share is made once: making views takes longer than a small image does.
        """
        win, room = self.win, list(scratch)
        pad, inner = None, None
        if not win.pads_nothing:
            pad = room.pop(0)
            middle = (slice(None), *(slice(b, b + n) for b, n in zip(win.before, win.size, strict=True)))
            inner = pad[middle]
        elif self._long_rows and not x.flags.c_contiguous:
            pad = np.empty(x.shape[1:], x.dtype)  # only when a strided view comes in: copied once per run
            inner = pad
        source = x if pad is None else pad[None]
        border = None if win.pads_nothing else pad
        columns = room.pop(0)
        groups, depth = self.groups, self.channels // self.groups * win.taps
        weights = w.reshape(groups, self.maps // groups, depth)
        useful: Array | None = None
        products: Array | None = None
        results = out
        if self._long_rows:
            rows = room.pop(0)
            length = self._row
            steps = _steps(win.padded)
            item = source.itemsize
            strides = tuple(step * d * item for step, d in zip(steps, win.dilations, strict=True))
            plane = source.strides[1]
            gathers = view_of(
                source,
                (len(source), self.channels, *win.kernel, length),
                (source.strides[0], plane, *strides, item),
            )
            product = view_of_rows(rows, groups, length)
            lines = (slice(None), slice(None), *(slice(0, n) for n in win.out[1:]))
            useful = rows.reshape(self.maps, win.out[0], *win.padded[1:])[lines]
            if bias is not None:
                bias = bias.reshape(-1, *(1,) * len(win.out))
        else:
            gathers = window_view(source, win, 2)
            products = out.reshape(self.batch, groups, self.maps // groups, -1)
            results = out.reshape(self.batch, self.maps, -1)
        bias = spread(bias, results.shape[1:] if useful is None else useful.shape, known_bias)
        matrix = columns.reshape(groups, depth, -1)
        multiply: Ufunc = partial(np.matmul, weights)
        if groups == 1:
            weights, matrix = weights[0], matrix[0]
            straight = products is not None or product[0].flags.c_contiguous
            multiply = weights.dot if straight else partial(np.matmul, weights)

        def of(n: int) -> Bound:
            image, gather, result = x[n], gathers[n if pad is None else 0], results[n]
            target = product if products is None else products[n]
            if groups == 1:
                target = target[0]
            found = result if useful is None else useful

            def run() -> None:
                if border is not None:
                    border.fill(0)
                if inner is not None:
                    np.copyto(inner, image)
                np.copyto(columns, gather)
                multiply(matrix, target)
                if bias is not None:
                    np.add(found, bias, result)
                elif found is not result:
                    np.copyto(result, found)

            return run

        return of


def view_of_rows(rows: Array, groups: int, length: int) -> Array:
    """Return the first ``length`` columns of rows [M, …] as a writable view [groups, M/groups, length]."""
    step = rows.strides[0]
    per_group = rows.shape[0] // groups
    return np.lib.stride_tricks.as_strided(
        rows, (groups, per_group, length), (step * per_group, step, rows.itemsize)
    )


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distance between neighbours per axis of a contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _nothing() -> None:
    """Run a convolution without results."""


def convolution(call: Call, x: TensorSpec, w: TensorSpec) -> Convolution:
    """Check X and W of a convolution and settle its geometry; KernelShapeError where they do not fit."""
    if len(x.shape) < 3 or len(w.shape) != len(x.shape):
        raise KernelShapeError(
            f"{call.op_type}: X {x.shape} and W {w.shape} must be [N,C,spatial] and [M,C/g,kernel]"
        )
    groups = call.int_attr("group", 1)
    channels, maps = x.shape[1], w.shape[0]
    if groups < 1 or w.shape[1] * groups != channels or maps % groups:
        raise KernelShapeError(
            f"{call.op_type}: {channels} channels and weights {w.shape} do not fit {groups} groups"
        )
    named = call.ints_attr("kernel_shape")
    if named is not None and tuple(named) != w.shape[2:]:
        raise KernelShapeError(f"{call.op_type}: kernel_shape {named} differs from the weights {w.shape}")
    return Convolution(x.shape[0], channels, maps, groups, windows(call, x.shape[2:], w.shape[2:]))


def check_bias(call: Call, index: int, maps: int) -> None:
    """Raise KernelShapeError unless an optional bias has a value per output channel."""
    if call.has(index) and call.spec(index).shape != (maps,):
        raise KernelShapeError(
            f"{call.op_type}: bias {call.spec(index).shape} must be ({maps},), a value per output channel"
        )


def _by_bands(conv: Convolution, dtype: Dtype, n: int) -> Prepared | None:
    """Return a kernel with Conv's arguments by ``depthwise_bands`` where that is the faster way, else None.

    It is for batches of narrow images, and where X[1,C·N,size…] with W[C,N,out…] gives the gradient of C·1
    weights: each of C groups is a channel, its channels are the images of a batch.
    """
    out = TensorSpec(dtype, conv.out_shape)
    if conv.groups < 2 or conv.maps != conv.groups:
        return None
    win = conv.win
    if conv.batch > 1 and conv.channels == conv.groups:
        forward = bands_of(conv.batch, conv.channels, win, WIDEST)
        if forward is None:
            return None

        def bind(*arrays: Any) -> Bound:
            bias = arrays[2] if n > 2 else None
            return forward.bind(arrays[0], arrays[1][:, 0], bias, arrays[n], arrays[n + 1 :])

        return Prepared((out,), run_bound(bind), forward.scratch(dtype), binder=bind)
    images = conv.channels // conv.groups
    if conv.batch != 1 or n > 2 or not prod(win.out) <= _FEW < win.taps:
        return None
    # What are windows here are the results there.
    turned = Windows(win.size, win.out, win.dilations, win.strides, win.before, win.after, win.kernel)
    back = bands_of(images, conv.groups, turned)
    if back is None:
        return None

    def bind_gradient(*arrays: Any) -> Bound:
        x = arrays[0][0].reshape(conv.groups, images, *win.size)  # an axis in two: always a view
        return back.bind_gradient(x, arrays[1], arrays[2][0], arrays[3:])

    return Prepared((out,), run_bound(bind_gradient), back.scratch(dtype), binder=bind_gradient)


@kernel("Conv", "T T T?", dtypes=FLOAT, half=True, attrs=ATTRS)
def _conv(call: Call) -> Prepared:
    """Conv (opset 7+) slides weights over the spatial axes and sums products.

    X[N,C,size…], W[M,C/g,kernel…], B[M]? → Y[N,M,out…]; floats (float16 via float32). Shapes that do not fit
    raise KernelShapeError, wrong pads, strides or dilations KernelAttributeError. Run allocates nothing where
    X is contiguous.
    """
    x, w = call.spec(0), call.spec(1)
    conv = convolution(call, x, w)
    check_bias(call, 2, conv.maps)
    n = len(call.inputs)
    weights, known_bias = call.constant(1), call.constant(2) is not None
    by_bands = _by_bands(conv, x.dtype, n)
    if by_bands is not None:
        return by_bands
    depthwise = conv.groups == conv.channels == conv.maps and conv.batch > 0
    if weights is not None and depthwise and narrow_suits(conv.win, conv.channels, x.dtype):
        return narrow(conv.batch, conv.win, weights, n, known_bias)

    def bind(*arrays: Any) -> Bound:
        bias = arrays[2] if n > 2 else None
        return conv.bind(arrays[0], arrays[1], bias, arrays[n], arrays[n + 1 :], known_bias)

    return Prepared(
        (TensorSpec(x.dtype, conv.out_shape),), run_bound(bind), conv.scratch(x.dtype), binder=bind
    )
