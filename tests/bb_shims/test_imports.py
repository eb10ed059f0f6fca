from __future__ import annotations

import ast
import doctest
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bb_shims
import bb_shims.testing

MODULES = sorted(Path(bb_shims.__file__).parent.rglob("*.py"))


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
            allowed = {*sys.stdlib_module_names, "bb_shims"}
            assert name.partition(".")[0] in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize("package", [bb_shims, bb_shims.testing], ids=lambda package: package.__name__)
def test_everything_public_is_there(package: ModuleType) -> None:
    assert len(set(package.__all__)) == len(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("name", ["bb_shims", "bb_shims.testing", "bb_shims.testing.fake_board"])
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
