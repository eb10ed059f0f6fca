"""Pumps that do not exist: what their sensors would write, with drift, noise and faults, from a seed.

    python sensors.py FOLDER --pumps 3 --seed 1

writes per pump `history.csv`, two days without faults, and `live.csv` with faults, and in `faults.csv` what
was injected when.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

COLUMNS = ("temperature", "vibration", "pressure", "current", "flow", "speed")
OFFSET = (48.0, 1.8, 4.2, 7.0, 52.0, 1450.0)
"""About what a healthy pump shows in the middle of its day; the devices scale by it."""
DIVISOR = (5.0, 0.4, 0.35, 1.2, 7.0, 60.0)

STEP_S = 60
"""Seconds between two rows."""
START_S = 1_767_225_600
"""2026-01-01 00:00 UTC, the time of the first row."""
DAY = 86_400 // STEP_S
NOISE = 0.12
DRIFT_PER_DAY = 0.08
"""Sensors age: the temperature and the pressure wander by so much of their divisor in a day."""

FAULTS = ("bearing", "leak", "blocked")
FAULT_ROWS = 12

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recording:
    """Rows of one pump: UNIX times in seconds, [n]; readings, [n, 6]; the kind of fault or "", [n]."""

    times: npt.NDArray[np.int64]
    readings: Floats
    faults: list[str]

    def lines(self, first: int = 0, last: int | None = None) -> list[str]:
        """CSV rows."""
        rows = zip(self.times[first:last], self.readings[first:last], strict=True)
        return [",".join([str(time), *(f"{value:.3f}" for value in row)]) + "\n" for time, row in rows]


def header() -> str:
    """The first line of each file."""
    return ",".join(("time", *COLUMNS)) + "\n"


def record(pump: int, seed: int, rows: int, first: int = 0, faults: int = 0) -> Recording:
    """What a pump's sensors show in `rows` rows from row `first` on, with so many faults.

    All six follow the load, which has a day and the pump's own habits. The same arguments give the same rows.
    """
    rng = np.random.default_rng((seed, pump, first))
    habits = np.random.default_rng((seed, pump))
    phase, swing = habits.uniform(0, 2 * np.pi), habits.uniform(0.8, 1.1)
    number = np.arange(first, first + rows)
    load = swing * np.sin(2 * np.pi * number / DAY + phase) + 0.3 * np.sin(2 * np.pi * number / (DAY / 7))
    scaled = np.stack(
        [0.9 * load, 0.6 * load**2 - 0.3, -0.7 * load, load, 0.8 * load + 0.2 * load**2, -0.5 * load], axis=1
    )
    scaled += rng.normal(0, NOISE, scaled.shape)
    scaled[:, [0, 2]] += (DRIFT_PER_DAY * number / DAY)[:, None]
    kinds = [""] * rows
    places = rng.choice(rows // FAULT_ROWS - 1, faults, replace=False) if faults else ()
    for place in places:
        kind = FAULTS[int(rng.integers(len(FAULTS)))]
        span = slice(int(place) * FAULT_ROWS + 6, (int(place) + 1) * FAULT_ROWS + 6)
        strength = rng.uniform(1.5, 2.5)
        if kind == "bearing":
            scaled[span, 1] += 2 * strength
            scaled[span, 0] += strength
        elif kind == "leak":
            scaled[span, 2] -= 1.5 * strength
            scaled[span, 4] -= strength
        else:
            scaled[span, 4] -= 2 * strength
            scaled[span, 3] += strength
        kinds[span] = [kind] * FAULT_ROWS
    readings = np.asarray(OFFSET) + np.asarray(DIVISOR) * scaled
    return Recording((START_S + number * STEP_S).astype(np.int64), readings, kinds)


def write(folder: Path, recording: Recording, name: str) -> Path:
    """Writes all rows of a recording."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(header() + "".join(recording.lines()))
    return path


def main() -> None:
    p = argparse.ArgumentParser(description="Writes the readings of pumps that do not exist.")
    p.add_argument("folder", type=Path)
    p.add_argument("--pumps", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--history", type=int, default=2 * DAY, help="rows without faults")
    p.add_argument("--live", type=int, default=480, help="rows with faults")
    a = p.parse_args()
    for pump in range(a.pumps):
        folder = a.folder / f"pump-{pump}"
        write(folder, record(pump, a.seed, a.history), "history.csv")
        live = record(pump, a.seed, a.live, first=a.history, faults=a.live // 80)
        write(folder, live, "live.csv")
        rows = (f"{time},{kind}\n" for time, kind in zip(live.times, live.faults, strict=True) if kind)
        (folder / "faults.csv").write_text("time,fault\n" + "".join(rows))


if __name__ == "__main__":
    main()
