"""What a module exports lazily stands three times: for type checkers, at run time, in `__all__`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest


def exports(text: str) -> tuple[set[str], set[str], set[str]] | None:
    """`module: name as name` for type checkers and at run time, and `__all__`; None without lazy exports."""
    listed: set[str] = set()
    block = None
    for node in ast.parse(text).body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[ast.Assign(value=ast.Call() as call)]):
                block = (node.body, call)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                listed = set(ast.literal_eval(value))
    if block is None:
        return None
    checked = {
        f"{node.module}: {alias.name} as {alias.asname or alias.name}"
        for node in block[0]
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    at_run_time = {
        f"{home}: {part if ' as ' in part else f'{part} as {part}'}"
        for home, parts in ast.literal_eval(block[1].args[1]).items()
        for part in parts.split(", ")
    }
    return checked, at_run_time, listed


def test_type_checkers_see_what_there_is_at_run_time(package_folders: dict[str, Path]) -> None:
    modules = 0
    for folder in package_folders.values():
        for path in folder.rglob("*.py"):
            text = path.read_text("utf-8")
            if "= lazy_exports(" not in text:
                assert "\ndef __getattr__(name: str)" not in text, f"{path}: use lazy_exports"
                continue
            found = exports(text)
            assert found is not None, f"{path}: lazy_exports stands in the `else` of `if TYPE_CHECKING`"
            checked, at_run_time, listed = found
            assert checked == at_run_time, path
            assert {name.rpartition(" ")[2] for name in checked} <= listed, path
            modules += 1
    assert modules == 9


@pytest.mark.parametrize(
    ("imports", "homes", "equal"),
    [
        ("from m import A, b as B", '{"m": "A, b as B"}', True),
        ("from m import A, b as B", '{"m": "A"}', False),
        ("from m import A", '{"n": "A"}', False),
        ("from m import A as B", '{"m": "A"}', False),
    ],
)
def test_a_difference_is_found(imports: str, homes: str, equal: bool) -> None:
    text = (
        f"if TYPE_CHECKING:\n    {imports}\n"
        f"else:\n    __getattr__, __dir__ = lazy_exports(globals(), {homes})\n"
        "__all__ = ['A']"
    )
    found = exports(text)
    assert found is not None
    assert (found[0] == found[1], found[2]) == (equal, {"A"})
