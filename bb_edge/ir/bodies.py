"""Which functions of a program an op runs as its bodies: those of `Loop`, both branches of `If`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bb_edge.ir import keys

BODY_ATTRS: Final[Mapping[str, tuple[str, ...]]] = {
    "Loop": ("body",),
    "If": ("then_branch", "else_branch"),
}
"""The attributes that name them, by op of the syscall domain; of a recorded program they hold graphs."""

BODY_END: Final = "BodyEnd"
"""The last op of each of these functions."""

FIXED_INPUTS: Final[Mapping[str, int]] = {"Loop": 2, "If": 1}
"""Inputs before the values: trips and going, or the condition. A body has inputs in their places."""

_NONE: Final[tuple[tuple[str, str], ...]] = ()


def body_keys(domain: str, op_type: str, attrs: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The keys of an op's bodies among the functions of its program, in order; none for most ops."""
    if domain != keys.SYSCALL_DOMAIN or op_type not in BODY_ATTRS:
        return _NONE
    names = [attrs.get(name) for name in BODY_ATTRS[op_type]]
    return tuple((keys.MODULE_DOMAIN, name.decode()) for name in names if isinstance(name, bytes))
