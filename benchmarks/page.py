"""docs/benchmarks.md: the tables between its markers, from what a run has measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measuring import Row

_BLOCK = r"(<!-- {} -->\n).*?(<!-- end -->)"


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table; a missed goal stands out."""
    lines = ["| what | figures | ratio | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{name} {value:,.4g}" for name, value in row.figures.items())
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        goal = "" if row.goal is None else f"{'≥' if row.at_least else '≤'} {row.goal:g}"
        verdict = {None: "", True: "met", False: "**missed**"}[row.met]
        lines.append(f"| {row.what} | {figures} {row.unit} | {ratio} | {goal} | {verdict} |")
    return "\n".join(lines) + "\n"


def update(page: Path, rows: Mapping[str, Sequence[Row]], machine: Mapping[str, str]) -> None:
    """Replaces the machine and the tables that were measured; leaves the others and all text.

    Raises ValueError where the page has no place for one of them.
    """
    text = page.read_text()
    blocks = {name: markdown(found) for name, found in rows.items()}
    blocks["machine"] = ", ".join(f"{key} {value}" for key, value in machine.items()) + "\n"
    for name, block in blocks.items():
        pattern = re.compile(_BLOCK.format(re.escape(name)), re.DOTALL)
        places = list(pattern.finditer(text))
        if len(places) != 1:
            raise ValueError(f"{page.name}: {len(places)} places for {name!r}, one is expected")
        text = text[: places[0].end(1)] + block + text[places[0].start(2) :]
    page.write_text(text)
