"""Devices that report durably to a hub: real processes, what is done to them, and the oracle.

Each device tells the number of each of its rounds. A device that comes back to an older state runs its rounds
again from there, so whatever happens to it, each number up to its last one reaches the hub. The hub may say a
number twice where it was killed or put back between the two lines (it works once more on what its journal
holds, and says so). Else only where it has said in between that the device's state is older than the world;
and then the device has run that round again, or has named its record as one that may come twice.
"""

from __future__ import annotations

import resource
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import NamedTuple

from brokers import Broker, broker_of, start_bridged
from node_processes import id_of

from bb_edge.components import PresenceSelector
from bb_edge.ir.ids import PeerId
from bb_host import MS, Compiler, Graph, Module, PeerSelectorSlot
from bb_host.build import compile_edge
from federated_digits.processes import Child, Ended, Events, Line

from .world import PATIENCE_S

HUB = "hub"
FEDERATION = "reports"


class Heard(NamedTuple):
    """When a hub says a number: after so many of its own ends, and so many words that the device was old."""

    disturbed: int
    old: int


class Reports(Module):
    """Devices that tell the hub they know, there or not, the number of each of their rounds."""

    name, home = "Reports", "Device"
    hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Device")

    def __init__(self, pause_ms: int) -> None:
        super().__init__()
        self.pause_ms = pause_ms

    def body(self, g: Graph) -> None:
        with g.rounds(pause_ns=self.pause_ms * MS) as start:
            hubs = self.hubs.sample(g, n=1, min=1, after=start)
            told = g.net_out("report", hubs, start.round, durable=True)
            g.app_emit("told", start.round, after=hubs)
            g.app_emit("report", g.bundle([told, told.sender]))


class ReportWorld:
    """A hub, its devices and a broker; `abuse` hurts them, `settle` lets them finish, `wrong` judges.

    With several `brokers` the hub is at the first one, and the devices, by turns, at the others, which are
    bridged to it.
    """

    def __init__(self, folder: Path, devices: int = 3, pause_ms: int = 50, brokers: int = 1) -> None:
        self.folder, self.events = folder, Events()
        self.brokers: list[Broker] = []
        self._brokers = brokers
        self.names = [f"device-{n}" for n in range(devices)]
        compiler = Compiler().bind_peer_selector("hubs", PresenceSelector, {"known": True})
        compile_edge(Reports(pause_ms), compiler, folder)
        self.nodes: dict[str, Child] = {}
        self.births = 0
        self.done: list[str] = []
        self.unexpected: list[str] = []
        self.hurt: set[Child] = set()
        """Those that are meant to end with another code than 0."""
        self.gone: set[Child] = set()
        self.told: dict[str, int] = defaultdict(int)
        self.due: dict[str, int] = {}
        """By device: up to which number the hub has to have heard, as last asked."""
        self.heard: dict[str, dict[int, list[Heard]]] = {name: defaultdict(list) for name in self.names}
        """By device and number: when it was said."""
        self.disturbed = 0
        """How often the hub was killed or put back."""
        self.old: dict[str, int] = defaultdict(int)
        """How often the hub has said of a device that its state is old."""
        self.put_back: dict[str, int] = defaultdict(int)
        self.ran: dict[str, dict[int, set[int]]] = {name: defaultdict(set) for name in self.names}
        """By device and number: how often the device had been put back when it ran that round."""
        self.named: dict[str, Counter[int]] = {name: Counter() for name in self.names}
        """By device: how often it has named which record; they have the numbers of their rounds."""
        self.rolled_back = 0
        self.complete = False
        self._peers = {str(PeerId.from_name(name)): name for name in self.names}

    # --- processes ------------------------------------------------------------------------------------

    def state(self, name: str) -> Path:
        """The node's own folder."""
        return self.folder / "state" / name

    def start(self, name: str, state: Path | None = None) -> Child:
        target = "Hub" if name == HUB else "Device"
        self.births += 1
        broker = self.brokers[0] if name == HUB else broker_of(self.names.index(name), self.brokers)
        command = [
            *(sys.executable, "-m", "bb_edge.cli", "run", self.folder / f"Reports.{target}.edge.onnx"),
            *("--peer", name, "--target", target, "--broker", broker.url, "--federation", FEDERATION),
            *("--state", state or self.state(name), "--snapshot-interval", "3"),
        ]
        log = self.folder / f"{name}-{self.births}.log"
        if name == HUB and state is None:  # what it says, and what it logs, in one order
            command = ["sh", "-c", 'exec "$@" 2>&1', "sh", *command]
        child = self.nodes[name] = Child(name, command, log, self.events)
        return child

    def _kill(self, name: str) -> None:
        child = self.nodes[name]
        self.hurt.add(child)
        child.signal(signal.SIGKILL)
        self._until_gone(child)
        self.disturbed += name == HUB

    def _end(self, name: str) -> None:
        child = self.nodes[name]
        child.signal(signal.SIGTERM)
        if not child.end(30):
            self.unexpected.append(f"{name} does not end: {child.tail}")
        self._until_gone(child)

    def close(self) -> None:
        for child in self.nodes.values():
            child.signal(signal.SIGCONT)
            child.end(within_s=0)
        for broker in self.brokers:
            broker.kill()

    # --- listening ------------------------------------------------------------------------------------

    def _until_gone(self, child: Child) -> None:
        """Returns once it has ended and all that it said was heard: as said before whatever follows."""
        while child not in self.gone:
            self.listen(0.05)

    def listen(self, seconds: float) -> None:
        """Takes in what is said in so many seconds."""
        deadline = time.monotonic() + seconds
        while (event := self.events.next(deadline)) is not None:
            self._hear(event)

    def _hear(self, event: Line | Ended) -> None:
        name = event.child.name
        if isinstance(event, Ended):
            self.gone.add(event.child)
            if event.code != 0 and event.child not in self.hurt:
                self.unexpected.append(f"{name} ended with {event.code}: {event.child.tail}")
            return
        value = event.record.get("value")
        if event.record.get("event") == "told":
            assert isinstance(value, int)
            self.told[name] = max(self.told[name], value)
            self.ran[name][value].add(self.put_back[name])
        elif event.record.get("event") == "report":
            assert isinstance(value, list)
            (sender,) = value[1]
            device = self._peers[id_of(sender)]
            self.heard[device][value[0]].append(Heard(self.disturbed, self.old[device]))
        elif "StateRolledBack" in event.text:
            self.rolled_back += 1
            self.is_old(name, event.text)

    def is_old(self, name: str, text: str) -> None:
        """A node says that a state is older than the world."""
        if name == HUB and "own=False" in text:
            self.old[text.partition("peer=")[2].split()[0]] += 1
        elif name != HUB and "own=False" not in text:
            records = text.partition(": records ")[2].partition(" of the outbox")[0]
            for span in filter(None, records.split(", ")):
                first, _, last = span.partition(" to ")
                self.named[name].update(range(int(first), int(last or first) + 1))

    def _until_heard(self) -> bool:
        """Whether the hub has said, within the patience of a test, every number that is told by now."""
        self.due = dict(self.told)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.unexpected:
            if all(self.heard[name].keys() >= set(range(1, number + 1)) for name, number in self.due.items()):
                return True
            self.listen(0.2)
        return False

    def _until_it_went_on(self, name: str, reports: int = 10) -> None:
        """Returns once so many more reports have come from it (to it, where it is the hub)."""

        def count() -> int:
            heard = self.heard.values() if name == HUB else [self.heard[name]]
            return sum(len(when) for numbers in heard for when in numbers.values())

        wanted, deadline = count() + reports, time.monotonic() + PATIENCE_S
        while count() < wanted and time.monotonic() < deadline and not self.unexpected:
            self.listen(0.1)

    # --- faults ---------------------------------------------------------------------------------------

    def abuse(self, seed: int, faults: int, away_s: float = 20.0, every_s: float = 2.0) -> None:
        """Starts all, then hurts one after the other; whoever is away comes back at the end."""
        rng = Random(seed)
        self.brokers = start_bridged(self.folder, self._brokers, FEDERATION)
        for name in (HUB, *self.names):
            self.start(name)
        deadline = time.monotonic() + PATIENCE_S
        while not all(self.heard.values()) and time.monotonic() < deadline:
            self.listen(0.1)
        kinds = ("kill", "away", "put back", "mixed", "full", "broker", "both put back")
        for kind in rng.choices(kinds, weights=(3, 2, 3, 1, 2, 1, 1), k=faults):
            self.listen(rng.uniform(0.3, 1.7) * every_s)
            name = rng.choice((HUB, *self.names))
            self.done.append("a broker" if kind == "broker" else f"{name} {kind}")
            if kind == "kill":
                self._kill(name)
                self.listen(rng.uniform(0, 1))
                self.start(name)
            elif kind == "away":
                self._end(name)
                self.listen(rng.uniform(0.5, 1) * away_s)
                self.start(name)
            elif kind == "put back":
                self._put_back([name], rng, every_s)
            elif kind == "both put back":
                self._put_back([HUB, rng.choice(self.names)], rng, every_s)
            elif kind == "mixed":
                self._mixed(name, rng.choice([other for other in (HUB, *self.names) if other != name]))
            elif kind == "full":
                self._full(name, rng.uniform(0.5, 2))
            else:
                broker = rng.choice(self.brokers)
                broker.kill()
                self.listen(rng.uniform(0, 2))
                broker.start()

    def _put_back(self, names: list[str], rng: Random, every_s: float) -> None:
        """Their folders go back to what they were a while ago, after an orderly end or a kill."""
        for name in names:
            self._end(name)
            shutil.copytree(self.state(name), self.folder / "older" / name, dirs_exist_ok=False)
            self.start(name)
        for name in names:
            self._until_it_went_on(name)
        self.listen(rng.uniform(0, 2) * every_s)
        for name in names:
            if rng.random() < 0.5:
                self._end(name)
            else:
                self._kill(name)
        for name in names:
            self.disturbed += name == HUB
            self.put_back[name] += 1
            shutil.rmtree(self.state(name))
            shutil.move(self.folder / "older" / name, self.state(name))
            self.start(name)

    def _mixed(self, name: str, other: str) -> None:
        """With a file of another node among its own the node has to refuse; then it goes on without it."""
        for node in (name, other):
            self._end(node)
        mixed = self.folder / "mixed"
        shutil.rmtree(mixed, ignore_errors=True)
        shutil.copytree(self.state(name), mixed)
        theirs = max(self.state(other).glob("outbox-*"), default=None) or max(
            self.state(other).glob("journal-*")
        )
        shutil.copy(theirs, mixed / theirs.name)
        child = self.start(name, mixed)
        self.hurt.add(child)
        if not child.end(30) or str(PeerId.from_name(other)) not in child.tail:
            self.unexpected.append(f"{name} takes {theirs.name} of {other}: {child.tail}")
        for node in (name, other):
            self.start(node)

    def _full(self, name: str, seconds: float) -> None:
        """Nothing can be written for so long."""
        pid = self.nodes[name].pid
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
            self.listen(seconds)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        except ProcessLookupError:
            self.unexpected.append(f"{name} has ended on a full disk: {self.nodes[name].tail}")

    # --- the oracle -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything that was told arrives, and what is told from then on, too; then all end in order."""
        self.complete = self._until_heard()
        self.listen(0.5)
        self.complete = self.complete and self._until_heard()
        for name in (*self.names, HUB):
            self._end(name)
        self.listen(0.3)

    def wrong(self) -> list[str]:
        """What is not as it must be; empty where all is well."""
        found = list(self.unexpected)
        for name in self.names:
            heard = self.heard[name]
            due = self.due.get(name, 0)
            if lost := sorted(set(range(1, due + 1)) - heard.keys()):
                found.append(f"{name} told {lost} of {due}, the hub never heard them")
            twice = [number for number, when in heard.items() if len(set(when)) < len(when)]
            if twice:
                found.append(f"{name}: {sorted(twice)} were heard twice")
            if unnamed := sorted(number for number in heard if not self._is_explained(name, number)):
                found.append(f"{name}: {unnamed} were heard again, neither named nor run again")
        return found

    def _is_explained(self, name: str, number: int) -> bool:
        """Whether a hub between two ends of its own has said a number no oftener than its round was run in
        states of the device that do not know each other, and its record was named.
        """
        most = max(Counter(when.disturbed for when in self.heard[name][number]).values(), default=0)
        return most <= len(self.ran[name][number]) + self.named[name][number]
