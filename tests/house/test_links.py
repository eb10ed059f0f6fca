"""Every link between pages of the repository leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.house.test_spec_coverage import TEST

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
MADE = ("build", "dist")
"""Folders at the top that hold copies: what building a wheel leaves behind."""
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(p.startswith(".") for p in path.relative_to(ROOT).parts)
    and path.relative_to(ROOT).parts[0] not in MADE
)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub and MyST give the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        name, _, anchor = link.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        target = page if not name else (page.parent / name).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    named = TEST.findall(page.read_text("utf-8"))
    assert not [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text("utf-8")
    ]


def test_pages_were_found() -> None:
    assert len(PAGES) > 30
