"""`//` and `%` on floats give what NumPy gives, also where a quotient is large against its rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bb_edge
from bb_host import Graph, Module
from bb_host.build import compile_edge

SPECIAL = [0.0, 1.5, -1.5, 2.0, -2.0, 0.3, -0.3, 1e-7, -1e-7, np.inf, -np.inf, np.nan]
FLOATS = ["float16", "float32", "float64"]


class Division(Module):
    def __init__(self, dtype: str, divisor: float | None) -> None:
        super().__init__()
        self.dtype, self.divisor = dtype, divisor

    def body(self, g: Graph) -> None:
        x = g.input("x", self.dtype, ["n"])
        by: Any = g.input("by", self.dtype, ["n"]) if self.divisor is None else self.divisor
        g.output("rest", x % by)
        g.output("quotient", x // by)
        g.output("turned", 7.0 % x)


def numbers(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers of many magnitudes, and each special number with each."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(500) * 10.0 ** rng.integers(-3, 5, 500)
    by = rng.standard_normal(500) * 10.0 ** rng.integers(-2, 2, 500)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL]).T
    x, by = (np.concatenate([*both]) for both in ((x, pairs[0]), (by, pairs[1])))
    return x.clip(-6e4, 6e4).astype(dtype), by.astype(dtype)


@pytest.mark.parametrize("divisor", [None, 0.3, -0.3, 6.2831855, 864.0])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_numpy_gives(dtype: str, divisor: float | None) -> None:
    x, by = numbers(dtype)
    given = {"x": x} if divisor is not None else {"x": x, "by": by}
    found = bb_edge.open_model(compile_edge(Division(dtype, divisor)).artifacts[0].data)(**given)
    if divisor is not None:
        by = np.asarray(divisor, dtype)
    seven = np.asarray(7.0, dtype)
    wanted = {
        "rest": np.remainder(x, by),
        "quotient": np.floor_divide(x, by),
        "turned": np.remainder(seven, x),
    }
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == dtype


def test_numpy_has_such_numbers() -> None:
    """By the quotient alone, 1.5 // 0.3 is 5, and what remains of a million is noise."""
    x, by = np.array([1.5, 1e6], np.float32), np.float32(0.3)
    naive = x - by * np.floor(x / by)
    assert np.floor(x / by)[0] == 5 and np.floor_divide(x, by)[0] == 4
    assert abs(naive[1] - np.remainder(x, by)[1]) > 0.002
