"""Mermaid blocks of the pages become pictures on the site: all of them are read."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("drawings_of_site", ROOT / "docs" / "_site" / "drawings.py")
assert spec is not None and spec.loader is not None
drawings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drawings)

PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if drawings.BLOCK.search(page.read_text())]
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def words(svg: str) -> set[str]:
    return {
        word for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg) for word in re.findall(r"\w+", text)
    }


@needs_dot
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_word_of_a_block_is_in_its_picture(page: Path) -> None:
    for block in drawings.BLOCK.findall(page.read_text()):
        _, *lines = block.replace("subgraph ", "").splitlines()
        # A node that has a label shows it in place of its name.
        shown = re.sub(r"\w+(?=\(?\[)", "", "\n".join(lines)).replace("[*]", "")
        named = {name for name, _ in re.findall(r"(\w+)(\(?\[)", block)}
        assert set(re.findall(r"\w+", shown)) - named - {"end"} <= words(drawings.picture(block)), block


@needs_dot
def test_a_page_has_pictures_in_place_of_blocks(tmp_path: Path) -> None:
    page = drawings.drawn(
        "before\n\n```mermaid\nstateDiagram-v2\n    [*] --> up\n    up --> [*]\n```\n\nbehind\n"
    )
    assert "mermaid" not in page and page.count("<svg") == 1
    assert page.startswith("before\n\n```{raw} html\n") and page.endswith("```\n\nbehind\n")
    assert '"black"' not in page


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ("pie\n", "'pie' is not drawn"),
        ("stateDiagram-v2\n    state up\n", "'    state up' of a state diagram"),
        ("flowchart LR\n    a ==> b\n", "'a ==> b' of the flowchart"),
    ],
)
def test_what_is_not_read_is_named(block: str, named: str) -> None:
    with pytest.raises(drawings.DrawingError, match=re.escape(named)):
        drawings.picture(block)


def test_there_are_blocks() -> None:
    assert len(PAGES) >= 4
