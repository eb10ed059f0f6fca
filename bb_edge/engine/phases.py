"""The rows of the table of what a poll does (`Engine.phases`)."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import NamedTuple


class While:
    """Work that is not a queue: it is true while a condition holds."""

    __slots__ = ("holds",)

    def __init__(self, holds: Callable[[], object]) -> None:
        self.holds = holds

    def __bool__(self) -> bool:
        return bool(self.holds())


class Phase(NamedTuple):
    """A row of the table: one thing that a poll does.

    `run(now_ns)` is called where `work` is true: a queue that stays the same object, or a condition. `due()`
    says when a poll must come because of the phase: 0 at once, None where it can wait for the next poll.
    Without `due` a poll must come as soon as there is work. After a phase with `frontier`, all that is ready
    runs before the next phase.
    """

    name: str
    work: Sized | While
    run: Callable[[int], object]
    frontier: bool = False
    due: Callable[[], int | None] | None = None


def never() -> None:
    """A poll need not come for this."""
