"""Programs that tests compile, for machines without a compiler: there is no onnx package for 32-bit ARM.

    BB_TEST_PROGRAMS=DIR ./dev test      where onnx is: compiles, and writes what was compiled to DIR
    BB_TEST_PROGRAMS=DIR pytest tests    where it is not: reads it

DIR has a folder per state of the sources, so that nothing is read that other sources compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("bb_host", "bb_edge", "examples", "tests")


@functools.cache
def _digest() -> str:
    """Of everything that decides what a program compiles to."""
    found = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _skip(reason: str) -> NoReturn:
    import pytest  # the campaigns by hand do without

    pytest.skip(reason, allow_module_level=True)


def compiled_once(name: str, make: Callable[[], Mapping[str, bytes]]) -> dict[str, bytes]:
    """What `make` compiles, by target; or what it compiled elsewhere. Skips the test where there is neither.

    `name` says which program, with all its options.
    """
    has_compiler = importlib.util.find_spec("onnx") is not None
    root = os.environ.get("BB_TEST_PROGRAMS")
    if root is None:
        if not has_compiler:
            _skip("compiling needs the onnx package, or BB_TEST_PROGRAMS (tests/aids)")
        return dict(make())
    folder = Path(root) / _digest() / name
    if has_compiler:
        made = dict(make())
        folder.mkdir(parents=True, exist_ok=True)
        for target, data in made.items():
            fresh = folder / f".{target}.{os.getpid()}"
            fresh.write_bytes(data)
            fresh.replace(folder / f"{target}.program")  # workers may write the same one at once
        return made
    if not folder.is_dir():
        _skip(f"{name} is not in BB_TEST_PROGRAMS: it was not compiled from these sources")
    return {path.stem: path.read_bytes() for path in sorted(folder.glob("*.program"))}
