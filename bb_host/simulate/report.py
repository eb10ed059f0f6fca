"""What a simulation shows: a line of progress, events as JSON Lines, a summary, a picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

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

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
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
_IN_THE_DATA = "the data hold NaN or infinities, as DataNotes says above: repair them first"


def not_finite(events: Sequence[Event], in_the_data: bool = False) -> str:
    """A sentence about events that hold inf or nan, which training that diverges leads to; "" without any.

    `in_the_data` says that the data have held some, too.
    """
    strange = [event for event in events if not _finite(event.value)]
    if not strange:
        return ""
    first = strange[0]
    return (
        f"{len(strange):,} of {len(events):,} events hold inf or nan, {first.topic!r} of {first.node} at"
        f" {first.at_ns / 1e9:.3f} s first: {_IN_THE_DATA if in_the_data else _DIVERGED}"
    )


_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""How an event writes the numbers that JSON has no form for; `float` reads them."""


def _finite(value: object) -> bool:
    return all(map(_finite, value)) if isinstance(value, list) else value not in _NOT_FINITE


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

    Of one topic it is the last event's that has the number. JSON has no infinities: they stay texts.
    """
    found: dict[str, float | str] = {}
    for event in events:
        value = event.value if isinstance(event.value, list) else [event.value]
        own = named.names if named is not None and named.topic == event.topic else {}
        for index in _numbers(value)[:MOST_NUMBERS]:
            found[own.get(index, f"{event.topic}[{index}]")] = value[index]
    return found


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
            names[int(index)] = name or f"{topic}[{index}]"
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

    def rows(self, events: Sequence[Event]) -> list[dict[str, float]]:
        """The named numbers of each event of the topic; what is not a number is left out."""
        found = []
        for event in events:
            if event.topic == self.topic:
                value = event.value if isinstance(event.value, list) else [event.value]
                numbers = set(_numbers(value))
                found.append({name: float(value[i]) for i, name in self.names.items() if i in numbers})
        return found

    def without(self, events: Sequence[Event]) -> str:
        """The columns that no event of the topic has a number for, `3 and 9`; "" where all are there."""
        found = {name for row in self.rows(events) for name in row}
        return " and ".join(str(index) for index, name in self.names.items() if name not in found)


def _numbers(value: Sequence[object]) -> list[int]:
    return [i for i, part in enumerate(value) if _is_number(part)]


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in _NOT_FINITE
    return isinstance(value, int | float) and not isinstance(value, bool)


def draw(path: Path, columns: Columns, runs: Mapping[str, Sequence[Event]]) -> bool:
    """Draws the columns of each run, over the events of their topic, to a PNG; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(columns.names.values())
    figure, axes = pyplot.subplots(len(names), 1, figsize=(7, 2.4 * len(names)), sharex=True, squeeze=False)
    for label, events in runs.items():
        rows = columns.rows(events)
        for name, axis in zip(names, axes[:, 0], strict=True):
            axis.plot(range(1, len(rows) + 1), [row.get(name, float("nan")) for row in rows], label=label)
    for name, axis in zip(names, axes[:, 0], strict=True):
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel(columns.topic)
    if len(runs) > 1:
        axes[0, 0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
