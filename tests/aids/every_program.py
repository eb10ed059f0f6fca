"""The programs that stand in tests, examples and benchmarks, found by looking there."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("tests", "examples", "benchmarks")
_A_PROGRAM = re.compile(r"^class \w+\((?!nn\.)(?:\w+\.)?Module\)", re.MULTILINE)
"""Networks of PyTorch, in the script that makes fixtures, are not programs."""


def files() -> list[str]:
    """The files that define a module at their top level, as paths from the root."""
    found = (path for place in PLACES for path in sorted((ROOT / place).rglob("*.py")))
    return [path.relative_to(ROOT).as_posix() for path in found if _A_PROGRAM.search(path.read_text())]


def loaded(file: str) -> ModuleType:
    """The file as the Python module that it is for pytest too: what it registers is registered once."""
    folder = str((ROOT / file).parent)
    sys.path.append(folder)  # a test may import from beside it
    try:
        return importlib.import_module(file.removesuffix(".py").replace("/", "."))
    finally:
        sys.path.remove(folder)


def modules(file: str) -> Iterator[tuple[str, Any]]:
    """(name, module) of each class at the top level of a file that is made without arguments."""
    from bb_host import Module

    found = loaded(file)
    for name, kind in vars(found).items():
        if not inspect.isclass(kind) or not issubclass(kind, Module) or kind.__module__ != found.__name__:
            continue
        needed = [
            p
            for p in inspect.signature(kind).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        if not needed:
            yield name, kind()
