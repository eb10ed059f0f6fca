"""Convolutions and pools against loops over windows, over a grid of geometries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from bb_kernels import KernelAttributeError, KernelShapeError, TensorSpec, prepare

Compute = Callable[..., list[Any]]


def reference_conv(
    x: Any, w: Any, b: Any, strides: list[int], pads: list[int], dilations: list[int], groups: int
) -> Any:
    """Σ over window and channels, one output element at a time, in float64."""
    rank = x.ndim - 2
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    for n, m in product(range(x.shape[0]), range(w.shape[0])):
        first = m // per_out * per_in
        for at in product(*map(range, sizes)):
            window = tuple(
                slice(i * s, i * s + r, d) for i, s, r, d in zip(at, strides, reach, dilations, strict=True)
            )
            patch = padded[(n, slice(first, first + per_in), *window)]
            out[(n, m, *at)] = (patch * w[m]).sum() + b[m]
    return out


GEOMETRIES = [
    # size, kernel, strides, pads, dilations
    ((7,), (3,), [1], [0, 0], [1]),
    ((7,), (3,), [2], [2, 1], [1]),
    ((6, 5), (1, 1), [1, 1], [0, 0, 0, 0], [1, 1]),
    ((6, 5), (1, 1), [2, 2], [0, 0, 0, 0], [1, 1]),
    ((6, 5), (3, 3), [1, 1], [1, 1, 1, 1], [1, 1]),
    ((6, 5), (3, 3), [1, 1], [0, 0, 0, 0], [1, 1]),
    ((12, 12), (3, 3), [1, 1], [1, 1, 1, 1], [1, 1]),
    ((6, 5), (3, 2), [2, 1], [0, 1, 1, 0], [1, 1]),
    ((9, 8), (3, 3), [1, 1], [2, 2, 2, 2], [2, 2]),
    ((9, 8), (2, 3), [2, 3], [0, 2, 3, 1], [3, 2]),
    ((4, 5, 3), (2, 2, 2), [1, 1, 1], [1, 0, 0, 0, 1, 1], [1, 1, 1]),
    ((4, 5, 3), (2, 3, 2), [2, 1, 1], [0, 0, 0, 0, 0, 0], [1, 2, 1]),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(
    ("batch", "channels", "maps", "groups"),
    [(1, 3, 4, 1), (3, 9, 4, 1), (2, 4, 4, 4), (2, 4, 6, 2), (1, 2, 6, 2)],
)
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("known", [False, True])
def test_conv(
    geometry: Any,
    batch: int,
    channels: int,
    maps: int,
    groups: int,
    layout: str,
    known: bool,
    rng: np.random.Generator,
) -> None:
    size, kernel, strides, pads, dilations = geometry
    x = rng.standard_normal((batch, channels, *size)).astype(np.float32)
    if layout == "strided":
        x = np.ascontiguousarray(x.transpose()).transpose()
    w = rng.standard_normal((maps, channels // groups, *kernel)).astype(np.float32)
    b = rng.standard_normal(maps).astype(np.float32)
    want = reference_conv(x, w, b, strides, pads, dilations, groups)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups}
    for bias in (b, None):
        given = [a for a in (x, w, bias) if a is not None]
        specs = [TensorSpec(a.dtype, a.shape) for a in given]
        # Known weights open other ways to the same result.
        prepared = prepare("Conv", 17, attrs, specs, [None, w] if known else ())
        out = np.full(prepared.outputs[0].shape, np.nan, np.float32)
        scratch = [np.full(s.shape, np.nan, s.dtype) for s in prepared.scratch]
        step = prepared.bind(*given, out, *scratch)
        for _ in range(2):
            step()
            shown = want if bias is not None else want - b.reshape(-1, *(1,) * len(size))
            np.testing.assert_allclose(out, shown, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("batch", "channels", "maps", "groups", "size", "kernel", "pads", "strides", "dilations"),
    [
        (21, 9, 5, 1, 8, 3, 1, 1, 1),  # several chunks of images, the last one smaller
        (3, 8, 2, 1, 16, 3, 1, 1, 1),
        (2, 16, 4, 2, 8, 3, 1, 1, 1),
        (2, 3, 2, 1, 40, 38, 0, 1, 1),  # long lines
        (1, 2, 3, 1, 16, 16, 1, 1, 1),  # a weight's gradient of one channel
        (5, 300, 3, 1, 16, 16, 0, 1, 1),  # windows that are whole images
        (5, 40, 3, 1, 16, 16, 1, 1, 1),  # and one whose columns are of a few of its channels at a time
        (2, 30, 3, 1, 16, 14, 0, 2, 1),
        (2, 8, 6, 2, 9, 5, 1, 1, 2),
        (31, 100, 100, 100, 8, 3, 1, 1, 1),  # a channel per group, a few of them at a time
        (2, 3, 3, 3, 9, 3, 2, 2, 3),
        (2, 3, 3, 3, 2, 5, 6, 1, 3),  # columns of the kernel that meet nothing but padding
        (1, 12, 4, 4, 9, 9, 1, 1, 1),  # the gradient of a weight per group, of three images
        (1, 6, 2, 2, 10, 5, 2, 1, 2),
        (1, 4096, 64, 64, 16, 16, 1, 1, 1),
    ],
)
def test_conv_of_small_images_in_batches(
    batch: int,
    channels: int,
    maps: int,
    groups: int,
    size: int,
    kernel: int,
    pads: int,
    strides: int,
    dilations: int,
    rng: np.random.Generator,
) -> None:
    x = rng.standard_normal((channels, batch, size, size)).astype(np.float32).swapaxes(0, 1)
    w = rng.standard_normal((channels // groups, maps, kernel, kernel)).astype(np.float32).swapaxes(0, 1)
    b = rng.standard_normal(maps).astype(np.float32)
    attrs = {"strides": [strides] * 2, "pads": [pads] * 4, "dilations": [dilations] * 2, "group": groups}
    want = reference_conv(x, w, b, [strides] * 2, [pads] * 4, [dilations] * 2, groups)
    for bias in (b, None):
        given = [a for a in (x, w, bias) if a is not None]
        prepared = prepare("Conv", 17, attrs, [TensorSpec(a.dtype, a.shape) for a in given])
        assert sum(spec.nbytes for spec in prepared.scratch) < 1 << 20
        out = np.full(want.shape, np.nan, np.float32)
        scratch = [np.full(s.shape, np.nan, s.dtype) for s in prepared.scratch]
        step = prepared.bind(*given, out, *scratch)
        for _ in range(2):
            step()
            shown = want if bias is not None else want - b.reshape(-1, 1, 1)
            np.testing.assert_allclose(out, shown, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_auto_pad(auto: str, compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 7, 6)).astype(np.float32)
    w = rng.standard_normal((3, 2, 3, 2)).astype(np.float32)
    (got,) = compute("Conv", [x, w], strides=[2, 2], auto_pad=auto)
    # 7 rows by 2 need a total of 2, 6 columns by 2 need none; the odd one goes to the end in SAME_UPPER.
    pads = [1, 0, 1, 0] if auto.startswith("SAME") else [0, 0, 0, 0]
    want = reference_conv(x, w, np.zeros(3), [2, 2], pads, [1, 1], 1)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_conv_of_an_empty_batch(compute: Compute) -> None:
    (got,) = compute("Conv", [np.ones((0, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)])
    assert got.shape == (0, 3, 3, 3)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "error", "word"),
    [
        ((1, 3, 5, 5), (4, 2, 3, 3), {}, KernelShapeError, "groups"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, KernelShapeError, "groups"),
        ((1, 3, 5, 5), (4, 3, 6, 3), {}, KernelShapeError, "window of 6"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"strides": [0, 1]}, KernelAttributeError, "strides"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"pads": [1, 1]}, KernelAttributeError, "pads"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"pads": [-1, 0, 0, 0]}, KernelAttributeError, "pads"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"kernel_shape": [2, 3]}, KernelShapeError, "kernel_shape"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"auto_pad": "SOMEHOW"}, KernelAttributeError, "auto_pad"),
        ((3, 5), (4, 3), {}, KernelShapeError, "spatial"),
    ],
)
def test_conv_refusals(x: Any, w: Any, attrs: Any, error: type[Exception], word: str) -> None:
    specs = [TensorSpec(np.dtype(np.float32), s) for s in (x, w)]
    with pytest.raises(error, match=word):
        prepare("Conv", 17, attrs, specs)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(
    ("groups", "batch", "maps"), [(1, 2, 4), (2, 2, 4), (2, 2, 8), (6, 3, 6), (1, 1, 1000)]
)  # so many channels of an image are no longer turned channels last
def test_conv_transpose_is_the_adjoint_of_conv(
    geometry: Any, groups: int, batch: int, maps: int, compute: Compute, rng: np.random.Generator
) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>; what no window reaches is cut from x."""
    size, kernel, strides, pads, dilations = geometry
    w = rng.standard_normal((maps, 6 // groups, *kernel))
    x = rng.standard_normal((batch, 6, *size))
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups}
    y = rng.standard_normal(compute("Conv", [x, w], **attrs)[0].shape)
    (back,) = compute("ConvTranspose", [y, w], **attrs)
    reached = (slice(None), slice(None), *(slice(0, n) for n in back.shape[2:]))
    inner = np.zeros_like(x)
    inner[reached] = x[reached]
    forward = compute("Conv", [inner, w], **attrs)[0]
    np.testing.assert_allclose((forward * y).sum(), (x[reached] * back).sum(), rtol=1e-9)


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_pointwise_conv_transpose_of_a_batch(layout: str, compute: Compute, rng: np.random.Generator) -> None:
    x, w, b = rng.standard_normal((3, 4, 5, 6)), rng.standard_normal((4, 7, 1, 1)), rng.standard_normal(7)
    if layout == "strided":
        x, w = (np.ascontiguousarray(a.transpose()).transpose() for a in (x, w))
    want = np.einsum("nchw,cm->nmhw", x, w[:, :, 0, 0])
    np.testing.assert_allclose(compute("ConvTranspose", [x, w])[0], want, rtol=1e-9)
    (biased,) = compute("ConvTranspose", [x, w, b])
    np.testing.assert_allclose(biased, want + b[:, None, None], rtol=1e-9)


def reference_pool(
    x: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, fold: Any, fill: float
) -> Any:
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
    out = np.zeros((*x.shape[:2], *sizes), x.dtype)
    for at in product(*map(range, sizes)):
        window = tuple(
            slice(i * s, i * s + r, d) for i, s, r, d in zip(at, strides, reach, dilations, strict=True)
        )
        patch = padded[(slice(None), slice(None), *window)]
        out[(slice(None), slice(None), *at)] = fold(patch, tuple(range(2, 2 + rank)))
    return out


POOLS = [g for g in GEOMETRIES if all(p < k for p, k in zip(g[3], g[1] * 2, strict=True))] + [
    ((8, 8), (8, 8), [1, 1], [0, 0, 0, 0], [1, 1]),
    ((12, 11), (5, 6), [2, 3], [0, 0, 0, 0], [1, 1]),
]


@pytest.mark.parametrize("geometry", POOLS, ids=str)
def test_pools(geometry: Any, compute: Compute, rng: np.random.Generator) -> None:
    size, kernel, strides, pads, dilations = geometry
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    attrs = {"kernel_shape": list(kernel), "strides": strides, "pads": pads, "dilations": dilations}
    (largest,) = compute("MaxPool", [x], **attrs)
    np.testing.assert_array_equal(
        largest, reference_pool(x, kernel, strides, pads, dilations, np.max, -np.inf)
    )
    (padded_mean,) = compute("AveragePool", [x], count_include_pad=1, **attrs)
    want = reference_pool(x, kernel, strides, pads, dilations, np.mean, 0.0)
    np.testing.assert_allclose(padded_mean, want, rtol=1e-5, atol=1e-6)
    (mean,) = compute("AveragePool", [x], **attrs)
    want = reference_pool(x, kernel, strides, pads, dilations, np.nanmean, np.nan)
    np.testing.assert_allclose(mean, want, rtol=1e-5, atol=1e-6)


def test_max_pool_indices_point_at_the_maxima(compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    values, places = compute("MaxPool", [x], n_outputs=2, **attrs)
    np.testing.assert_array_equal(x.reshape(-1)[places], values)
    _, turned = compute("MaxPool", [x], n_outputs=2, storage_order=1, **attrs)
    columns_first = x.transpose(0, 1, 3, 2).reshape(-1)
    np.testing.assert_array_equal(columns_first[turned], values)


@pytest.mark.parametrize("geometry", POOLS, ids=str)
def test_max_pool_points_at_the_first_of_equal_maxima(
    geometry: Any, compute: Compute, rng: np.random.Generator
) -> None:
    """As images have them: few different values, so that most windows have several."""
    size, kernel, strides, pads, dilations = geometry
    x = rng.integers(0, 3, (3, 2, *size)).astype(np.float32)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    values, places = compute("MaxPool", [x], n_outputs=2, **attrs)
    np.testing.assert_array_equal(x.reshape(-1)[places], values)
    # The same values, the earlier the larger by a little: what is first is the only maximum.
    fewer = (x - np.arange(x.size).reshape(x.shape) / (2 * x.size)).astype(np.float64)
    np.testing.assert_array_equal(compute("MaxPool", [fewer], n_outputs=2, **attrs)[1], places)
    (alone,) = compute("MaxPool", [x], n_outputs=1, **attrs)
    np.testing.assert_array_equal(alone, values)


def test_max_pool_of_the_smallest_values(compute: Compute) -> None:
    x = np.full((1, 1, 4, 4), np.iinfo(np.int8).min, np.int8)
    values, places = compute("MaxPool", [x], n_outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    assert (values == -128).all()
    assert places.reshape(-1).tolist() == [0, 2, 8, 10]


def test_max_unpool_undoes_max_pool(compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    values, places = compute("MaxPool", [x], n_outputs=2, **attrs)
    (back,) = compute("MaxUnpool", [values, places], known=False, **attrs)
    assert back.shape == x.shape
    assert set(np.unique(back)) == {0.0, *values.reshape(-1).tolist()}
    np.testing.assert_array_equal(back.reshape(-1)[places], values)


def test_max_unpool_refuses_places_outside(compute: Compute) -> None:
    x = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(KernelShapeError, match="outside"):
        compute("MaxUnpool", [x, np.array([[[[99]]]])], kernel_shape=[2, 2])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("groups", "kernel"), [(1, (2, 3)), (2, (2, 3)), (1, (1, 1))])
def test_bound_weights_that_are_a_view_are_read_at_each_run(
    op: str, groups: int, kernel: tuple[int, int], rng: np.random.Generator
) -> None:
    x = rng.standard_normal((1, 4, 5, 6))
    turned = np.zeros((*kernel[::-1], 4 // groups, 4))
    w = turned.transpose()
    specs = [TensorSpec(x.dtype, x.shape), TensorSpec(w.dtype, w.shape)]
    prepared = prepare(op, 21, {"group": groups}, specs, [None, None], 1)
    out = np.empty(prepared.outputs[0].shape)
    scratch = [np.empty(spec.shape, spec.dtype) for spec in prepared.scratch]
    bound = prepared.bind(x, w, out, *scratch)
    turned[...] = rng.standard_normal(turned.shape)  # after binding, as a plan's arena is filled
    bound()
    expected = np.empty_like(out)
    prepared.run(x, np.ascontiguousarray(w), expected, *scratch)
    np.testing.assert_array_equal(out, expected)
