"""Writes the drawings of transition tables into the pages that show them. Run it after a table changed.

A page shows a table by two marks on lines of their own; what lies between them is written by this tool:

    <!-- states of bb_edge.transport.connection:CONNECTION -->
    <!-- end of states -->
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bb_edge.ir.transitions import Table  # noqa: E402

BLOCK = re.compile(r"(<!-- states of (\S+):(\S+) -->\n).*?(<!-- end of states -->\n)", re.DOTALL)


def drawn(text: str) -> str:
    """The text of a page with the drawing of each table that it marks."""
    return BLOCK.sub(lambda m: f"{m[1]}```mermaid\n{_table(m[2], m[3]).drawing()}```\n{m[4]}", text)


def tables(text: str) -> list[str]:
    """The tables that a page marks, as ``module:NAME``."""
    return [f"{module}:{name}" for _, module, name, _ in BLOCK.findall(text)]


def pages() -> list[Path]:
    """All pages of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def _table(module: str, name: str) -> Table[object, object]:
    table = getattr(importlib.import_module(module), name)
    if not isinstance(table, Table):
        raise TypeError(f"{module}:{name} is not a Table")
    return table


if __name__ == "__main__":
    for page in pages():
        page.write_text(drawn(page.read_text()))
