from __future__ import annotations

import ast
import doctest
import importlib
import sys
from pathlib import Path

import pytest

import bb_shims

MODULES = sorted(Path(bb_shims.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_everything_public_is_there() -> None:
    assert len(set(bb_shims.__all__)) == len(bb_shims.__all__)
    assert all(hasattr(bb_shims, name) for name in bb_shims.__all__)


@pytest.mark.parametrize("name", ["bb_shims", "bb_shims.fake_board"])
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
