"""A helper of tests is written once, in tests/aids or in a conftest.py, and imported from there."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def helpers(text: str) -> Iterator[tuple[str, str]]:
    """Name, and names of parameters with the statements, of each longer function of a module."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("test_"):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if len(body) < 2:
            continue
        parameters = [part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        yield node.name, "\n".join([*parameters, *map(ast.unparse, body)])


def test_no_helper_is_written_in_two_files() -> None:
    places = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name, helper in helpers(path.read_text("utf-8")):
            places[helper].append((name, path.relative_to(ROOT).as_posix()))
    repeated = [where for where in places.values() if len(where) > 1]
    assert not repeated, f"write them once, in tests/aids: {repeated}"


def test_the_check_compares_what_helpers_do() -> None:
    (first,) = helpers('def one(a: int) -> int:\n    """Adds."""\n    b = a + 1\n    return b\n')
    (second,) = helpers("def two(a):\n    b = a + 1\n    return b\n")
    (third,) = helpers("def two(a):\n    b = a + 2\n    return b\n")
    assert first[1] == second[1] != third[1]
    assert not list(helpers("def short(a):\n    return a\n"))
