"""Reads JSON and CBOR that somebody else wrote: plain values, nested to a bounded depth."""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["MAX_DEPTH", "NestedTooDeep", "from_cbor", "from_json", "shallow"]

MAX_DEPTH = 64
"""How deep lists and tables may nest; configurations have three levels.

It is far below Python's own limit, so that whatever handles the value later (a copy, a message that quotes
it) stays below that limit too.
"""


class NestedTooDeep(ValueError):
    """The value has more levels than `MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"it is nested deeper than {MAX_DEPTH} levels")


def from_json(text: str | bytes) -> object:
    """Returns the value of a JSON text.

    Raises NestedTooDeep, or another ValueError that says why, for every other text.
    """
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise NestedTooDeep from None
    return shallow(value)


def from_cbor(data: bytes) -> object:
    """Returns the value of CBOR bytes.

    Raises NestedTooDeep, or another ValueError that says why, for all other bytes.
    """
    import cbor2  # programs of tensor work alone start without it

    try:
        value: object = cbor2.loads(data)
    except RecursionError:
        raise NestedTooDeep from None
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return shallow(value)


def shallow(value: object) -> object:
    """Returns the value. Raises NestedTooDeep where its lists and tables nest too deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else _items(outer))
            if isinstance(inner, (list, tuple, Mapping))
        ]
        if not level:
            return value
    raise NestedTooDeep


def _items(value: object) -> list[object] | tuple[object, ...]:
    return value if isinstance(value, (list, tuple)) else []
