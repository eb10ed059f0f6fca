"""Text of generated pages: docstrings as paragraphs, in lines of at most 110 characters."""

from __future__ import annotations

import inspect
import re
import textwrap

WIDTH = 110
_ITEM = re.compile(r"(?:[-*] |\d+\. )?")


def wrapped(page: str) -> str:
    """The page with long lines broken; tables, headings, comments and blocks of code stay as they are."""
    lines, code = [], False
    for line in page.split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= WIDTH or line.startswith(("|", "#", "<!--", "![")):
            lines.append(line)
            continue
        item = _ITEM.match(line)
        indent = " " * len(item[0]) if item else ""
        lines += textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def prose(docstring: str) -> str:
    """Paragraphs as one line each, so that they break where the page's lines end; lists and code stay."""
    joined: list[str] = []
    for line in inspect.cleandoc(docstring).split("\n"):
        starts = not line.strip() or re.match(r"\s*[-*] |    ", line) or not joined or not joined[-1].strip()
        if starts:
            joined.append(line)
        else:
            joined[-1] += " " + line.strip()
    return "\n".join(joined)
