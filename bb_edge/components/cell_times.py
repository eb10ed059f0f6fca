"""Numbers and times in cells of text; times are ISO 8601, or seconds since 1970."""

from __future__ import annotations

import re

__all__ = ["MILLISECONDS", "is_iso_time", "number_of", "seconds"]

MILLISECONDS = 1e11
"""Numbers from here on are taken for milliseconds, of 1973 and later; in seconds it is the year 5138."""

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d+))?)?\s?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.IGNORECASE | re.ASCII,
)


def number_of(cell: str) -> float:
    """Returns the number that a cell is. ValueError for other text; `1_000` is a number in Python alone."""
    if "_" in cell:
        raise ValueError(f"{cell!r:.60} has an underscore")
    return float(cell)


def is_iso_time(cell: str) -> bool:
    """Returns whether a cell looks like a date, or a date with a time of day."""
    return _ISO.fullmatch(cell) is not None


def seconds(cell: str) -> float:
    """Returns the seconds since 1970, to the microsecond; a time without a zone is UTC.

    ValueError for a cell that is neither a time nor a number.
    """
    found = _ISO.fullmatch(cell)
    if found is None:
        return number_of(cell)
    from datetime import datetime, timedelta, timezone

    day, clock, second, fraction, zone = found.groups()
    local = datetime.fromisoformat(f"{day}T{clock or '00:00'}:{second or '00'}")
    offset = timedelta(0)
    if zone and zone not in "Zz":
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    shift = -offset if zone and zone[0] == "-" else offset
    whole = local.replace(tzinfo=timezone.utc) - shift
    return whole.timestamp() + float(f"0.{fraction or 0}")
