"""Transposed convolution.

There are three ways, chosen when preparing: a matrix product per image, after which every tap adds its map
into the output; for small images and with stride 1 ordinary convolutions by ``conv_rows``, group by group;
and for one channel per group ``depthwise_bands``.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from .conv import Convolution, check_bias
from .conv_rows import Correlation, scratch_of
from .depthwise_bands import Bands, transposed_bands_of
from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .spec import FLOAT, NUMERIC, Array, Bound, Prepared, TensorSpec, run_bound
from .windows import Windows, windows

#: Elements of an image up to which phases beat adding taps where there are several (measured: 0.1 to 0.75 of
#: its time, 1.05 to 1.2 beyond); with stride 1, where there is one, they always do (0.06 to 0.95).
_SMALL = 4096
#: Channels of a group from which on a group is worth products of its own.
_FEW = 4

_ATTRS = "auto_pad dilations group kernel_shape output_padding output_shape pads strides"


def _geometry(call: Call, size: tuple[int, ...], taps: tuple[int, ...]) -> tuple[Windows, tuple[int, ...]]:
    """Return the forward convolution that this one transposes, and the size of our output.

    Its ``out`` is our input. Attributes that do not fit raise KernelAttributeError, an empty output
    KernelShapeError.
    """
    rank = len(size)

    def per_axis(name: str, default: int, count: int = rank) -> list[int]:
        values = call.ints_attr(name) or [default] * count
        if len(values) != count or any(v < default for v in values):
            raise KernelAttributeError(f"ConvTranspose: {name} {values} do not fit {rank} spatial axes")
        return values

    strides, dilations = per_axis("strides", 1), per_axis("dilations", 1)
    extra, pads = per_axis("output_padding", 0), per_axis("pads", 0, 2 * rank)
    auto = call.str_attr("auto_pad", "NOTSET", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    output_shape = call.ints_attr("output_shape")
    before, out = [], []
    for i in range(rank):
        full = (size[i] - 1) * strides[i] + (taps[i] - 1) * dilations[i] + 1 + extra[i]
        target = None
        if output_shape is not None:
            target = output_shape[len(output_shape) - rank + i]
        elif auto.startswith("SAME"):
            target = size[i] * strides[i]
        if target is None:
            front, back = (0, 0) if auto == "VALID" else (pads[i], pads[i + rank])
            target = full - front - back
        else:
            total = max(0, full - target)
            front = total // 2 if auto == "SAME_UPPER" else total - total // 2
        if target < 1:
            raise KernelShapeError(f"ConvTranspose: padding leaves nothing of axis {i} with {full} elements")
        before.append(front)
        out.append(target)
    win = Windows(
        tuple(out), taps, tuple(strides), tuple(dilations), tuple(before), (0,) * rank, size
    )  # fmt: skip
    return win, tuple(out)


class _Phase(NamedTuple):
    """The outputs of one residue by the stride: where they are, the taps that reach them, and how."""

    where: tuple[slice, ...]
    taps: tuple[slice, ...]
    correlation: Correlation | None  # None where no tap reaches them


def _phases(batch: int, channels: int, maps: int, win: Windows) -> list[_Phase]:
    """Return a transposed convolution as correlations with stride 1, by the taps in reverse.

    Output o gets input i through tap t where o + before = i·stride + t·dilation, so only from the taps whose
    offset has the residue of o + before by the stride.
    """
    axes = []
    for size, n, taps, stride, dilation, before in zip(
        win.size, win.out, win.kernel, win.strides, win.dilations, win.before, strict=True
    ):
        apart = stride // gcd(stride, dilation)  # from one such tap to the next
        axis = []
        for first in range(min(stride, size)):
            reaching = [t for t in range(taps) if (first + before - t * dilation) % stride == 0]
            last = reaching[-1] if reaching else 0
            axis.append((
                slice(first, None, stride), slice(last, None, -apart), n, len(reaching),
                apart * dilation // stride, (last * dilation - first - before) // stride,
                -(-(size - first) // stride),
            ))  # fmt: skip
        axes.append(axis)
    found = []
    for parts in product(*axes):
        where, taps_, size_, kernel_, dilations, before_, out = zip(*parts, strict=True)
        ones = (1,) * len(parts)
        correlation = Correlation(batch, channels, maps, size_, kernel_, ones, dilations, before_, out)
        found.append(_Phase(where, taps_, correlation if all(kernel_) else None))
    return found


def _pointwise(conv: Convolution, out: TensorSpec, n_in: int) -> Prepared:
    """Return a kernel with ConvTranspose's arguments for weights of one element, in one group.

    Run allocates nothing where X is contiguous.
    """

    def bind(*arrays: Any) -> Bound:
        bias = arrays[2].reshape(-1, 1) if n_in > 2 else None
        return conv.pointwise(arrays[0], arrays[1].swapaxes(0, 1), bias, arrays[n_in], False)

    return Prepared((out,), run_bound(bind), binder=bind)


def _by_bands(bands: Bands, out: TensorSpec, n_in: int) -> Prepared:
    """Return a kernel with ConvTranspose's arguments, for one channel per group. Run allocates nothing."""

    def bind(*arrays: Any) -> Bound:
        # The kernel's lines in reverse.
        weights, bias = arrays[1][:, 0, ::-1], arrays[2] if n_in > 2 else None
        return bands.bind(arrays[0], weights, bias, arrays[n_in], arrays[n_in + 1 :])

    return Prepared((out,), run_bound(bind), bands.scratch(out.dtype), binder=bind)


def _in_phases(phases: list[_Phase], groups: int, out: TensorSpec, n_in: int) -> Prepared:
    """Return a kernel with ConvTranspose's arguments. Run allocates nothing."""

    def bind(*arrays: Any) -> Bound:
        x, w, y, scratch = arrays[0], arrays[1], arrays[n_in], arrays[n_in + 1 :]
        bias = arrays[2] if n_in > 2 else None
        nothing: Any = 0 if bias is None else bias.reshape(-1, *(1,) * (len(out.shape) - 2))
        channels, maps = len(w) // groups, w.shape[1]
        order = (*range(2, w.ndim), 0, 1)
        runs: list[Bound] = []
        for where, taps, correlation in phases:
            here, reaching = (slice(None), slice(None), *where), (slice(None), slice(None), *taps)
            part = y[here]
            if correlation is None:
                runs.append(partial(np.copyto, part, nothing))
                continue
            weights = w[reaching].transpose(order)
            for group in range(groups):
                own = slice(group * channels, (group + 1) * channels)
                made = slice(group * maps, (group + 1) * maps)
                added = None if bias is None else bias[made]
                runs.append(correlation.bind(x[:, own], weights[..., own, :], added, part[:, made], scratch))
        if len(runs) == 1:
            return runs[0]

        def run() -> None:
            for each in runs:
                each()

        return run

    correlations = [phase.correlation for phase in phases if phase.correlation is not None]
    return Prepared((out,), run_bound(bind), scratch_of(correlations, out.dtype), binder=bind)


@kernel("ConvTranspose", "T T T?", dtypes=FLOAT, half=True, attrs=_ATTRS)
def _conv_transpose(call: Call) -> Prepared:
    """ConvTranspose (opset 7+) spreads each input element over the output through the weights.

    X[N,C,size…], W[C,M/g,kernel…], B[M]? → Y[N,M,out…]; floats (float16 via float32). Shapes that do not fit
    raise KernelShapeError, wrong pads, strides or dilations KernelAttributeError. Run allocates nothing where
    X and W are contiguous.
    """
    x, w = call.spec(0), call.spec(1)
    if len(x.shape) < 3 or len(w.shape) != len(x.shape) or w.shape[0] != x.shape[1]:
        raise KernelShapeError(
            f"ConvTranspose: X {x.shape} and W {w.shape} must be [N,C,spatial] and [C,M/g,kernel]"
        )
    groups = call.int_attr("group", 1)
    batch, channels = x.shape[:2]
    if groups < 1 or channels % groups:
        raise KernelShapeError(f"ConvTranspose: {channels} channels do not divide into {groups} groups")
    maps = w.shape[1] * groups
    check_bias(call, 2, maps)
    win, size = _geometry(call, x.shape[2:], w.shape[2:])
    n_in = len(call.inputs)
    out_spec = TensorSpec(x.dtype, (batch, maps, *size))
    if groups == 1 and win.pointwise and win.size == win.out and x.size and w.size:
        return _pointwise(Convolution(batch, channels, maps, 1, win), out_spec, n_in)
    bands = transposed_bands_of(batch, channels, win) if groups == channels == maps > 1 else None
    if bands is not None:
        return _by_bands(bands, out_spec, n_in)
    small = all(s == 1 for s in win.strides) or channels // groups * prod(win.out) <= _SMALL
    if small and x.size and w.size and (groups == 1 or channels >= _FEW * groups):
        phases = _phases(batch, channels // groups, maps // groups, win)
        return _in_phases(phases, groups, out_spec, n_in)
    # Wide enough for every tap; what the padding cuts away is dropped at the end.
    room = tuple(
        max((n - 1) * s + (k - 1) * d + 1, b + o)
        for n, s, k, d, b, o in zip(
            win.out, win.strides, win.kernel, win.dilations, win.before, size, strict=True
        )
    )  # fmt: skip
    area = prod(x.shape[2:])
    columns = TensorSpec(x.dtype, (maps, *win.kernel, *x.shape[2:]))
    canvas = TensorSpec(x.dtype, (maps, *room))
    middle = (slice(None), *(slice(b, b + o) for b, o in zip(win.before, size, strict=True)))

    def bind(*arrays: Any) -> Bound:
        out, cols, whole = arrays[n_in : n_in + 3]
        bias = arrays[2].reshape(-1, *(1,) * len(size)) if n_in > 2 and arrays[2] is not None else None
        weights = arrays[1].reshape(groups, channels // groups, -1).swapaxes(1, 2)
        images = [(arrays[0][n].reshape(groups, channels // groups, area), out[n]) for n in range(batch)]
        product = cols.reshape(groups, -1, area)
        taps = cols.reshape(maps, win.taps, *x.shape[2:])
        adds = []
        for i, offset in enumerate(win.offsets()):
            where: tuple[slice, ...] = (slice(None),)
            where += tuple(
                slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, win.out, win.strides, strict=True)
            )
            adds.append((whole[where], taps[:, i]))
        inside = whole[middle]

        def run() -> None:
            for image, result in images:
                np.matmul(weights, image, product)
                whole.fill(0)
                for part, tap in adds:
                    np.add(part, tap, part)
                if bias is None:
                    np.copyto(result, inside)
                else:
                    np.add(inside, bias, result)

        return run

    def run_any(*arrays: Any) -> None:
        bind(np.ascontiguousarray(arrays[0]), np.ascontiguousarray(arrays[1]), *arrays[2:])()

    def bind_any(*arrays: Any) -> Bound:
        if arrays[0].flags.c_contiguous and arrays[1].flags.c_contiguous:
            return bind(*arrays)
        return lambda: run_any(*arrays)

    return Prepared((out_spec,), run_bound(bind_any), (columns, canvas), binder=bind_any)


@kernel("Col2Im", "T I I", since=18, dtypes=NUMERIC, needs=(1, 2), attrs="dilations pads strides")
def _col2im(call: Call) -> Prepared:
    """Col2Im (opset 18+) adds columns back into images where their blocks overlap.

    columns[N,C·taps,blocks], image_shape, block_shape → Y[N,C,image_shape…]; numbers. Shapes that do not fit
    raise KernelShapeError. Run allocates nothing where the columns are contiguous.
    """
    spec = call.spec(0)
    size, block = tuple(call.int_list(1) or ()), tuple(call.int_list(2) or ())
    if len(spec.shape) != 3 or not size or len(size) != len(block) or any(d < 1 for d in size + block):
        raise KernelShapeError(f"Col2Im: input {spec.shape}, image {size} and block {block} do not fit")
    win = windows(call, size, block)
    batch, rows, blocks = spec.shape
    if rows % win.taps or blocks != prod(win.out):
        raise KernelShapeError(f"Col2Im: input {spec.shape} does not hold {prod(win.out)} blocks of {block}")
    channels = rows // win.taps
    canvas = TensorSpec(spec.dtype, (batch, channels, *win.padded))
    front = (slice(None), slice(None))
    middle = front + tuple(slice(b, b + n) for b, n in zip(win.before, size, strict=True))

    def run(columns: Array, _size: Array, _block: Array, out: Array, whole: Array) -> None:
        taps = columns.reshape(batch, channels, win.taps, *win.out)
        whole.fill(0)
        for i, offset in enumerate(win.offsets()):
            where = front + tuple(
                slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, win.out, win.strides, strict=True)
            )
            np.add(whole[where], taps[:, :, i], whole[where])
        np.copyto(out, whole[middle])

    return Prepared((TensorSpec(spec.dtype, (batch, channels, *size)),), run, (canvas,))
