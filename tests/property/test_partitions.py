"""Random programs compile, and their partitions together compute what the program says as a whole."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import Compiler
from bb_host.ir.proto import to_proto

pytestmark = pytest.mark.filterwarnings("ignore::bb_host.diagnostics.ProgramWarning")
"""Programs made at random compute what nothing reads."""

PROGRAMS = int(os.environ.get("BB_RANDOM_PROGRAMS", "30"))


@pytest.mark.parametrize("edge", [False, True], ids=["portable", "edge"])
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_partitions_compute_what_the_program_says(seed, edge, random_module, compute):
    expected, got, failures = compute(random_module(seed), seed, edge=edge)
    assert not failures
    assert {k: len(v) for k, v in got.items()} == {k: len(v) for k, v in expected.items()}
    for topic, rows in expected.items():
        for row, values in zip(rows, got[topic], strict=True):
            assert len(row) == len(values)
            for wanted, value in zip(row, values, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{seed} {topic}")


@pytest.mark.parametrize("seed", range(0, PROGRAMS, 4))
def test_models_are_onnx_models_and_compile_to_the_same_bytes_again(seed, random_module):
    program = random_module(seed).record()
    recorded = to_proto(program)
    onnx.checker.check_model(recorded)
    compiled = Compiler().compile(program)
    onnx.checker.check_model(compiled)
    again = Compiler().compile(recorded)
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)
