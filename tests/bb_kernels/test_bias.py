"""A bias that is known is spread once; one that may change is read at each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_kernels import TensorSpec, prepare
from bb_kernels.bias import SPREAD_BYTES, spread

F32 = np.dtype(np.float32)


def test_only_known_and_small_ones_are_spread() -> None:
    bias = np.arange(4, dtype=np.float32).reshape(4, 1)
    assert spread(None, (4, 9), True) is None
    assert spread(bias, (4, 9), False) is bias
    assert spread(bias, (4, SPREAD_BYTES), True) is bias
    found = spread(bias, (4, 9), True)
    assert found is not None
    assert found.shape == (4, 9)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.broadcast_to(bias, (4, 9)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("weights", "attrs"),
    [
        ((4, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((4, 4, 3, 3), {"strides": [2, 2]}),
        ((4, 4, 1, 1), {}),
        ((4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((4, 2, 1, 1), {"group": 2}),
    ],
    ids=["long rows", "gathered", "pointwise", "depthwise", "groups"],
)
def test_known_and_changing_biases_give_the_same(
    weights: tuple[int, ...], attrs: dict[str, Any], batch: int, rng: np.random.Generator
) -> None:
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((batch, 4, 7, 6), weights, (4,)))
    specs = [TensorSpec(F32, a.shape) for a in (x, w, b)]
    results = []
    for known in ([None, w, b], [None, w, None], [None, None, None]):
        prepared = prepare("Conv", 17, attrs, specs, known)
        out = np.empty(prepared.outputs[0].shape, F32)
        bias = b.copy()
        step = prepared.bind(x, w, bias, out, *(np.empty(s.shape, s.dtype) for s in prepared.scratch))
        step()
        results.append(out.copy())
        if known[2] is None:
            bias += 1
            step()
            np.testing.assert_allclose(out, results[-1] + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-5, atol=1e-5)
