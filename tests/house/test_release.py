"""`./dev release`: what is not ready is refused, and what is ready becomes files whose checksums hold."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.3] - 2026-11-27

### Added

- It adds.

## [1.2.2]

- Old.
"""
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "miniature"
version = "1.2.3"

[tool.setuptools]
packages = ["miniature"]
"""


@pytest.fixture(scope="module")
def tool(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_tool", root / "tools" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project in a repository of its own, ready to be released."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "project"
    (folder / "miniature").mkdir(parents=True)
    (folder / "miniature" / "__init__.py").write_text('"""Does nothing."""\n')
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / ".gitignore").write_text("*.egg-info/\nbuild/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_project_that_is_ready_becomes_files_whose_checksums_hold(
    tool: ModuleType, project: Path, tmp_path: Path
) -> None:
    pytest.importorskip("build", reason="building needs the dev extra")
    out = tmp_path / "out"
    written = tool.release(project, out)
    names = ["miniature-1.2.3-py3-none-any.whl", "miniature-1.2.3.tar.gz", "SHA256SUMS", "NOTES.md"]
    assert [file.name for file in written] == names
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True, capture_output=True
    )
    with zipfile.ZipFile(written[0]) as wheel, tarfile.open(written[1]) as source:
        assert "miniature/__init__.py" in wheel.namelist()
        assert "miniature-1.2.3/pyproject.toml" in source.getnames()
    assert (out / "NOTES.md").read_text() == "# 1.2.3\n\n### Added\n\n- It adds.\n"
    written[0].write_bytes(b"another")
    check = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=out, capture_output=True)
    assert check.returncode == 1
    with pytest.raises(tool.NotReady, match="not empty"):
        tool.release(project, out)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("## [1.2.3] - 2026-11-27", "## [1.2.4] - 2026-11-27", r"no section \[1\.2\.3\]"),
        ("## [1.2.3] - 2026-11-27", "## [1.2.3]", "no date"),
        ("- It adds.\n", "", "no entries"),
        ("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", "under .Unreleased"),
    ],
)
def test_a_changelog_that_is_not_finished_is_refused(tool: ModuleType, old: str, new: str, says: str) -> None:
    assert old in CHANGELOG
    with pytest.raises(tool.NotReady, match=says):
        tool.notes_of(CHANGELOG.replace(old, new), "1.2.3")


def test_what_is_not_committed_is_refused(tool: ModuleType, project: Path, tmp_path: Path) -> None:
    (project / "new.txt").write_text("new")
    with pytest.raises(tool.NotReady, match=r"not committed.*\n.*new\.txt"):
        tool.release(project, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_version_that_was_tagged_elsewhere_is_refused(tool: ModuleType, project: Path) -> None:
    git(project, "tag", "v1.2.3")
    assert len(tool.committed(project, "1.2.3")) == 40
    git(project, "commit", "-q", "--allow-empty", "-m", "second")
    with pytest.raises(tool.NotReady, match="on another commit"):
        tool.committed(project, "1.2.3")


@pytest.mark.parametrize("version", ["1.2", "1.2.3.dev1", "v1.2.3"])
def test_a_version_of_another_form_is_refused(tool: ModuleType, project: Path, version: str) -> None:
    (project / "pyproject.toml").write_text(PROJECT.replace("1.2.3", version))
    with pytest.raises(tool.NotReady, match=r"not X\.Y\.Z"):
        tool.version_of(project)


def test_this_checkout_has_a_version_and_a_changelog(tool: ModuleType, root: Path) -> None:
    assert f"## [{tool.version_of(root)}]" in (root / "CHANGELOG.md").read_text()


def test_the_command_says_why_it_refuses(root: Path, tmp_path: Path) -> None:
    """Whatever this checkout lacks, its changelog, its commit or an empty folder: nothing is written."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.whl").write_bytes(b"")
    command = [sys.executable, str(root / "tools" / "release.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("./dev release: ")
    assert [file.name for file in out.iterdir()] == ["old.whl"]
