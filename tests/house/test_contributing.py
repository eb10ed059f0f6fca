"""CONTRIBUTING.md sends nobody to a place that is not there."""

from __future__ import annotations

import re
from pathlib import Path

TOP = r"(?:bb_edge|bb_host|bb_kernels|docs|firmware_shims|kernels|tests|tools|examples|benchmarks)"
PATH = re.compile(rf"\b{TOP}/[\w./-]*|\b\w+\.(?:toml|md)\b")
NAME_IN_FILE = re.compile(
    r"`([A-Z_]{4,}|_[A-Z_]+|\w+\.\w+|\w+)`\s+(?:there\s+)?(?:in|of)\s+`([\w./]+\.(?:py|toml))`"
)


def test_every_path_is_there(root: Path) -> None:
    paths = set(PATH.findall((root / "CONTRIBUTING.md").read_text()))
    assert len(paths) > 40
    assert sorted(path for path in paths if not (root / path.rstrip(".")).exists()) == []


def test_every_name_is_in_the_file_that_is_said_to_hold_it(root: Path) -> None:
    named = NAME_IN_FILE.findall((root / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    missing = [
        f"{name} in {file}" for name, file in named if name.split(".")[-1] not in (root / file).read_text()
    ]
    assert missing == []
