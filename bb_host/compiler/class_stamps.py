"""The classes that placement stamped on ops, read back by the passes behind it."""

from __future__ import annotations

from collections.abc import Iterable

from bb_host.program import Op


def classes_of(op: Op, home: str) -> tuple[str, ...]:
    """The classes that placement stamped on an op; home where it stamped none."""
    return op.facts.classes or (home,)


def peer_classes(ops: Iterable[Op]) -> dict[str, str]:
    """The classes that lists of peers lead to, as placement stamped them on the ops that yield them."""
    found: dict[str, str] = {}
    for op in ops:
        found.update(op.facts.leads)
    return found
