"""Text of generated pages: paragraphs and list items in lines of at most 110 characters."""

from __future__ import annotations

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
