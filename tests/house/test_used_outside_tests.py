"""What only tests use does not ship: a function or class of the packages has a user beside tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

USERS = ("bb_edge", "bb_host", "kernels", "firmware_shims", "examples", "benchmarks", "tools")
EXCUSED = {"bb_host.ir.module_tree.module_tree"}  # the specification has it
"""This list only ever gets shorter."""


def names_used(tree: ast.AST) -> Iterator[str]:
    """What is imported by name, read as an attribute or from the module itself, or named in a text."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names)
            case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()):
                yield name
            case ast.Constant(value=str(text)) if len(text) < 200 and "\n" not in text:
                yield from text.replace(",", " ").replace(":", " ").replace(".", " ").split()


def registered(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator may keep it somewhere."""
    plain = {"dataclass", "lru_cache", "cache", "runtime_checkable", "typed_call", "typed_calls"}
    return any(plain.isdisjoint(names_used(decorator)) for decorator in node.decorator_list)


def unused(sources: Mapping[str, str]) -> list[str]:
    """`module.name` of functions and classes that nobody registers and nothing but themselves names."""
    trees = {module: ast.parse(text) for module, text in sources.items()}
    uses: dict[str, int] = {}
    for tree in trees.values():
        for name in names_used(tree):
            uses[name] = uses.get(name, 0) + 1
    found = []
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not registered(node):
                own = sum(name == node.name for name in names_used(node))
                if uses.get(node.name, 0) <= own and not node.name.startswith("__"):
                    found.append(f"{module}.{node.name}")
    return found


def test_nothing_ships_for_tests_alone(root: Path) -> None:
    sources = {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8")
        for folder in USERS
        for path in (root / folder).rglob("*.py")
    }
    found = {name for name in unused(sources) if name.startswith(("bb_edge.", "bb_host."))}
    assert found - EXCUSED == set(), "delete them, or move them to tests/aids"
    assert found >= EXCUSED, "an excuse that nothing needs any more goes"


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ("", ["m.f", "m.C"]),
        ("from m import f", ["m.C"]),
        ("import m\nm.f(m.C)", []),
        ('HOMES = {"m": "f, C"}', []),
    ],
)
def test_what_nobody_names_is_found(other: str, names: list[str]) -> None:
    sources = {"m": "def f(n): return f(n - 1)\nclass C: ...\n", "n": other}
    assert unused(sources) == names
