"""What to do about a CSV file that is not as configured: the hint that fits what its cells look like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bb_edge.components.cell_times import is_iso_time

__all__ = [
    "EXPORT",
    "REPAIR",
    "SKIP",
    "for_no_number",
    "for_other_width",
    "for_quotes",
    "for_separated",
    "for_separator_line",
    "for_undivided",
    "is_whole",
    "known_format",
]

SKIP = "repair the line, or set bad_rows = 'skip'"
REPAIR = "repair it, or set bad_rows = 'skip'"
EXPORT = "export it as CSV, or unpack it; bb.ArrayDataSource reads arrays of an .npz"

_SEPARATED = "write numbers without separators between thousands"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+(?:\.0*)?", re.ASCII)
_SEPARATOR_LINE = re.compile(rb"(?:\xef\xbb\xbf)?sep=(.)\s*", re.IGNORECASE)

_COMMAS = "these look like decimal commas: write the file with decimal points"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_DIGITS = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?", re.ASCII)

_NO_TEXT: Mapping[bytes, str] = {
    b"PK\x03\x04": "a zip archive, as .npz and .xlsx are",
    b"\x93NUMPY": "an .npy file",
    b"\x1f\x8b": "packed by gzip",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
}
"""What files begin with that are taken for CSV by mistake."""


def known_format(line: bytes) -> str:
    """What a file is whose first line this is, where it is not text; "" where nothing tells."""
    return next((kind for magic, kind in _NO_TEXT.items() if line.startswith(magic)), "")


def for_no_number(cell: str, is_time: bool, first_row: bool, header: bool) -> str:
    """What to do about a cell that is not a number; in the first row it is the column, as a rule."""
    if not is_time and is_iso_time(cell):
        return "name the column in times, or leave it out: columns; else repair it"
    if separated := for_separated(cell):
        return separated
    if not first_row or is_time:
        return REPAIR
    if _DECIMAL_COMMA.fullmatch(cell):
        return _COMMAS
    if not header:
        return "if the first line holds the names, set header = true; else leave the column out: columns"
    return "leave a column of texts out: name the others in columns; texts may be a label, with classes"


def for_separated(cell: str) -> str:
    """What to do about `1,000` and `1_000`; "" for other cells."""
    if _THOUSANDS.fullmatch(cell):
        unsure = cell.count(",") == 1 and "." not in cell
        return f"{_SEPARATED}, and with decimal points" if unsure else _SEPARATED
    return _SEPARATED if _THOUSANDS.fullmatch(cell.replace("_", ",")) else ""


def for_separator_line(line: bytes) -> str:
    """What to do about a first line `sep=;`, which spreadsheets write; "" for another."""
    found = _SEPARATOR_LINE.fullmatch(line)
    if found is None:
        return ""
    return f"delete that line, and set delimiter = {found[1].decode('latin-1')!r}"


def for_quotes(line: str) -> tuple[str, str]:
    """What is wrong with a line whose quotes are, and what to do; as `what` and `hint`."""
    if line.count('"') % 2:
        hint = "close it; a cell may not hold a line break: take it out, or set bad_rows = 'skip'"
        return "a quote is not closed in its line", hint
    hint = f'write a quote inside a quoted cell twice, "", or {SKIP}'
    return "text stands beside the quotes of a cell", hint


def is_whole(cell: str) -> bool:
    """Whether a cell is a whole number, of any size."""
    return _WHOLE.fullmatch(cell) is not None


def for_other_width(cells: Sequence[str], width: int, delimiter: str, first_row: bool) -> str:
    """What to do about a row of other than `width` cells; in the first row it may be all of them."""
    commas = first_row and delimiter == "," and len(cells) > width
    return _COMMAS if commas and all(_DIGITS.fullmatch(cell) for cell in cells) else SKIP


def for_undivided(line: str, width: int, delimiter: str) -> str:
    """What to do where lines are one cell, since another delimiter stands in them; "" where not."""
    others = [other for other in ",;\t|" if other in line and other != delimiter]
    if width > 1 or not others:
        return ""
    return f"{delimiter!r} divides no line: set delimiter = {others[0]!r}, as in {line!r:.60}"
