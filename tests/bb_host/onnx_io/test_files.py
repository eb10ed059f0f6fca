"""ONNX files that users name: whatever stands there instead of a model ends in a typed error, and at once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.components.parameter_file import ParameterFileError
from bb_edge.input_files import MAX_ARTIFACT, FileRefused
from bb_host.build import compile_edge
from bb_host.cli import main
from bb_host.errors import OverwriteError
from bb_host.learn import mlp, trainable
from bb_host.learn.exchange import has_external_data, read_parameters
from bb_host.source_file import read_model

READERS: dict[str, Callable[[Path], Any]] = {
    "compile, inspect and --accepts": read_model,
    "trainable": lambda path: trainable(str(path)),
    "export": has_external_data,
}
"""Ways to read a model; none of them may wait, or take more than the file holds."""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A model whose weights lie in `weights.bin`."""
    path = tmp_path / "net.onnx"
    onnx.save(mlp([4, 8, 3]), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_a_model_is_refused(reader: str, tmp_path: Path) -> None:
    pipe, large, link = tmp_path / "pipe.onnx", tmp_path / "large.onnx", tmp_path / "link.onnx"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(MAX_ARTIFACT + 1)
    link.symlink_to("/dev/zero")
    cases = ((pipe, "FIFO"), (Path("/dev/zero"), "device"), (link, "device"), (large, "larger than"))
    for path, word in (*cases, (tmp_path, "folder")):
        with pytest.raises(FileRefused, match=word) as caught:
            READERS[reader](path)
        assert caught.value.where.endswith(str(path))


@pytest.mark.parametrize("reader", ["compile, inspect and --accepts", "trainable"])
def test_a_file_of_weights_that_is_none_is_refused(reader: str, beside: Path) -> None:
    weights = beside.with_name("weights.bin")
    assert READERS[reader](beside) is not None
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(FileRefused, match="FIFO"):
        READERS[reader](beside)
    weights.unlink()
    weights.symlink_to("/dev/zero")
    with pytest.raises(FileRefused, match="device"):
        READERS[reader](beside)


_PROCESS = """
import resource, sys
from pathlib import Path
from bb_host.source_file import read_model
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    read_model(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_tensor_takes_no_more_weights_than_its_shape_says(beside: Path) -> None:
    """One without a length was read to the end of the file."""
    model = onnx.load(beside, load_external_data=False)
    for tensor in model.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key == "location"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    beside.write_bytes(model.SerializeToString())
    with beside.with_name("weights.bin").open("ab") as file:
        file.truncate(100 << 30)
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, beside], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("FileRefused ")
    assert "tensor 'w1' has 128 bytes, and 107374182400 are to be read for it" in done.stdout


def test_onnx_s_text_formats_are_read(tmp_path: Path) -> None:
    onnx.save(mlp([4, 8, 3]), tmp_path / "net.json")
    assert len(read_model(tmp_path / "net.json").graph.initializer) == 4


def test_the_command_line_says_it(tmp_path: Path, beside: Path, capsys: Any) -> None:
    pipe, zeros = tmp_path / "pipe.npz", tmp_path / "zeros.onnx"
    os.mkfifo(pipe)
    zeros.symlink_to("/dev/zero")
    for words, said in (
        (["compile", beside, "-o", tmp_path / "out", "--accepts", zeros], "device"),
        (["compile", beside, "-o", tmp_path / "out", "--params", pipe], "FIFO"),
        (["compile", beside, "-o", tmp_path / "out", "--params", "/dev/zero"], "device"),
        (["inspect", zeros], "device"),
    ):
        assert main(list(map(str, words))) != 0
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err, err


def test_a_pipe_in_the_place_of_an_artifact_does_not_hold_up_its_writer(tmp_path: Path) -> None:
    """Whether a file may be replaced is read from it."""
    build = compile_edge(mlp([4, 8, 3]))
    os.mkfifo(tmp_path / build.artifacts[0].file)
    with pytest.raises(OverwriteError, match="not a result of bb-host compile"):
        build.write(tmp_path)


def test_parameters_that_unpack_to_more_than_a_model_can_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (MAX_ARTIFACT + 1,)}
    )
    chunk = bytes(1 << 20)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w1.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(2048):
            member.write(chunk)
    assert path.stat().st_size < 16 << 20
    with pytest.raises(ParameterFileError, match="2147483647 are allowed"):
        read_parameters(path)
