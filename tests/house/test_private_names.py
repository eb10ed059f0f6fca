"""Tests look at what is public: a name with a leading underscore may change on any day."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_PYTHON = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_getframe"}
"""Documented names of namedtuple and sys."""

EXCUSED = {
    ("tests/aids/transitions.py", "_rows"),  # takes rows out of a table, which lets nobody do that
    ("tests/bb_host/tflite/training_steps.py", "_get_ops_details"),  # LiteRT has no other name for it
    ("tests/bb_edge/engine/test_admission.py", "_parts"),  # blocks a peer, which only an op of a program does
    # scikit-learn has no other way to a gradient; the script runs by hand, where it is installed
    ("tests/bb_host/learn/sklearn_models/make_fixtures.py", "_backprop"),
    ("tests/bb_host/learn/sklearn_models/make_fixtures.py", "_label_binarizer"),
}
"""(file, name): this list only ever gets shorter."""


def private_reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute with a leading underscore that is not an object's own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        if node.attr in OF_PYTHON or (node.attr.startswith("__") and node.attr.endswith("__")):
            continue
        match node.value:
            case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
                continue
        yield node.lineno, node.attr


def test_tests_read_no_private_names() -> None:
    found, used = [], set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for line, attribute in private_reads(ast.parse(path.read_text("utf-8"))):
            if (name, attribute) in EXCUSED:
                used.add((name, attribute))
            else:
                found.append(f"{name}:{line}: {attribute}")
    instead = "use Node.inspect(), counters, steps, or a public name of the class"
    assert not found, "\n".join([instead, *found])
    assert used == EXCUSED, "an excuse that nothing needs any more goes"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node._engine.pool", ["_engine"]),
        ("a.b()._c = 1", ["_c"]),
        ("del one._x", ["_x"]),
        ("self._x; cls._y; super()._z; row._replace(a=1); kind.__name__", []),
        ("self.node._x", ["_x"]),
        ("codecs._ENCODERS", ["_ENCODERS"]),
    ],
)
def test_the_check_finds_them(text: str, names: list[str]) -> None:
    assert [name for _, name in private_reads(ast.parse(text))] == names
