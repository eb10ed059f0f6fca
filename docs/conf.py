"""Sphinx: how `./dev docs` makes a site of these pages."""

from __future__ import annotations

project = "BytesAndBrains for the edge"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = project
html_static_path: list[str] = []
exclude_patterns = ["_build"]
suppress_warnings = [
    "myst.header",  # a page may begin at any level
    "misc.highlighting_failure",  # blocks of consoles and of our own notations have no lexer
]
nitpicky = True
