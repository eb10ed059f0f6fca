"""The classes that placement stamped on ops, read back by the passes behind it."""

from __future__ import annotations

from collections.abc import Iterable

from bb_edge.ir import keys
from bb_host.program import Op


def classes_of(op: Op, home: str) -> tuple[str, ...]:
    """The classes that placement stamped on an op; home where it stamped none."""
    text = op.meta.get(keys.HOME_CLASS_KEY)
    if text is None:
        return (home,)
    return tuple(text.split(",")) if "," in text else (text,)


def peer_classes(ops: Iterable[Op]) -> dict[str, str]:
    """The classes that lists of peers lead to, as placement stamped them on the ops that yield them."""
    found: dict[str, str] = {}
    for op in ops:
        text = op.meta.get(keys.PEER_CLASS_KEY) if op.meta else None
        if text:
            for entry in text.split(","):
                name, _, where = entry.rpartition("=")
                found[name] = where
    return found
