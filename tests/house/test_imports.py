"""What an import drags along, seen from a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def loaded_by(root: Path, statement: str) -> set[str]:
    """Names in sys.modules after `statement`, in an interpreter that has run nothing else."""
    path = os.pathsep.join(str(root / folder) for folder in (".", "kernels", "firmware_shims"))
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["bb_edge", "bb_edge.ir", "bb_edge.wire", "bb_edge.roles", "bb_edge.engine", "bb_kernels", "bb_shims"],
)
def test_no_broker_client_no_onnx_no_host(root: Path, module: str) -> None:
    heavy = {"paho", "onnx", "onnxruntime", "asyncio", "tflite_runtime", "ai_edge_litert", "bb_host"}
    assert loaded_by(root, f"import {module}") & heavy == set()


def test_importing_the_edge_package_is_light(root: Path) -> None:
    loaded = loaded_by(root, "import bb_edge")
    assert loaded & {"numpy", "google.protobuf", "cbor2"} == set()


def test_the_ir_does_not_pull_in_the_rest(root: Path) -> None:
    loaded = loaded_by(root, "import bb_edge.ir")
    ours = {name for name in loaded if name.startswith("bb_")}
    assert {name for name in ours if name != "bb_edge" and not name.startswith("bb_edge.ir")} == set()


@pytest.mark.parametrize("module", ["bb_kernels", "bb_shims"])
def test_kernels_and_shims_stand_alone(root: Path, module: str) -> None:
    loaded = loaded_by(root, f"import {module}")
    assert {name.split(".")[0] for name in loaded if name.startswith("bb_")} == {module}


def test_a_board_brings_no_fakes_along(root: Path) -> None:
    statement = "import bb_shims; bb_shims.detect()"
    assert {name for name in loaded_by(root, statement) if "fake" in name or "testing" in name} == set()


def test_shims_need_the_standard_library_only(root: Path) -> None:
    assert "numpy" not in loaded_by(root, "import bb_shims")


def test_the_ir_lives_beside_the_onnx_package(root: Path) -> None:
    """Both register ONNX messages with protobuf; ours do so under a package of their own."""
    pytest.importorskip("onnx")
    for first, second in [("onnx", "bb_edge.ir.onnx_pb2"), ("bb_edge.ir.onnx_pb2", "onnx")]:
        assert {"onnx", "bb_edge.ir.onnx_pb2"} <= loaded_by(root, f"import {first}\nimport {second}")
