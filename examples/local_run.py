"""Runs an example's nodes on this machine: a process for each, over a broker, until one of them is done.

What the examples with one command share; `federated_digits/run.py`, which shows more, has its own.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bb_edge.ir.errors import BBError
from federated_digits.brokers import BrokerError, OwnBroker, start_broker
from federated_digits.data import DataError
from federated_digits.processes import Child, ChildError, Ended, Events, Interrupted, Line

BAR = 24

Record = dict[str, Any]
"""What a node says in one line."""


class RunError(Exception):
    """The run cannot go on; the message says why."""


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    """The options that all of these examples have."""
    parser.add_argument("--seed", type=int, default=1, help="of the data's split and the models (default 1)")
    parser.add_argument("--broker", metavar="URL", help="an MQTT broker that runs already: mqtt://HOST:PORT")
    parser.add_argument("--own-broker", choices=("mosquitto", "amqtt"), default="", help="which one to start")
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help=f"default {out}")
    parser.add_argument(
        "--deadline", type=float, default=300.0, metavar="SECONDS", help="give up after (300)"
    )


class LocalRun:
    """One run: its broker, its nodes, and what they say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.events = Events()
        self.nodes: list[Child] = []
        self._deadline = time.monotonic() + arguments.deadline
        self._brokers: list[OwnBroker] = []
        self._url, self._version = arguments.broker or "", "auto"
        self._federation = f"example-{random.SystemRandom().getrandbits(32):08x}"  # a broker may be shared
        self._live = sys.stdout.isatty()
        shutil.rmtree(self.out / "logs", ignore_errors=True)

    def start_broker(self) -> None:
        """Starts a broker, unless one was named. Raises BrokerError."""
        kind = "a broker that was running"
        if not self._url:
            own = start_broker(self.out / "broker", self.events, self.arguments.own_broker)
            kind, self._url, self._version = own.kind, own.url, own.mqtt_version
            self._brokers.append(own)
        self.note(f"broker: {kind} at {self._url}")

    def start_site(self, name: str, topics: Sequence[str], group: str = "") -> str:
        """Starts a mosquitto that is bridged to this run's own, before any node; returns its URL.

        `topics` are those of the federation that both sides share, each with its direction as mosquitto
        writes it: `presence/Server/# both`. "" where the run's own broker is not mosquitto. BrokerError.
        """
        if not self._brokers or self._brokers[0].kind != "mosquitto":
            return ""
        lines = [
            f"connection {name}",
            f"address {self._url.removeprefix('mqtt://')}",
            *(f"topic bb/{self._federation}{group}/{topic} 1" for topic in topics),
            "bridge_protocol_version mqttv50",
            f"remote_clientid bridge-{name}",
            "notifications false",
            "restart_timeout 1",
        ]
        site = start_broker(self.out / f"broker-{name}", self.events, "mosquitto", lines)
        self._brokers.append(site)
        self.note(f"broker: mosquitto of {name} at {site.url}, bridged")
        return site.url

    def start(
        self, name: str, artifact: Path, target: str, *more: str | Path, group: str = "", url: str = ""
    ) -> None:
        """Starts a node, at the run's broker or the one at `url`; raises ChildError.

        Nodes of one `group` are a federation of their own.
        """
        command: list[str | Path] = [
            *(sys.executable, "-m", "bb_edge.cli", "run", artifact, "--target", target, "--peer", name),
            *("--broker", url or self._url, "--federation", self._federation + group, "--budget", "host"),
            *("--mqtt-version", self._version, *more),
            *(() if "--seed" in more else ("--seed", str(len(self.nodes)))),
        ]
        logs = self.out / "logs"
        self.nodes.append(Child(name, command, logs / f"{name}.log", self.events))
        with (logs / "commands.txt").open("a") as commands:
            commands.write(shlex.join(map(str, command)) + "\n")

    def _next(self) -> Line | Ended:
        """What a process says next. Raises RunError at the deadline."""
        event = self.events.next(self._deadline)
        if event is None:
            raise RunError(
                f"{self.arguments.deadline:.0f} s are over; the logs are in {self.out / 'logs'}, "
                "--deadline gives it more time"
            )
        return event

    def until_up(self, seen: Mapping[str, Collection[str]]) -> None:
        """Returns once each node has told that these peers are up, by their names.

        Raises RunError where a node ends, and at the deadline.
        """
        waiting = {(node, peer) for node, peers in seen.items() for peer in peers}
        while waiting:
            event = self._next()
            if isinstance(event, Ended):
                raise RunError(f"{event.child.name} ended (exit code {event.code}):\n{event.child.tail}")
            _, told, rest = event.text.partition(" PeerUp peer=")
            if told:
                waiting.discard((event.child.name, rest.partition(" ")[0]))

    def heard(self, until: Collection[str]) -> Iterator[tuple[str, Record]]:
        """Node and record of each event, until the nodes `until` have ended by themselves.

        Raises RunError where another node ends, or one with an error, and at the deadline.
        """
        waiting = set(until)
        while waiting:
            event = self._next()
            if isinstance(event, Line):
                if "event" in event.record:
                    yield event.child.name, event.record
            elif event.code == 0 and event.child.name in waiting:
                waiting.discard(event.child.name)
            else:
                raise RunError(f"{event.child.name} ended (exit code {event.code}):\n{event.child.tail}")

    def stop(self) -> list[str]:
        """Ends every process in order; the names of those that had to be killed."""
        self.status("")
        for node in self.nodes:
            node.signal(signal.SIGTERM)
        stuck = [node.name for node in self.nodes if not node.end()]
        for broker in reversed(self._brokers):
            broker.stop()
        return stuck

    # --- what the user sees ---------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line that stays."""
        print(f"\r\033[K{text}" if self._live else text, flush=True)

    def status(self, text: str) -> None:
        """A line that the next one replaces; on terminals only."""
        if self._live:
            print(f"\r\033[K{text}", end="", flush=True)

    def progress(self, done: int, of: int, text: str) -> None:
        """How far it is; about twenty such lines stay."""
        filled = done * BAR // max(of, 1)
        line = f"[{'=' * filled}{' ' * (BAR - filled)}] {done:>4}/{of}  {text}"
        if done >= of or done % max(of // 20, 1) == 0:
            self.note(line)
        else:
            self.status(line)


def run(arguments: argparse.Namespace, body: Callable[[LocalRun], None], finish: Callable[[], None]) -> int:
    """Runs `body`, ends all processes, then calls `finish`.

    Returns 0, or 1 with a message where something failed, or 130 where it was interrupted.
    """
    local = LocalRun(arguments)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        local.events.put(Interrupted(signal.Signals(number).name))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    code, message = 0, ""
    try:
        body(local)
    except (RunError, ChildError, BrokerError, DataError, BBError) as error:
        code, message = 1, str(error)
    except Interrupted as error:
        code, message = 130, f"{error}: ending all processes"
    stuck = local.stop()
    if message:
        print(message, file=sys.stderr)
    if stuck:
        print(f"did not end by themselves and were killed: {', '.join(stuck)}", file=sys.stderr)
        code = code or 1
    if code == 0:
        finish()
    return code


Curve = tuple[str, Sequence[float], Sequence[float]]
"""Label, x and y."""


def draw(curves: Sequence[Curve], path: Path, title: str, x_label: str, y_label: str) -> bool:
    """Curves of shares (0 to 1) as a PNG; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for label, xs, ys in curves:
        axes.plot(xs, ys, label=label)
    axes.set(xlabel=x_label, ylabel=y_label, title=title, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def show_picture(curves: Sequence[Curve], path: Path, title: str, x_label: str, y_label: str) -> None:
    """Draws it and says where it is, or why there is none."""
    if draw(curves, path, title, x_label, y_label):
        print(f"\npicture: {path}")
    else:
        print("\nno picture: matplotlib is not installed (pip install matplotlib)")
