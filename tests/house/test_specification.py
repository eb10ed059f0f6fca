"""The specification's rules: their numbers, the tests that hold them, and whoever cites them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference" / "specification"
CODE = ("bb_edge", "bb_host", "kernels", "firmware_shims", "examples", "tests")
LETTERS = {"programs": "P", "engine": "E", "wire": "W", "memory": "M", "durability": "D"}

ROW = re.compile(r"^\| ([A-Z]\d+) \| .* \| ([^|]*) \|$", re.MULTILINE)
CITED = re.compile(r"\b[Rr]ules? ([A-Z]\d+(?:(?:, | and | to )[A-Z]\d+)*) of the\s+specification")
"""How a docstring or a page cites rules: "Rules W11 and W14 of the specification"."""


def rules() -> dict[str, str]:
    """Every rule, and what its row says that it is held by."""
    found: dict[str, str] = {}
    for name in LETTERS:
        for rule, held in ROW.findall((FOLDER / f"{name}.md").read_text("utf-8")):
            assert rule not in found, f"{rule} is declared twice"
            found[rule] = held
    return found


def cited(text: str) -> list[str]:
    """The rules that a text cites, those between two ends included."""
    every = []
    for listed in CITED.findall(text):
        for first, last in re.findall(r"([A-Z]\d+)(?: to ([A-Z]\d+))?", listed):
            letter, end = first[0], int((last or first)[1:])
            every += [f"{letter}{number}" for number in range(int(first[1:]), end + 1)]
    return every


def citations() -> Iterator[tuple[str, str]]:
    """(file, rule) of every citation in code and pages."""
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "docs").rglob("*.md")
    for path in files:
        if path != Path(__file__):
            yield from ((str(path.relative_to(ROOT)), rule) for rule in cited(path.read_text("utf-8")))


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The functions of a file of tests."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("name", LETTERS)
def test_rules_are_numbered_in_their_order(name: str) -> None:
    letter = LETTERS[name]
    own = [rule for rule in rules() if rule.startswith(letter)]
    assert own == [f"{letter}{number}" for number in range(1, len(own) + 1)] and len(own) > 10


def test_every_rule_is_held_by_tests_that_are_there() -> None:
    missing = []
    for rule, held in rules().items():
        named = re.findall(r"`([^`:]+)(?:::(\w+))?`", held)
        missing += [(rule, held)] if not named else []
        for file, test in named:
            path = ROOT / file
            if not path.exists() or (test and test not in functions_in(path)):
                missing.append((rule, f"{file}::{test}"))
    assert missing == []


def test_rules_that_are_cited_are_there() -> None:
    known = rules()
    found = list(citations())
    assert [(file, rule) for file, rule in found if rule not in known] == []
    assert len({file for file, _ in found}) > 20


def test_citations_are_read() -> None:
    text = "Rule E4 of the specification. Rules W11, W12 and D1 to D3 of the\nspecification; rule E9."
    assert cited(text) == ["E4", "W11", "W12", "D1", "D2", "D3"]
