"""Fake quantization: gradients pass straight through it, within the range of the integers."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host.errors import NotDifferentiableError
from bb_host.learn import differentiate

WEIGHT = np.array([[0.3, -0.3, 1.26, 1.29], [-1.27, -1.29, 2.0, -2.0]], np.float32)
"""At a scale of 0.01 and int8: two inside, 1.26 inside, 1.29 beyond; −1.27 inside, −1.29 beyond, …"""
INSIDE = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], np.float32)


def gradient_of(text, arrays, read, runtime, wrt="w"):
    found = differentiate(read(text), [wrt])
    assert found.unreached == ()
    results = runtime(found.forward, arrays)
    seed = np.ones_like(results[found.forward.outputs[0]])
    inputs = {**arrays, **results, found.backward.inputs[-1]: seed}
    return runtime(found.backward, inputs)[found.backward.outputs[0]]


def quantized(between="", scale="F32[]{0.01}", point="I8[]{0}", attrs="", inner="q"):
    return f"""function f(w: F32[2,4], x: F32[2,4]) -> (y)
  s = Constant<value={scale}>()
  z = Constant<value={point}>()
  q = QuantizeLinear{attrs}(w, s, z)
{between}  d = DequantizeLinear{attrs}({inner}, s, z)
  y = Mul(d, x)
"""


FORMS = [
    quantized(),
    quantized(between="  t = Identity(q)\n", inner="t"),
    quantized(scale="F32[2]{0.01, 0.01}", point="I8[2]{0, 0}", attrs="<axis=0>"),
    quantized(scale="F32[4]{0.01, 0.01, 0.01, 0.01}", point="I8[4]{0, 0, 0, 0}", attrs="<axis=-1>"),
    quantized(scale="F32[1]{0.01}", point="I8[1]{0}"),
]


@pytest.mark.parametrize("text", FORMS)
def test_gradients_pass_within_the_range_of_the_integers(text, read, runtime):
    x = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    found = gradient_of(text, {"w": WEIGHT, "x": x}, read, runtime)
    np.testing.assert_array_equal(found, INSIDE * x)


def test_the_zero_point_moves_the_range(read, runtime):
    x = np.ones((2, 4), np.float32)
    found = gradient_of(quantized(point="U8[]{0}"), {"w": WEIGHT, "x": x}, read, runtime)
    np.testing.assert_array_equal(found, [[1, 0, 1, 1], [0, 0, 1, 0]])  # 0 … 2.55


def test_a_narrower_range_by_clip_is_that_of_the_gradient(read, runtime):
    """As PyTorch's older exporter writes quant_min=-127; the ends of the range are inside."""
    clip = "  lo = Constant<value=I8[]{-30}>()\n  hi = Constant<value=I8[]{127}>()\n  c = Clip(q, lo, hi)\n"
    x = np.ones((2, 4), np.float32)
    found = gradient_of(quantized(clip, inner="c"), {"w": WEIGHT, "x": x}, read, runtime)
    # −2 saturates at −128 already, 1.29 at 127
    np.testing.assert_array_equal(found, [[1, 1, 1, 0], [0, 0, 0, 0]])


def test_activations_are_passed_through_too(read, runtime):
    """Where scale and zero point are computed, the bounds are."""
    text = """function f(w: F32[2,4], s: F32[], p: F32[]) -> (y)
  a = Mul(w, w)
  z = Cast<to=2>(p)
  q = QuantizeLinear(a, s, z)
  y = DequantizeLinear(q, s, z)
"""
    arrays = {"w": WEIGHT, "s": np.float32(0.01), "p": np.float32(0)}
    found = gradient_of(text, arrays, read, runtime)
    np.testing.assert_allclose(found, np.where(np.square(WEIGHT) < 2.555, 2 * WEIGHT, 0), rtol=1e-6)


def test_another_scale_behind_the_integers_is_refused(read):
    text = quantized(between="  s2 = Constant<value=F32[]{0.02}>()\n").replace("(q, s, z)", "(q, s2, z)")
    with pytest.raises(NotDifferentiableError, match="not the one that its input was quantized with"):
        differentiate(read(text), ["w"])


def test_integers_that_are_looked_at_otherwise_still_stop(read):
    text = """function f(w: F32[2,4], x: F32[2,4]) -> (y)
  s = Constant<value=F32[]{0.01}>()
  z = Constant<value=I8[]{0}>()
  q = QuantizeLinear(w, s, z)
  c = Cast<to=1>(q)
  y = Mul(c, x)
"""
    found = differentiate(read(text), ["w"])
    assert [name for name, _ in found.unreached] == ["w"]
