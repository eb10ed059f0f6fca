"""The steps of one kind among all that a node returned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_edge.engine.steps import EngineStep


def of(kind: type, steps: Iterable[EngineStep]) -> list[Any]:
    """The steps of this kind, in their order."""
    return [step for step in steps if isinstance(step, kind)]
