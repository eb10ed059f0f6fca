"""`bb-host compile --quantize`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bb_host.cli import main

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture
def files(
    mlp: Callable[..., onnx.ModelProto], samples: Callable[..., Array], tmp_path: Path
) -> tuple[str, str, Path]:
    model = mlp()
    onnx.save(model, tmp_path / "mlp.onnx")
    np.savez(tmp_path / "data.npz", x=samples(model))
    return str(tmp_path / "mlp.onnx"), str(tmp_path / "data.npz"), tmp_path / "out"


def test_int8_is_reported(files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, data, out = files
    assert main(["compile", model, "-o", str(out), "--quantize", "int8", "--calibrate", data]) == 0
    said = capsys.readouterr().out
    assert "int8: 5 ops, 0 in float" in said
    assert "argmax" in said
    arguments = ["compile", model, "-o", str(out), "--quantize", "int8", "--calibrate", data, "--json"]
    assert main([*arguments, "--keep-float", "m,z"]) == 0
    accuracy = json.loads(capsys.readouterr().out)["accuracy"]["mlp"]
    assert accuracy["quantized"] == 3
    assert set(accuracy["left"]) == {"m", "z"}
    assert accuracy["outputs"][0]["name"] == "y"


def test_int8_can_be_as_litert_makes_it(files: tuple[str, str, Path]) -> None:
    model, data, out = files
    made = []
    for more in ([], ["--like-litert"], []):
        arguments = ["compile", model, "-o", str(out), "--quantize", "int8", "--calibrate", data]
        assert main([*arguments, *more]) == 0
        made.append((out / "mlp.edge.onnx").read_bytes())
    assert made[0] != made[1] and made[0] == made[2]


def test_fp16_is_smaller(files: tuple[str, str, Path]) -> None:
    model, _, out = files
    assert main(["compile", model, "-o", str(out)]) == 0
    plain = (out / "mlp.edge.onnx").stat().st_size
    assert main(["compile", model, "-o", str(out), "--quantize", "fp16"]) == 0
    assert (out / "mlp.edge.onnx").stat().st_size < 0.75 * plain


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quantize", "int8"], "int8 needs samples"),
        (["--calibrate", "data.npz"], "nothing is quantized"),
        (["--keep-float", "m"], "nothing is quantized"),
        (["--quantize", "int8", "--calibrate", "absent.npz"], "No such file"),
        (["--like-litert"], "nothing is quantized"),
        (["--quantize", "fp16", "--keep-float", "m"], "keeps no layers"),
        (["--quantize", "fp16", "--like-litert"], "has one recipe"),
    ],
)
def test_wrong_arguments_are_refused(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    model, _, out = files
    assert main(["compile", model, "-o", str(out), *arguments]) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("kind", ["torn", "empty", "one array", "objects"])
def test_a_file_that_is_no_npz_is_refused(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model, data, out = files
    if kind == "objects":
        np.savez(data, x=np.array([{}], dtype=object))
    else:
        stream = io.BytesIO()
        np.save(stream, np.zeros(3))
        content = {"torn": b"PK\x03\x04 torn", "empty": b"", "one array": stream.getvalue()}
        Path(data).write_bytes(content[kind])
    assert main(["compile", model, "-o", str(out), "--quantize", "int8", "--calibrate", data]) == 1
    assert "no .npz file" in capsys.readouterr().err
