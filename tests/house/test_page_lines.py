"""Lines of pages fit a screen: 110 characters, but for tables, blocks of code and addresses of links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 110
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in ("docs", "examples", "firmware_shims") for path in (ROOT / folder).rglob("*.md")),
]
ADDRESS = re.compile(r"\]\([^)]*\)|https?://\S+")


def long_lines(text: str) -> list[int]:
    """The numbers of lines that are too long."""
    found, code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```") or line.startswith("<!-- run: ") or (code and line == "-->")
        if not code and not line.lstrip().startswith("|") and len(ADDRESS.sub("]", line)) > MOST:
            found.append(number)
    return found


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_short(page: Path) -> None:
    assert long_lines(page.read_text("utf-8")) == []


def test_what_counts_as_long() -> None:
    words = "word " * 23
    assert long_lines(f"short\n{words}\n| {words} |\n```\n{words}\n```\n[short](https://{'x' * 200})\n") == [
        2
    ]
