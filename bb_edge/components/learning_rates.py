"""Learning rates that change: by the number of steps or of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from bb_edge.roles.settings import Setting

__all__ = ["RATE_CONFIG", "Schedule", "doubtful_rates"]

RATE_CONFIG: Mapping[str, Setting] = {
    "learning_rate": Setting.number(0.1, 0.0),
    "schedule": Setting.text("constant", ("constant", "step_decay", "cosine")),
    "schedule_by": Setting.text("step", ("step", "round")),
    "schedule_length": Setting.integer(100, 1),
    "decay": Setting.number(0.1, 0.0, 1.0),
    "lowest_rate": Setting.number(0.0, 0.0),
    "warm_up": Setting.integer(0),
}


def doubtful_rates(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the keys by which a rate is 0 or grows, or ends at a default, each with what comes of it.

    `given` has the keys of `RATE_CONFIG` that a configuration sets.
    """
    settings: dict[str, Any] = {key: given.get(key, setting.default) for key, setting in RATE_CONFIG.items()}
    rate, lowest, kind = settings["learning_rate"], settings["lowest_rate"], settings["schedule"]
    unit, length = settings["schedule_by"], settings["schedule_length"]
    doubtful = {}
    if rate == 0 and not (kind == "cosine" and lowest):
        doubtful["learning_rate"] = "it is 0, so no step changes the parameters"
    if kind == "cosine" and lowest > rate:
        doubtful["lowest_rate"] = f"it is {lowest:g}, above learning_rate, {rate:g}: the rate grows to it"
    if kind == "step_decay" and settings["decay"] == 0 and rate:
        doubtful["decay"] = f"it is 0, so the rate is 0 after the first {length} {unit}s"
    if kind != "constant" and rate and "schedule_length" not in given:
        does = f"the rate ends at {lowest:g} after" if kind == "cosine" else "the rate falls every"
        doubtful["schedule_length"] = f"it is not set, so {does} {length} {unit}s, the default"
    return doubtful


class Schedule(NamedTuple):
    """The learning rate at a time, which is a number of steps or of rounds, from 0.

    For the first `warm_up` times it grows: rate · (time + 1) / warm_up. What follows counts from there:
    `constant` is the rate; `step_decay` is rate · decay^⌊time / length⌋ (PyTorch's StepLR); `cosine` goes
    from the rate to `lowest` along half a wave of `length`, and stays there (CosineAnnealingLR).
    """

    rate: float
    kind: str = "constant"
    length: int = 100
    decay: float = 0.1
    lowest: float = 0.0
    warm_up: int = 0

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Schedule:
        """Reads it from settings with the keys of `RATE_CONFIG`."""
        return cls(
            settings["learning_rate"],
            settings["schedule"],
            settings["schedule_length"],
            settings["decay"],
            settings["lowest_rate"],
            settings["warm_up"],
        )

    def at(self, time: int) -> float:
        """Returns the learning rate at a time."""
        if time < self.warm_up:
            return self.rate * (time + 1) / self.warm_up
        time -= self.warm_up
        if self.kind == "step_decay":
            return float(self.rate * self.decay ** (time // self.length))
        if self.kind == "cosine":
            share = (1 + math.cos(math.pi * min(time, self.length) / self.length)) / 2
            return self.lowest + (self.rate - self.lowest) * share
        return self.rate
