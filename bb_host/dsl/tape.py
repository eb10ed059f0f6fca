"""What a value needs of the graph that it is recorded on, and what orders an op: below values and graphs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

V = TypeVar("V")
"""The values on a tape."""


class Tape(Protocol[V]):
    """A graph that is being recorded, as its values know it: what Python's operators on them record."""

    @property
    def parent(self) -> Tape[V] | None:
        """The graph around a branch or loop body."""

    @property
    def may_go_unread(self) -> list[V]:
        """Values that nothing has to read."""

    def describe(self) -> str:
        """What the graph records, for messages."""

    def onnx_op(self, op_type: str, args: Sequence[Any], **attrs: object) -> V:
        """Records an ONNX operator with one output."""

    def by_element(self, symbol: str, left: Any, right: Any) -> V:
        """Records an operator of Python's whose meaning the element type decides, `~` with one operand
        twice.
        """

    def unpacking(self, about: str) -> None:
        """Notes what is taken apart now: into too few or too many names, Python does not say whose."""


After = Any
"""A value, a list of them, or what has `after_values()`: checked where it is read."""


class _Unordered(enum.Enum):
    UNORDERED = "…"


UNORDERED = _Unordered.UNORDERED
"""What `after=` is where an author says nothing; None is what a call that yields nothing returned."""
