"""The wheel and the editable install, made without a network, each in an environment of its own."""

from __future__ import annotations

import email
import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

PACKAGES = ["bb_edge", "bb_host", "bb_kernels", "bb_shims"]
OFFLINE = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]


def _setuptools_is_new_enough() -> bool:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.skipif(
        not _setuptools_is_new_enough(), reason="building offline needs setuptools >= 77 here"
    ),
    pytest.mark.xdist_group("wheel"),
]


def run(command: Sequence[str | Path], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that builds leave nothing behind in the real one."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(root / name, copy / name)
    for name in ["bb_edge", "bb_host", "kernels", "firmware_shims", "tests", "examples", "docs"]:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(root / name, copy / name, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", folder, checkout], folder)
    (path,) = folder.glob("*.whl")
    return path


def fresh_environment(folder: Path, *install: str | Path) -> Path:
    """An environment with our distribution from `install`; dependencies are borrowed from the running one."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    (site,) = folder.glob("lib/python*/site-packages")
    # A .pth entry adds the folder but not the .pth files in it: an editable install of ours stays out.
    (site / "borrowed.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    run([*pip, *OFFLINE, *install], folder)
    return python


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_environment(tmp_path_factory.mktemp("from-wheel"), wheel)


def imported_from(python: Path, cwd: Path) -> dict[str, str]:
    names = ", ".join(PACKAGES)
    code = f"import json, {names}; print(json.dumps({{m.__name__: m.__file__ for m in ({names},)}}))"
    found: dict[str, str] = json.loads(run([python, "-c", code], cwd))
    return found


def metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == PACKAGES


def test_the_wheel_holds_every_file_of_the_packages(checkout: Path, wheel: Path) -> None:
    expected = set()
    for base in [checkout, checkout / "kernels", checkout / "firmware_shims"]:
        for package in PACKAGES:
            expected |= {p.relative_to(base).as_posix() for p in (base / package).rglob("*") if p.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_edge_install_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    assert wheel.stat().st_size < 1_000_000
    assert unpacked < 3_000_000


def test_requirements_and_licence(wheel: Path) -> None:
    data = metadata(wheel)
    requirements = [r for r in data.get_all("Requires-Dist") if "extra ==" not in r]
    names = sorted(r.split(">")[0].split("<")[0].strip() for r in requirements)
    assert names == ["cbor2", "numpy", "paho-mqtt", "protobuf"]
    assert data["Requires-Python"] == ">=3.10"
    assert data["License-Expression"] == "Apache-2.0"
    assert {"host", "demo", "dev", "mutation", "tflite", "litert", "toml"} == set(
        data.get_all("Provides-Extra")
    )


def test_the_installed_packages_import(installed: Path, tmp_path: Path) -> None:
    found = imported_from(installed, tmp_path)
    assert sorted(found) == PACKAGES
    environment = installed.parents[1]
    assert all(Path(path).is_relative_to(environment) for path in found.values())


@pytest.mark.parametrize("command", ["bb-edge", "bb-host"])
def test_the_commands_run(installed: Path, tmp_path: Path, command: str) -> None:
    assert command in run([installed.parent / command, "--help"], tmp_path)


def test_an_editable_install_imports_from_the_checkout(checkout: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "editable", "--editable", checkout)
    found = imported_from(python, tmp_path)
    assert sorted(found) == PACKAGES
    assert all(Path(path).is_relative_to(checkout) for path in found.values())
