"""How far a loop is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class BodyRun:
    """How far a loop is: what its body keeps from iteration to iteration, beside the carried values.

    `trips` are the iterations at most, `iteration` is the one that runs, `kept` are the values from around
    the body, each with its site. `rows` are those of each value that is stacked, `row_bytes` what they weigh.
    """

    trips: int
    kept: tuple[tuple[int, Any], ...]
    rows: tuple[list[Any], ...]
    iteration: int = 0
    row_bytes: int = 0
