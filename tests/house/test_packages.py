"""The package list in pyproject.toml is the disk, and the edge install stays four distributions wide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_the_list_equals_the_disk(project: dict[str, Any], package_folders: dict[str, Path]) -> None:
    on_disk = set()
    for name, folder in package_folders.items():
        for source in folder.rglob("*.py"):
            on_disk.add(".".join([name, *source.parent.relative_to(folder).parts]))
    listed = project["tool"]["setuptools"]["packages"]
    # Files of the wheel that nobody imports: they lie in a folder of their own in the checkout.
    assert set(listed) == on_disk | {"bb_host.examples"}
    assert listed == sorted(listed)


def test_every_package_has_an_init(package_folders: dict[str, Path]) -> None:
    sources = [source for folder in package_folders.values() for source in folder.rglob("*.py")]
    assert [str(s) for s in sources if not (s.parent / "__init__.py").exists()] == []


def test_every_top_level_package_is_typed(package_folders: dict[str, Path]) -> None:
    assert sorted(package_folders) == ["bb_edge", "bb_host", "bb_kernels", "bb_shims"]
    assert [name for name, folder in package_folders.items() if not (folder / "py.typed").exists()] == []


def test_the_edge_install_is_four_distributions(project: dict[str, Any]) -> None:
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in project["project"]["dependencies"]]
    assert names == ["numpy", "protobuf", "cbor2", "paho-mqtt"]


def test_every_requirement_is_pinned(root: Path, project: dict[str, Any]) -> None:
    pinned = {
        line.split("==")[0].lower()
        for line in (root / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = project["project"]["optional-dependencies"]
    asked = [
        *project["project"]["dependencies"],
        *extras["host"],
        *extras["demo"],
        *extras["dev"],
        *extras["mutation"],
    ]
    names = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in asked}
    assert names - pinned == {"bytesandbrains-edge"}


def test_the_second_environment_is_pinned_below_numpy_2(root: Path) -> None:
    pins = dict(
        line.split(";")[0].strip().split("==")
        for line in (root / "constraints-tflite.txt").read_text().splitlines()
        if "==" in line
    )
    asked = re.search(r"SECOND_PACKAGES = \((.*?)\n\)", (root / "dev").read_text(), re.DOTALL)
    assert asked is not None
    assert set(re.findall(r'"([\w-]+)"', asked[1])) - set(pins) == set()
    assert pins["numpy"].startswith("1.")


def test_the_licence_is_apache(root: Path, project: dict[str, Any]) -> None:
    text = (root / "LICENSE").read_text()
    assert project["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
