"""Whole nets: lowered in full, and equal to onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import models

FULL = {**models.MLPERF_TINY, "transformer": models.transformer, "u_net": models.u_net}


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("choice", ["tflite", "auto"])
def test_a_net_is_one_model_and_agrees(name, choice, compiled, run_lowered, reference):
    model = FULL[name]()
    found = compiled(model, choice)
    assert len(found.models) == 1, found.lowering.explain()
    assert len(found.body.ops) == 1, found.lowering.explain()
    feeds = models.example(model)
    (want,) = reference(model, feeds)
    (got,) = run_lowered(found, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", FULL)
def test_equal_programs_have_equal_bytes(name, compiled):
    first, second = (compiled(FULL[name]()).models[0].attrs["sha256"] for _ in range(2))
    assert first == second
