"""`bb-edge bench --tune` measures, remembers, and is taken from then on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from compiled_programs import compiled_once

import bb_edge
from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.probe import Interpreter, interpreter
from bb_edge.backends.tflite.tuning import Choice, TuningError, load_tuning, save_tuning
from bb_edge.cli import main
from bb_edge.cli.tflite_backends import with_tuning

pytestmark = pytest.mark.skipif(interpreter().make is None, reason=interpreter().why_not)

X = np.ones((1, 64), np.float32)


def built(widths: list[int], backend: str, **options: object) -> bytes:
    """The artifact of a small network of these widths."""

    def make() -> dict[str, bytes]:
        from bb_host.build import build_edge
        from bb_host.learn import mlp

        (found,) = build_edge(mlp(widths, seed=1), backend=backend, **options).artifacts
        return {"net": found.data}

    return compiled_once("-".join(["tune", backend, *map(str, widths)]), make)["net"]


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "net.edge.onnx"
    path.write_bytes(built([64, 64, 64, 10], "tflite", shapes={"x": [1, 64]}))
    return path


@pytest.fixture
def with_fallback(tmp_path):
    path = tmp_path / "both.edge.onnx"
    path.write_bytes(built([256, 256, 256, 10], "auto", shapes={"x": [1, 256]}))
    return path


def test_what_was_measured_is_taken(with_fallback, capsys):
    assert main(["bench", "--tune", "--json", str(with_fallback)]) == 0
    report = json.loads(capsys.readouterr().out)
    (model,) = report["models"]
    assert {"1", "numpy"} <= set(model["microseconds"])
    assert model["microseconds"][model["chosen"]] == min(model["microseconds"].values())
    place = with_fallback.with_name("both.edge.tune.json")
    assert report["file"] == str(place)
    before = bb_edge.open_model(with_fallback)(np.ones((1, 256), np.float32))
    # Whatever was chosen: NumPy is chosen now, and runs.
    save_tuning(place, {model["sha256"]: Choice(0)}, interpreter())
    opened = bb_edge.open_model(with_fallback)
    assert type(opened.program).__name__ == "NumPyProgram"
    np.testing.assert_allclose(opened(np.ones((1, 256), np.float32)), before, atol=1e-5)
    program = bb_edge.load(with_fallback.read_bytes())
    (name,) = program.targets
    assert with_tuning({}, program, [name], with_fallback) == {"backend": {"tuning": str(place)}}
    assert with_tuning({"backend": {"tuning": "x"}}, program, [name], with_fallback)["backend"] == {
        "tuning": "x"
    }


def test_as_text(artifact, capsys):
    assert main(["bench", "--tune", str(artifact)]) == 0
    shown = capsys.readouterr().out
    assert "1 thread" in shown
    assert "← chosen" in shown
    assert "NumPy" not in shown, "the artifact brings no ops for it"


def test_an_artifact_without_flatbuffers_has_nothing_to_tune(tmp_path, capsys):
    path = tmp_path / "plain.edge.onnx"
    path.write_bytes(built([4, 2], "numpy"))
    assert main(["bench", "--tune", str(path)]) == 1
    assert "--backend auto" in capsys.readouterr().err
    assert not path.with_name("plain.edge.tune.json").exists()


def test_a_file_of_another_device_is_left_aside(artifact, tmp_path):
    place = tmp_path / "net.edge.tune.json"
    save_tuning(place, {"ab": Choice(2)}, interpreter())
    assert load_tuning(place, interpreter()) == {"ab": Choice(2)}
    other = Interpreter("another", None, "")
    with pytest.raises(TuningError, match="another device"):
        load_tuning(place, other)
    content = json.loads(place.read_text())
    for wrong in (
        "",
        "[]",
        "{}",
        json.dumps({**content, "format": 9}),
        json.dumps({**content, "threads": {"ab": -1}}),
        json.dumps({**content, "threads": {"ab": "many"}}),
        json.dumps({**content, "threads": 3}),
        "[" * 100_000,
        " " * (1 << 21),
    ):
        place.write_text(wrong)
        backend = TFLiteBackend()
        backend.take_tuning(str(place))
        assert backend.tuning == {}
        assert "ignored" in backend.notes[0]
        bb_edge.open_model(artifact)(X)
    with pytest.raises(TuningError):
        load_tuning(tmp_path / "nowhere.json", interpreter())


def test_check_says_what_runs_the_models(artifact, capsys):
    assert main(["check", str(artifact)]) == 0
    shown = capsys.readouterr().out
    assert "TFLite models:" in shown
    assert interpreter().package in shown
