"""A node that answers with a model says what paho and the interpreter by themselves say."""

from __future__ import annotations

import shutil

import pytest

from bb_edge.backends.tflite.probe import interpreter
from benchmarks.serving import compare

pytestmark = [
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
    pytest.mark.skipif(interpreter().make is None, reason="needs a TFLite interpreter"),
]


def test_both_sides_answer_all_requests_alike() -> None:
    ours, bare = compare("ds_cnn", requests=20, pairs=1)
    assert [len(run) for run in (*ours, *bare)] == [20, 20]
