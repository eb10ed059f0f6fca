"""What a component says it took of the state of another program's component."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Adoption"]


class Adoption(NamedTuple):
    """What `Component.adopt` took, and what it left with the reason; a short text per item, for people.

    `taken` is like "4 tensors with 7,850 numbers", `left` like "tensor w2: it was 32x10, here it is 32x12".
    """

    taken: tuple[str, ...]
    left: tuple[str, ...] = ()
