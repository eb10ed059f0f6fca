"""Tables that stay within their bound."""

from __future__ import annotations

from typing import Any


def forget_oldest(table: dict[Any, Any], bound: int) -> bool:
    """Makes room for one more entry: a table of `bound` entries loses its oldest. True where it did.

    The caller asks only for keys that are not in the table. Whoever touches an entry again and wants it to
    count as new takes it out first: a dict keeps the order of the first insertion.
    """
    if len(table) < bound:
        return False
    del table[next(iter(table))]
    return True
