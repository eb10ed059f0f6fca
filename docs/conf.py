"""Sphinx: how `./dev docs` makes a site of these pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_site"))

import drawings  # noqa: E402

project = "BytesAndBrains for the edge"
extensions = ["myst_parser", "sphinx_copybutton"]
# Of a console its commands are copied, without their prompts and what they print.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = project
html_static_path: list[str] = ["_site/site.css"]
html_favicon = "_site/favicon.svg"
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "_site" / "search_scorer.js")
exclude_patterns = ["_build", "_site"]
suppress_warnings = [
    "myst.header",  # a page may begin at any level
    "misc.highlighting_failure",  # blocks of consoles and of our own notations have no lexer
]
nitpicky = True

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")


def outside_as_text(_app: Any, name: str, source: list[str]) -> None:
    """Links to files beside `docs/`, which a site does not have, become their text and the file's path.

    tests/house/test_links.py holds that each of them leads somewhere in a checkout.
    """

    def replaced(link: re.Match[str]) -> str:
        target = (DOCS / name).parent.joinpath(link[2]).resolve()
        return link[0] if DOCS in target.parents else f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    source[0] = LINK.sub(replaced, source[0])


def drawings_as_pictures(_app: Any, _name: str, source: list[str]) -> None:
    """Mermaid blocks become pictures where Graphviz is installed, and stay text elsewhere."""
    source[0] = drawings.drawn(source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", outside_as_text)
    app.connect("source-read", drawings_as_pictures)
