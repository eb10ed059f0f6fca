"""Numbers as authors give them: NumPy's count as Python's do, and become those."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from typing import Any

from bb_edge.ir.errors import BBError


def whole(value: object) -> int | None:
    """A whole number: an int, one of NumPy's, whatever has an `__index__`. None for anything else.

    True and False are not numbers here, and a recorded value has no number yet.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, BBError):
        return None


def plain(value: object) -> object:
    """A value with Python's numbers for NumPy's, in lists, tuples and tables, too; arrays stay."""
    numpy: Any = sys.modules.get("numpy")  # who starts the workers of a simulation does not load it
    if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)):
        return value.item()
    if type(value) is list:
        return [plain(each) for each in value]
    if type(value) is tuple:
        return tuple(plain(each) for each in value)
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    return value


def with_plain_fields(record: object, *names: str) -> None:
    """Makes fields of a frozen record plain, as its `__post_init__`."""
    for name in names:
        object.__setattr__(record, name, plain(getattr(record, name)))
