"""The processes, what they say, what is done to them, and the oracle of two tiers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from brokers import Broker, broker_of, start_bridged
from node_processes import id_of

from bb_edge.ir.ids import PeerId
from federated_digits.processes import Child, Ended, Events, Line

from .program import build

PATIENCE_S = 60.0 * float(os.environ.get("BB_TEST_PATIENCE", "1"))
"""Half of what a test has: who waits in vain says for what."""

FEDERATION = "abuse"


class Abused:
    """Nodes by name and their brokers; `abuse` lets them run to the end under faults.

    Which nodes there are, how they are started, what they say and when they are through, a subclass knows.
    """

    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """What may be hurt, as often as it stands here: a kind of node, `broker`, or `stop`."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self.folder, self.events = folder, Events()
        self.brokers: list[Broker] = []
        self._brokers = brokers
        self.nodes: dict[str, Child] = {}
        self.births = 0
        self.done: list[str] = []
        self.unexpected: list[str] = []
        self.killed: set[Child] = set()
        self.told: dict[int, list[list[Any]]] = defaultdict(list)

    # --- what a subclass knows --------------------------------------------------------------------------

    def command(self, name: str) -> list[str | Path]:
        """How the node is run: artifact, target, broker and the rest."""
        raise NotImplementedError

    def heard(self, line: Line) -> None:
        """Takes in a line that a node has said."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether all is told that will be."""
        raise NotImplementedError

    def shared(self, number: int) -> list[str]:
        """The topics that the broker of that number has in common with the first one."""
        return ["# both"]

    # --- processes --------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.births += 1
        self.nodes[name] = Child(
            name,
            [
                *(sys.executable, "-m", "bb_edge.cli", "run", "--peer", name, "--summary"),
                *("--federation", FEDERATION, "--budget", "host", "--seed", "5"),
                *map(str, self.command(name)),
            ],
            self.folder / f"{name}-{self.births}.log",
            self.events,
        )

    def kill(self, name: str) -> None:
        child = self.nodes[name]
        self.killed.add(child)
        child.signal(signal.SIGKILL)
        child.ended.wait()

    def close(self) -> None:
        for child in self.nodes.values():
            child.signal(signal.SIGCONT)
            child.end(within_s=0)
        for broker in self.brokers:
            broker.kill()

    # --- listening --------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> None:
        """Takes in what is said in so many seconds."""
        deadline = time.monotonic() + seconds
        while (event := self.events.next(deadline)) is not None:
            if not isinstance(event, Ended):
                self.heard(event)
            elif event.child not in self.killed and event.code != 0:
                self.unexpected.append(f"{event.child.name} ended with {event.code}: {event.child.tail}")

    # --- faults -----------------------------------------------------------------------------------------

    def abuse(self, seed: int, faults: int, stopped_s: float = 10.0, every_s: float = 1.5) -> None:
        """Starts all, then hurts one after the other, until all is told."""
        rng = Random(seed)
        self.brokers = start_bridged(self.folder, self._brokers, FEDERATION, self.shared)
        for name in self.names:
            self.start(name)
        deadline = time.monotonic() + PATIENCE_S
        while not self.told and time.monotonic() < deadline:
            self.listen(0.1)
        for _ in range(faults):
            self.listen(rng.uniform(0.2, 2) * every_s)
            if self.complete:
                break
            self._fault(rng, stopped_s)
        deadline = time.monotonic() + PATIENCE_S
        while not self.complete and time.monotonic() < deadline and not self.unexpected:
            self.listen(0.2)
        server = self.nodes["server"]
        server.signal(signal.SIGTERM)
        server.end(30)
        self.listen(0.3)

    def _fault(self, rng: Random, stopped_s: float) -> None:
        kind = rng.choice(self.kinds)
        if kind == "broker":
            number = rng.randrange(len(self.brokers))
            self.done.append(f"broker-{number} killed")
            self.brokers[number].kill()
            self.listen(rng.uniform(0, 2))
            self.brokers[number].start()
            return
        several = [name for name in self.names if name.startswith("client" if kind == "stop" else kind)]
        name = several[rng.randrange(len(several))] if kind != "server" else "server"
        if kind == "stop":
            name = rng.choice((name, self.names[0]))
            self.done.append(f"{name} stopped")
            self.nodes[name].signal(signal.SIGSTOP)
            self.listen(stopped_s)
            self.nodes[name].signal(signal.SIGCONT)
            return
        self.done.append(f"{name} killed")
        self.kill(name)
        self.listen(rng.uniform(0, 1))
        self.start(name)


class World(Abused):
    """A server, its clients and a broker.

    With several `brokers` the server is at the first one, and the clients, by turns, at the others, which are
    bridged to it.
    """

    kinds = ("client", "client", "server", "broker", "stop")

    def __init__(
        self,
        folder: Path,
        clients: int = 7,
        rounds: int = 30,
        reports: int = 40,
        pause_ms: int = 400,
        durable: bool = False,
        brokers: int = 1,
    ) -> None:
        self.clients, self.rounds, self.reports, self.durable = clients, rounds, reports, durable
        options = {
            "clients": clients,
            "rounds": rounds,
            "reports": reports,
            "pause_ms": pause_ms,
            "durable": durable,
        }
        super().__init__(folder, brokers)
        self.server_artifact, self.client_artifact, self.shards = build(folder, **options)
        self.names = ("server", *(f"client-{n}" for n in range(clients)))
        self.reported: dict[tuple[str, int], int] = defaultdict(int)
        self.ticks: dict[tuple[str, int], list[str]] = {}
        self.through: set[Child] = set()  # clients that have come to the end of their reports
        self.summaries: dict[Child, dict[str, Any]] = {}

    def command(self, name: str) -> list[str | Path]:
        server = name == "server"
        number = 0 if server else int(name.rpartition("-")[2])
        broker = self.brokers[0] if server else broker_of(number, self.brokers)
        found = [self.server_artifact if server else self.client_artifact, "--broker", broker.url]
        found += ["--target", "Server" if server else "Client"]
        if self.durable:
            found += ["--state", self.folder / "state" / name, "--snapshot-interval", "5"]
        if not server:
            found += ["--set", f"shard.path={self.shards[number]}"]
        return found

    def heard(self, line: Line) -> None:
        ended = "rounds completed target=Client", f" rounds_ended={self.reports} "
        if line.error and any(words in line.text for words in ended):
            self.through.add(line.child)
        record = line.record
        if "summary" in record:
            self.summaries[line.child] = record
        value: Any = record.get("value")
        if record.get("event") == "round":
            if value[2] or value[3]:  # else nobody was up to be asked: the round's number comes again
                self.told[value[0]].append(value)
        elif record.get("event") == "tick":
            self.ticks[str(PeerId.from_name(line.child.name)), value[0]] = list(map(id_of, value[1]))
        elif record.get("event") == "report":
            (sender,) = value[1]
            self.reported[id_of(sender), value[0]] += 1

    @property
    def due(self) -> set[tuple[str, int]]:
        """(client, number) of the reports that a server was there to be sent to, as last told."""
        return {tick for tick, servers in self.ticks.items() if servers}

    @property
    def complete(self) -> bool:
        if len(self.told) < self.rounds:
            return False
        if not self.durable:
            return True
        # One that came back goes through its reports again, and may find a server where there was none.
        clients = {child for name, child in self.nodes.items() if name != "server"}
        return clients <= self.through and self.due <= set(self.reported)

    # --- the oracle -----------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """What is not as it must be; empty where all is well."""
        found = list(self.unexpected)
        if sorted(self.told) != list(range(1, self.rounds + 1)):
            found.append(f"rounds told: {sorted(self.told)} of {self.rounds}")
        powers = {str(PeerId.from_name(f"client-{n}")): 2**n for n in range(self.clients)}
        for number, several in sorted(self.told.items()):
            for _, mean, total, missing in several:
                count = round(total)
                have = round(mean * count) if count else 0
                if have % number:
                    found.append(f"round {number}: the sum {have} is nobody's")
                    continue
                inside = have // number
                if bin(inside).count("1") != count or inside >= 2**self.clients:
                    found.append(f"round {number}: {count} counted, the sum is that of {inside:b}")
                if any(inside & powers[id_of(peer)] for peer in missing):
                    found.append(f"round {number}: who is missing is in the sum {inside:b}")
                absent = sum(powers[id_of(peer)] for peer in missing)
                if self.durable and inside + absent != 2**self.clients - 1:
                    found.append(
                        f"round {number}: {inside:b} counted, {absent:b} missing: somebody is neither"
                    )
            if self.durable and any(value != several[0] for value in several):
                found.append(f"round {number} was told in two ways: {several}")
        if self.durable:
            if lost := self.due - set(self.reported):
                found.append(f"reports lost: {sorted(lost)}")
            summary = self.summaries.get(self.nodes["server"], {})
            counted = dict(summary.get("counters", {})).get("reports", 0)
            if counted != len(self.reported):
                found.append(f"{counted} reports counted, {len(self.reported)} told")
        return found
