"""What the demo shows: a line per round, the table at the end, and a picture of both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

BAR = 24


@dataclass(frozen=True, slots=True)
class Round:
    """One closed round, as the server told it.

    `seconds` since the round before (since the nodes were started, for the first one); `wire_bytes` are what
    the server sent and received meanwhile: its PUBLISH packets, whole.
    """

    number: int
    loss: float
    accuracy: float
    samples: float
    missing: int
    seconds: float
    wire_bytes: int


@dataclass(slots=True)
class Outcome:
    """A whole run."""

    broker: str = ""
    clients: int = 0
    rounds: list[Round] = field(default_factory=list)
    summaries: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.rounds[-1].accuracy if self.rounds else 0.0

    @property
    def seconds_per_round(self) -> float:
        """The mean over all rounds but the first, which waits for the clients."""
        later = self.rounds[1:] or self.rounds
        return sum(r.seconds for r in later) / len(later) if later else 0.0

    def node_bytes(self, name: str) -> int:
        """What a node sent and received in its life: PUBLISH packets, whole."""
        counters = self.summaries.get(name, {}).get("transport")
        if not isinstance(counters, dict):
            return 0
        return int(counters.get("sent_bytes", 0)) + int(counters.get("received_bytes", 0))

    @property
    def bytes_per_client_and_round(self) -> float:
        clients = [name for name in self.summaries if name != "server"]
        if not clients or not self.rounds:
            return 0.0
        return sum(map(self.node_bytes, clients)) / len(clients) / len(self.rounds)

    def peak_rss(self, name: str) -> int:
        value = self.summaries.get(name, {}).get("peak_rss_bytes")
        return value if isinstance(value, int) else 0

    @property
    def protocol(self) -> str:
        found = sorted({str(s.get("protocol", "?")) for s in self.summaries.values()})
        return " and ".join(found) if found else "?"


def size(count: float) -> str:
    """Bytes for people: 512 B, 19.3 KB, 1.2 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


class Progress:
    """A line per round; on a terminal also a line at the bottom that says what is going on."""

    def __init__(self, rounds: int, out: TextIO | None = None) -> None:
        self._rounds = rounds
        self._out = out or sys.stdout
        self._live = self._out.isatty()

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._write(f"\r\033[K{text}\n" if self._live else f"{text}\n")

    def status(self, text: str) -> None:
        """What goes on right now; terminals only."""
        if self._live:
            self._write(f"\r\033[K{text}")

    def round(self, r: Round) -> None:
        filled = round(r.accuracy * BAR)
        bar = "█" * filled + "·" * (BAR - filled)
        missing = f"  {r.missing} missing" if r.missing else ""
        self.note(
            f"round {r.number:>3}/{self._rounds}  {bar} accuracy {r.accuracy:.3f}  loss {r.loss:.3f}"
            f"  {r.seconds:6.3f} s  {size(r.wire_bytes):>8}{missing}"
        )
        done = r.number * BAR // max(self._rounds, 1)
        self.status(f"[{'=' * done}{' ' * (BAR - done)}] {r.number} of {self._rounds} rounds")

    def clear(self) -> None:
        self.status("")


def table(outcome: Outcome) -> str:
    """The figures of a run, aligned."""
    names = sorted(outcome.summaries, key=lambda n: (n != "server", n))
    rows: list[tuple[str, str]] = [
        ("rounds", str(len(outcome.rounds))),
        ("accuracy at the end", f"{outcome.accuracy:.3f}"),
        ("seconds per round", f"{outcome.seconds_per_round:.4f}"),
        (
            "bytes per client and round",
            f"{outcome.bytes_per_client_and_round:,.0f} (PUBLISH packets, both ways)",
        ),
        ("peak memory", "  ".join(f"{n} {size(outcome.peak_rss(n))}" for n in names) or "?"),
        ("broker", f"{outcome.broker}, MQTT {outcome.protocol}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def plot(rounds: Sequence[Round], path: Path, title: str) -> bool:
    """Accuracy, loss and bytes per round as a PNG; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    numbers = [r.number for r in rounds]
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, height_ratios=(2, 1))
    above.plot(numbers, [r.accuracy for r in rounds], marker="o", color="tab:blue", label="accuracy")
    above.set_ylim(0, 1)
    above.set_ylabel("accuracy on the server's test set")
    above.grid(alpha=0.3)
    loss = above.twinx()
    loss.plot(numbers, [r.loss for r in rounds], color="tab:orange", alpha=0.7, label="loss")
    loss.set_ylabel("loss")
    loss.set_ylim(bottom=0)
    lines = [*above.get_lines(), *loss.get_lines()]
    above.legend(lines, [line.get_label() for line in lines], loc="center right")
    above.set_title(title)
    below.bar(numbers, [r.wire_bytes / 1000 for r in rounds], color="tab:green")
    below.set_ylabel("KB on the wire")
    below.set_xlabel("round")
    below.xaxis.get_major_locator().set_params(integer=True)
    below.grid(alpha=0.3, axis="y")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
