"""Text in columns, and sizes as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)(?:I?B)?", re.IGNORECASE)


def columns(cells: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def parse_size(text: str) -> int:
    """`32M`, `512K`, `1G`, `65536`: bytes, in powers of 1,024. ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write it as 32M, 512K or 65536")
    return int(found[1]) << (10 * " KMG".index(found[2].upper() or " "))
