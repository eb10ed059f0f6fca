"""What a simulation shows: a line of progress, events as JSON Lines, a summary, a picture."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from bb_host.errors import ScenarioError
from bb_host.simulate.accounts import Event
from bb_host.simulate.run import Outcome, State

EVERY_S = 0.2
EVERY_S_IN_A_FILE = 30.0
"""How often progress is written: to a terminal, where it replaces itself, and to a file."""


MOST_NUMBERS = 64
"""Numbers of one event that a summary has: an event may hold all parameters of a model."""


class ProgressLine:
    """One line that says how far a simulation is; several, seldom, where no terminal reads it."""

    def __init__(self) -> None:
        out = self._out = sys.stderr
        self._terminal = out.isatty()
        self._began = time.monotonic()
        self._shown = 0.0
        self._width = 0

    def __call__(self, state: State) -> None:
        now = time.monotonic()
        if now - self._shown < (EVERY_S if self._terminal else EVERY_S_IN_A_FILE):
            return
        self._shown = now
        self._write(
            f"{state.now_ns / 1e9:,.2f} s simulated, {state.awake:,} of {state.nodes:,} nodes awake, "
            f"{state.delivered:,} envelopes, {state.events:,} events, {now - self._began:,.0f} s"
        )

    def _write(self, text: str) -> None:
        if self._terminal:
            print("\r" + text.ljust(self._width), end="", file=self._out, flush=True)
            self._width = len(text)
        else:
            print(text, file=self._out, flush=True)

    def clear(self) -> None:
        """Takes the line off the terminal, for others that are to stay."""
        if self._terminal and self._width:
            print("\r" + " " * self._width + "\r", end="", file=self._out, flush=True)
            self._width = 0


def event_record(event: Event) -> dict[str, Any]:
    """An event as `bb-edge run` says it, with simulated seconds as its time."""
    return {"event": event.topic, "time": event.at_ns / 1e9, "node": event.node, "value": event.value}


_DIVERGED = "a smaller learning rate, or clip_norm, may keep training finite"
_NO_ROWS = (
    "in a round that reached nobody (RoundBackedOff above) r.responses has 0 rows, whose mean is NaN: let"
    f" what needs answers wait for g.when(g.onnx.size(r.responses) > 0). Otherwise {_DIVERGED}"
)
_IN_THE_DATA = "the data hold NaN or infinities, as DataNotes says above: repair them first"


def not_finite(events: Sequence[Event], in_the_data: bool = False, no_rows: bool = False) -> str:
    """A sentence about events that hold inf or nan, which training that diverges leads to; "" without any.

    `in_the_data` says that the data have held some, too; `no_rows` that a round has read no answers as a
    batch.
    """
    strange = [event for event in events if not _finite(event.value)]
    if not strange:
        return ""
    first = strange[0]
    why = _IN_THE_DATA if in_the_data else _NO_ROWS if no_rows else _DIVERGED
    return (
        f"{len(strange):,} of {len(events):,} events hold inf or nan, {first.topic!r} of {first.node} at"
        f" {first.at_ns / 1e9:.3f} s first: {why}"
    )


_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""How an event writes the numbers that JSON has no form for; `float` reads them."""


def _finite(value: object) -> bool:
    """Whether no number in a value is inf or nan; of what is too long to be shown nothing is known."""
    if isinstance(value, list):
        return all(map(_finite, value))
    return not (isinstance(value, str) and value in _NOT_FINITE)


def summary(outcome: Outcome, seconds: float, about: Mapping[str, object]) -> dict[str, Any]:
    """What came of a run, as JSON has it."""
    return {
        **about,
        "trace": outcome.trace,
        "simulated_s": outcome.simulated_ns / 1e9,
        "seconds": round(seconds, 3),
        "awake": outcome.awake,
        "delivered": outcome.delivered,
        "lost": outcome.lost,
        "sent_bytes": outcome.sent_bytes,
        "peak_rss_bytes": list(outcome.peak_rss),
        "trouble": {
            kind: {"count": t.count, "first": t.first, "nodes": len(t.nodes), "worst": t.worst()}
            for kind, t in outcome.trouble.items()
        },
    }


def last_numbers(events: Sequence[Event], named: Columns | None = None) -> dict[str, float | str]:
    """The last value of each number in events, under the names of `--plot`: `round[1]`, or what it names.

    Of one topic it is the last event's that has the number; where several nodes emit it, the mean over those
    of each node. JSON has no infinities: they stay texts.
    """
    found: dict[str, dict[str, float | str]] = {}  # by name and node
    for event in events:
        own = named.names if named is not None and named.topic == event.topic else {}
        for index, number in list(_numbers(event.value).items())[:MOST_NUMBERS]:
            found.setdefault(own.get(index, f"{event.topic}[{index}]"), {})[event.node] = number
    return {name: _mean(list(of_nodes.values())) for name, of_nodes in found.items()}


def _mean(numbers: Sequence[float | str]) -> float | str:
    """The mean as events hold numbers; of one number that number."""
    if len(numbers) == 1:
        return numbers[0]
    mean = sum(map(float, numbers)) / len(numbers)
    return mean if isfinite(mean) else json.dumps(mean)


@dataclass(frozen=True, slots=True)
class Columns:
    """Which numbers of an event's value are shown, by name: `round:1=loss,2=accuracy`."""

    topic: str
    names: Mapping[int, str]

    @classmethod
    def parse(cls, text: str) -> Columns:
        """Reads `TOPIC:INDEX=NAME,…`. ScenarioError."""
        topic, colon, rest = text.partition(":")
        names: dict[int, str] = {}
        for part in rest.split(",") if rest else ():
            index, _, name = part.partition("=")
            if not index.isdigit():
                break
            name = name or f"{topic}[{index}]"
            if name in names.values() or int(index) in names:
                what = f"name {name!r}" if name in names.values() else f"place {index}"
                raise ScenarioError(
                    f"the {what} is given twice", "--plot", "each number has a name of its own"
                )
            names[int(index)] = name
        else:
            if topic and colon and names:
                return cls(topic, names)
        raise ScenarioError(f"{text!r} names no columns", "--plot", "write --plot round:1=loss,2=accuracy")

    @classmethod
    def of(cls, events: Sequence[Event]) -> Columns | None:
        """All numbers of the topic that comes most often with numbers; None where none does."""
        found: dict[str, int] = {}
        for event in events:
            if isinstance(event.value, list) and _numbers(event.value):
                found[event.topic] = found.get(event.topic, 0) + 1
        if not found:
            return None
        topic = max(sorted(found), key=lambda name: found[name])
        first = next(event for event in events if event.topic == topic and isinstance(event.value, list))
        return cls(topic, {index: f"{topic}[{index}]" for index in _numbers(first.value)})

    def rows(self, events: Sequence[Event]) -> dict[str, list[dict[str, float]]]:
        """The named numbers of each event of the topic, by node; what is not a number is left out."""
        found: dict[str, list[dict[str, float]]] = {}
        for event in events:
            if event.topic == self.topic:
                numbers = _numbers(event.value)
                row = {name: float(numbers[i]) for i, name in self.names.items() if i in numbers}
                found.setdefault(event.node, []).append(row)
        return found

    def without(self, events: Sequence[Event]) -> str:
        """The columns that no event of the topic has a number for, `3 and 9`; "" where all are there."""
        found = {name for rows in self.rows(events).values() for row in rows for name in row}
        return " and ".join(str(index) for index, name in self.names.items() if name not in found)


def _numbers(value: object) -> dict[int, float | str]:
    """The numbers of an event's value by their places: one by itself, and one in a list of its own, too."""
    parts = value if isinstance(value, list) else [value]
    found = {}
    for index, part in enumerate(parts):
        while isinstance(part, list) and len(part) == 1:  # a tensor of shape [1]
            (part,) = part
        if _is_number(part):
            found[index] = part
    return found


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in _NOT_FINITE
    return isinstance(value, int | float) and not isinstance(value, bool)


def draw(path: Path, columns: Columns, runs: Mapping[str, Sequence[Event]]) -> bool:
    """Draws the columns of each run, over the events of their topic, to a PNG; False without matplotlib.

    Where several nodes emit the topic each has a thin line of its own, over its own events, and a thick one
    is the mean of those that have come so far.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(columns.names.values())
    figure, axes = pyplot.subplots(len(names), 1, figsize=(7, 2.4 * len(names)), sharex=True, squeeze=False)
    several = False
    for number, (label, events) in enumerate(runs.items()):
        of_nodes = list(columns.rows(events).values())
        several |= len(of_nodes) > 1
        for name, axis in zip(names, axes[:, 0], strict=True):
            lines = [[row.get(name) for row in rows] for rows in of_nodes]
            for line in lines if len(lines) > 1 else ():
                numbers = [_NOTHING if x is None else x for x in line]
                axis.plot(range(1, len(line) + 1), numbers, color=f"C{number % 10}", alpha=0.3, linewidth=0.8)
            mean = [_mean_of(there) for there in zip_longest(*lines)]
            axis.plot(range(1, len(mean) + 1), mean, color=f"C{number % 10}", label=label)
    for name, axis in zip(names, axes[:, 0], strict=True):
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel(f"events {columns.topic!r}" + (" of each node, and their mean" if several else ""))
    if len(runs) > 1:
        axes[0, 0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _mean_of(numbers: Sequence[float | None]) -> float:
    """The mean of those that are there; what no line is drawn to where none is."""
    there = [x for x in numbers if x is not None]
    return sum(there) / len(there) if there else _NOTHING


_NOTHING = float("nan")
