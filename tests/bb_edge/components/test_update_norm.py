"""Whether a vector is finite is told without a word of NumPy's about what it holds."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.components.update_norm import CHUNK, is_finite


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, CHUNK + 1])
def test_vectors_that_are_finite_and_others(dtype, size):
    values = np.ones(size, dtype)
    largest = np.finfo(min(dtype, np.float32, key=lambda kind: np.finfo(kind).max)).max
    with np.errstate(all="raise"):
        assert is_finite(values)
        assert is_finite(np.full(size, -largest, dtype)), "their squares are infinite"
        for wrong in (np.inf, -np.inf, np.nan):
            values[size // 2] = wrong
            assert not is_finite(values)


def test_what_float32_does_not_hold_is_not_finite():
    with np.errstate(all="raise"):
        assert not is_finite(np.array([1.0, 1e300]))
        assert is_finite(np.empty(0, np.float32))
