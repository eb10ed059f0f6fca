"""What the example shows at its end: how many of the injected faults were found, and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anomaly_detection.sensors import COLUMNS, FAULT_ROWS, STEP_S, Recording


@dataclass
class Watch:
    """One pump: what was injected, and what its node has said of it. Times are UNIX seconds."""

    recording: Recording
    newest: int = 0
    alerts: dict[int, float] = field(default_factory=dict)
    """The error of each row that was said to be far from normal, by its time."""


@dataclass(frozen=True)
class Quality:
    """How well rows were told apart, and how many of the faults had an alert at all."""

    precision: float
    recall: float
    faults: int
    found: int


def quality(watches: Mapping[str, Watch]) -> Quality:
    """Precision and recall over the rows of all pumps. Without alerts the precision is 1."""
    hits = alerts = faulty = faults = found = 0
    for watch in watches.values():
        wrong = {
            int(t) for t, kind in zip(watch.recording.times, watch.recording.faults, strict=True) if kind
        }
        said = watch.alerts.keys()
        hits += len(wrong & said)
        alerts += len(said)
        faulty += len(wrong)
        for first in sorted(wrong):
            if first - STEP_S not in wrong:
                faults += 1
                found += bool({first + n * STEP_S for n in range(FAULT_ROWS)} & said)
    return Quality(hits / alerts if alerts else 1.0, hits / faulty if faulty else 1.0, faults, found)


def table(q: Quality, losses: Mapping[int, float], rows: int) -> str:
    """The figures, aligned."""
    lines = [
        ("rounds", f"{len(losses)}, loss {losses[min(losses)]:.3f} → {losses[max(losses)]:.3f}"),
        ("rows watched", f"{rows:,}"),
        ("precision", f"{q.precision:.3f} of the rows with an alert are faulty"),
        ("recall", f"{q.recall:.3f} of the faulty rows have an alert"),
        ("faults found", f"{q.found} of {q.faults}"),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def plot(watches: Mapping[str, Watch], losses: Mapping[int, float], path: Path, title: str) -> bool:
    """The loss per round, and per pump a reading, its faults and its alerts; False without matplotlib."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    figure, axes = plt.subplots(len(watches) + 1, 1, figsize=(9, 2.2 * (len(watches) + 1)))
    axes[0].plot(list(losses), list(losses.values()), marker="o", color="tab:blue")
    axes[0].set_title(title)
    axes[0].set_ylabel("loss")
    axes[0].set_xlabel("round")
    shown = COLUMNS.index("flow")
    for axis, (name, watch) in zip(axes[1:], watches.items(), strict=True):
        recording = watch.recording
        minutes = (recording.times - recording.times[0]) / 60
        axis.plot(minutes, recording.readings[:, shown], color="tab:gray", linewidth=0.8, label="flow")
        faulty = np.array([bool(kind) for kind in recording.faults])
        low, high = recording.readings[:, shown].min(), recording.readings[:, shown].max()
        axis.fill_between(minutes, low, high, where=faulty, color="tab:orange", alpha=0.35, label="fault")
        said = np.isin(recording.times, list(watch.alerts))
        axis.plot(minutes[said], recording.readings[said, shown], "r.", markersize=5, label="alert")
        axis.set_ylabel(name)
    axes[-1].set_xlabel("minutes")
    axes[1].legend(loc="upper right", ncols=3, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
