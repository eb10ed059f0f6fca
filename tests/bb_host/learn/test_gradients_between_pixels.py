"""Gradient rules of what reads images between their pixels against central differences, on the device's own
kernels in float64."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host.learn import differentiate


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_a_grid_that_samples_images(mode, padding, align, fn, check_gradient, runtime):
    attrs = f'mode="{mode}", padding_mode="{padding}", align_corners={align}'
    text = fn("x: F64[n,2,3,4], grid: F64[n,2,5,2]", f"z = GridSample<{attrs}>(x, grid)", "y = Exp(z)")
    grid = np.random.default_rng(3).uniform(-1.7, 1.7, (3, 2, 5, 2))  # inside and outside
    check_gradient(text, run=runtime, grid=grid)


def test_grids_of_other_ranks_and_of_older_files(fn, check_gradient, runtime):
    rng = np.random.default_rng(4)
    text = fn("x: F64[2,2,5], grid: F64[2,4,1]", "y = GridSample(x, grid)")
    check_gradient(text, run=runtime, grid=rng.uniform(-1.3, 1.3, (2, 4, 1)))
    text = fn("x: F64[1,1,2,3,4], grid: F64[1,2,1,3,3]", 'y = GridSample<padding_mode="border">(x, grid)')
    check_gradient(text, run=runtime, grid=rng.uniform(-1.3, 1.3, (1, 2, 1, 3, 3)))
    text = fn("x: F64[1,1,3,4], grid: F64[1,2,2,2]", 'y = GridSample<mode="bicubic">(x, grid)')
    check_gradient(text, run=runtime, grid=rng.uniform(-1, 1, (1, 2, 2, 2)), opset=18)


@pytest.mark.parametrize("size", ["3, 1, 2, 5", "3, 1, 2, 1, 3"])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_maps(size, align, fn, check_gradient, runtime):
    sizes = size.split(", ")
    lines = [
        f"s = Constant<value=I64[{len(sizes)}]{{{size}}}>()",
        f"z = AffineGrid<align_corners={align}>(t, s)",
        "y = Exp(z)",
    ]
    shape = f"{sizes[0]},{len(sizes) - 2},{len(sizes) - 1}"
    check_gradient(fn(f"t: F64[{shape}]", *lines), run=runtime)


def test_a_grid_on_the_pixels_themselves_has_the_slope_behind_them(fn, read, runtime):
    """Spatial transformers begin with it: the sum of both sides' slopes would be none."""
    found = differentiate(read(fn("x: F64[1,1,1,3], grid: F64[1,1,3,2]",
                                  "y = GridSample<align_corners=1>(x, grid)")), ["grid"])  # fmt: skip
    arrays = {"x": np.array([[[[1.0, 4.0, 9.0]]]]), "grid": np.zeros((1, 1, 3, 2))}
    arrays["grid"][..., 0] = [-1, 0, 1]
    arrays.update(runtime(found.forward, arrays))
    arrays[found.backward.inputs[-1]] = np.ones((1, 1, 1, 3))
    (slopes,) = runtime(found.backward, arrays).values()
    np.testing.assert_allclose(slopes[0, 0, :, 0], [3, 5, -9])  # outside there are zeros


@pytest.mark.parametrize(
    ("attrs", "shapes"),
    [
        ("", "x: F64[n,2,4,4], w: F64[3,2,2,2], o: F64[n,8,3,3]"),
        (", strides=[2, 1], pads=[1, 0, 1, 2]", "x: F64[n,1,4,3], w: F64[2,1,3,2], o: F64[n,12,2,4]"),
        (", dilations=[2, 1], group=2", "x: F64[1,4,4,3], w: F64[2,2,2,2], o: F64[1,8,2,2]"),
        (", offset_group=2", "x: F64[1,4,3,3], w: F64[2,4,2,2], o: F64[1,16,2,2]"),
    ],
)
@pytest.mark.parametrize("more", ["", "b", "bm"])
def test_deformable_convolutions(attrs, shapes, more, fn, check_gradient, runtime):
    batch, *out = shapes.rsplit("[", 1)[1].rstrip("]").split(",")
    offsets, count = int(out.pop(0)), shapes.split("w: F64[")[1][0]
    inputs = shapes + (f", b: F64[{count}]" if more else "")
    inputs += f", m: F64[{batch},{offsets // 2},{','.join(out)}]" if "m" in more else ""
    names = ["x", "w", "o", *more]
    line = f"z = DeformConv<{attrs.lstrip(', ')}>({', '.join(names)})"
    check_gradient(fn(inputs, line.replace("<>", ""), "y = Tanh(z)"), run=runtime)
