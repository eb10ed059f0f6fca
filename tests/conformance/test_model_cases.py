"""ONNX's small models (converted from PyTorch, and simple ones), and its own test runner over our backend."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import onnx_backend as backend  # noqa: E402

from bb_host.errors import OnnxModelError  # noqa: E402

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
KINDS = ("pytorch-converted", "pytorch-operator", "simple")
FOLDERS = sorted(folder for kind in KINDS for folder in (DATA / kind).glob("test_*"))


def _tensors(folder: Path, what: str) -> list[Any]:
    files = sorted(folder.glob(f"{what}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [onnx.TensorProto.FromString(path.read_bytes()) for path in files]


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_model(folder: Path, is_declared: Callable[[Any], bool], check: Callable[..., None]) -> None:
    model = onnx.load(folder / "model.onnx")
    required = is_declared(model)
    try:
        prepared = backend.prepare(model)
    except OnnxModelError:
        assert not required
        return
    for data in sorted(folder.glob("test_data_set_*")):
        check(prepared, _tensors(data, "input"), _tensors(data, "output"), 1e-3, 1e-6)


def test_folders_are_there() -> None:
    assert len(FOLDERS) > 100


class Passed(unittest.TestResult):
    """Counts what passed: whether `testsRun` has the skipped ones in it depends on Python's version."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1


def test_the_runner_that_onnx_ships_takes_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx.backend.test.runner as runner

    kept = runner.load_model_tests
    monkeypatch.setattr(runner, "load_model_tests", lambda kind: kept(kind=kind) if "pytorch" in kind else [])
    tests = runner.Runner(backend.NumPyOnnxBackend, __name__)
    result = Passed()
    tests.include(r"test_(Conv|Linear|operator).*_cpu$").test_suite.run(result)
    assert not result.errors
    assert not result.failures
    assert result.passed >= 40, len(result.skipped)


def _light() -> list[Path]:
    return sorted((DATA / "light").glob("light_*.onnx"))


@pytest.mark.parametrize("path", _light(), ids=[path.stem for path in _light()])
def test_light_models_agree_with_onnxruntime(path: Path) -> None:
    """Nine CNNs of 2012 to 2017 at 224×224, opset 9; 1e-4 of the largest output.

    What a last Softmax reads is compared instead of what it writes: these weights were made up, squeezenet's
    logits are near 7e9, and there one unit in the last place decides the probabilities. The Softmax itself is
    held against the same function of our own logits.
    """
    ort = pytest.importorskip("onnxruntime")
    model = onnx.load(path)
    last = next(node for node in model.graph.node if model.graph.output[0].name in node.output)
    if last.op_type == "Softmax":
        (shape,) = (vi.type for vi in model.graph.output)
        model.graph.output.append(onnx.ValueInfoProto(name=last.input[0], type=shape))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    x = np.random.default_rng(3).standard_normal(given.shape).astype(np.float32)
    wanted, got = session.run(None, {given.name: x}), backend.prepare(model).run([x])
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in wanted]
    np.testing.assert_allclose(got[-1], wanted[-1], rtol=1e-4, atol=1e-4 * float(np.abs(wanted[-1]).max()))
    if last.op_type == "Softmax":
        logits = got[1].astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        np.testing.assert_allclose(got[0], powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)
