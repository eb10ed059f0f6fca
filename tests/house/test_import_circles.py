"""No module imports itself in a roundabout way; imports for annotations and inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("ir", "wire", "roles", "state", "components", "syscalls")
"""The folders of bb_edge that are free of circles."""


def imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    root = Path(__file__).parents[2]
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / "bb_edge").rglob("*.py")
    }
    modules = set(files)
    return {name: set(imported(ast.parse(path.read_text()), modules)) for name, path in files.items()}


def circle_of(module: str, imports: dict[str, set[str]]) -> list[str]:
    """A shortest way from a module back to itself; empty where there is none."""
    ways: list[list[str]] = [[module]]
    seen: set[str] = set()
    for way in ways:
        for following in sorted(imports.get(way[-1], ())):
            if following == module:
                return [*way, module]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_of_a_room_is_in_an_import_circle(room: str, imports: dict[str, set[str]]) -> None:
    own = [name for name in imports if f"{name}.".startswith(f"bb_edge.{room}.")]
    assert len(own) > 3
    assert [" → ".join(way) for name in own if (way := circle_of(name, imports))] == []


def test_a_circle_is_found_and_named() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"a"}, "e": {"a"}}
    assert circle_of("a", imports) == ["a", "b", "d", "a"]
    assert circle_of("e", imports) == []
