"""Ratios taken fairly: both sides in one run, in turns, medians, and a ceiling in count and time."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
WHEEL_GOAL, UNPACKED_GOAL = 2080.0, 5800.0
"""Kilobytes of the wheel and of what it unpacks to, 130 and 200 of them the examples.

tests/house/test_wheel.py holds the wheel that pip makes to them."""

Sample = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a result: what was measured, the figures by side, their ratio, and the goal."""

    what: str
    figures: Mapping[str, float]
    unit: str
    ratio: float | None = None
    goal: float | None = None
    at_least: bool = False
    """Whether the goal is a floor (a throughput) instead of a ceiling."""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        value = self.ratio if self.ratio is not None else next(iter(self.figures.values()))
        return value >= self.goal if self.at_least else value <= self.goal

    def as_json(self) -> dict[str, object]:
        return {
            "what": self.what,
            "unit": self.unit,
            "figures": dict(self.figures),
            "ratio": self.ratio,
            "goal": self.goal,
            "goal_is": "floor" if self.at_least else "ceiling",
            "met": self.met,
        }


def in_turns(sides: Mapping[str, Sample], rounds: int, seconds: float) -> dict[str, float]:
    """Runs the sides in turns, changing who begins, and gives the median of each side's figures.

    At least two rounds, at most `rounds`, none begun after `seconds`.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    order, end = list(sides), time.monotonic() + seconds
    for number in range(rounds):
        if number >= 2 and time.monotonic() > end:
            break
        for name in order if number % 2 == 0 else reversed(order):
            found[name].append(sides[name]())
    return {name: median(values) for name, values in found.items()}


def nanoseconds(act: Callable[[], object]) -> int:
    """How long one call takes."""
    began = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - began


def machine() -> dict[str, str]:
    """What a figure is worth nothing without."""
    import numpy as np

    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
        model = names[0] if names else ""
    except OSError:
        pass
    import os

    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "numpy": np.__version__,
    }


def table(rows: list[Row]) -> str:
    """The rows, aligned."""
    lines = [("what", "figures", "ratio", "goal", "")]
    for row in rows:
        figures = "  ".join(f"{name} {value:,.4g}" for name, value in row.figures.items())
        goal = "" if row.goal is None else f"{'≥' if row.at_least else '≤'} {row.goal:g}"
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        lines.append((row.what, f"{figures} {row.unit}", ratio, goal, verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=False)).rstrip() for line in lines
    )
