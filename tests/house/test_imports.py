"""What an import drags along, seen from a fresh interpreter, and that no modules import each other."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
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


# --- circles ------------------------------------------------------------------------------------------


def import_graph(folder: Path) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports, anywhere in its file.

    Imports in functions and under TYPE_CHECKING count: they tie modules together as much as any other.
    """
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(module, path.stem == "__init__", node)
                inner = {f"{base}.{alias.name}" for alias in node.names}
                names |= inner & files.keys()
                if not inner <= files.keys():
                    names.add(base)
        graph[module] = (names & files.keys()) - {module}
    return graph


def _absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    """The module that `from … import` names, relative ones spelled out."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def way_back(module: str, graph: Mapping[str, set[str]]) -> list[str]:
    """A shortest way from a module back to itself; empty where there is none."""
    ways: list[list[str]] = [[module]]
    seen: set[str] = set()
    for way in ways:
        for following in sorted(graph[way[-1]]):
            if following == module:
                return [*way, module]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    sources = {
        "__init__": "",
        "a": "from pack import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.c import thing",
        "c": "def late():\n    from . import a",
        "d": "import pack.a",
    }
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    graph = import_graph(package)
    assert [way_back(f"pack.{name}", graph) for name in "bd"] == [
        ["pack.b", "pack.c", "pack.a", "pack.b"],
        [],
    ]


@pytest.mark.parametrize("package", ["bb_edge", "bb_host", "bb_kernels", "bb_shims"])
def test_no_modules_import_each_other(package_folders: dict[str, Path], package: str) -> None:
    """Every import counts, those in functions and under TYPE_CHECKING too."""
    graph = import_graph(package_folders[package])
    assert len(graph) > 5
    ways = [way for name in graph if (way := way_back(name, graph))]
    assert [" → ".join(way) for way in ways] == []
