"""Fixtures shared by the kernel tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_kernels import TensorSpec, evaluate, prepare

Compute = Callable[..., list[Any]]


@pytest.fixture
def compute() -> Compute:
    """compute(op, [inputs], version=…, n_outputs=…, known=…, **attrs) → list of outputs."""

    def run(
        op: str, inputs: list[Any], *, version: int = 21, n_outputs: int = 1, known: bool = True, **attrs: Any
    ) -> list[Any]:
        arrays = [None if a is None else np.asarray(a) for a in inputs]
        specs = [None if a is None else TensorSpec(a.dtype, a.shape) for a in arrays]
        prepared = prepare(op, version, attrs, specs, arrays if known else (), n_outputs)
        with np.errstate(all="ignore"):
            return list(evaluate(prepared, arrays))

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
