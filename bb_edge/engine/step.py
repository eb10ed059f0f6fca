"""What a step is. All of them are in `bb_edge.engine.steps`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class EngineStep:
    """Base of steps: immutable, equal where they say the same; `__match_args__` names the fields in order."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class OpStep(EngineStep):
    """Something of one op of one execution."""

    target: str
    execution: int
    op: str
