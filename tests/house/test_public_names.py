"""In `bb_host` a name without an underscore is public: `__all__` stands only where names are handed on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HOST = Path(__file__).resolve().parents[2] / "bb_host"


def lists_its_own(text: str) -> bool:
    """Whether a module has an `__all__` in which every name is one that it defines itself."""
    listed: set[str] | None = None
    defined = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            if names == {"__all__"} and isinstance(node.value, ast.List):  # others are computed
                listed = set(ast.literal_eval(node.value))
            defined |= names
    return listed is not None and listed <= defined


def test_no_module_of_the_host_lists_its_own_names_again() -> None:
    found = [
        path.relative_to(HOST).as_posix()
        for path in HOST.rglob("*.py")
        if lists_its_own(path.read_text("utf-8"))
    ]
    assert not found, f"leave __all__ out, and give what is private an underscore: {found}"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('__all__ = ["f"]\ndef f(): ...', True),
        ('__all__ = ["A", "B"]\nA, B = 1, 2', True),
        ('from m import g\n__all__ = ["f", "g"]\ndef f(): ...', False),
        ("def f(): ...", False),
    ],
)
def test_the_check_tells_own_names_from_those_that_are_handed_on(text: str, own: bool) -> None:
    assert lists_its_own(text) is own
