"""The checkout, its project file, and the packages it lists."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    """pyproject.toml as a dictionary."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def package_folders(project: dict[str, Any]) -> dict[str, Path]:
    """Top-level package -> its folder."""
    setuptools = project["tool"]["setuptools"]
    names = [name for name in setuptools["packages"] if "." not in name]
    return {name: ROOT / setuptools["package-dir"].get(name, name) for name in names}


@pytest.fixture(scope="session")
def tracked_files() -> list[Path]:
    """Every file that is or would be committed; without git, every file outside of dot folders."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        built = ("__pycache__", "build", "dist")
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in built or (part.startswith(".") and part not in (".ci", ".gitignore"))
                for part in path.relative_to(ROOT).parts
            )
        ]
    return [path for path in paths if path.is_file()]
