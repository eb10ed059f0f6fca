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


@pytest.mark.parametrize("name", FULL)
def test_a_net_with_an_open_batch_takes_several(name, compiled, run_lowered, reference):
    model = FULL[name]()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    found = compiled(model)
    assert len(found.body.ops) == len(found.models) == 1, found.lowering.explain()
    shape = [3, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    feeds = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    (want,), (got,) = reference(model, feeds), run_lowered(found, feeds)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
