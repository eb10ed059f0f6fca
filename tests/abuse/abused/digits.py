"""The digits' federation as processes, among which a test puts others; what the server said of each round."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokers import Broker, mosquitto
from node_processes import id_of

from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker as NodeBroker
from bb_edge.transport.roster import read_roster
from federated_digits import data
from federated_digits.processes import Child, Ended, Events

from .world import PATIENCE_S

HONEST = 4


@dataclass(slots=True)
class Heard:
    """What the server said of each round, what all said in their logs, and what the server counted."""

    accuracy: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    missing: list[set[str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def said(self, who: str, *words: str) -> list[str]:
        """The lines of a node's log with all these words."""
        return [line for line in self.logs.get(who, []) if all(word in line for word in words)]


class Digits:
    """Artifacts and data lie in a folder; nodes are started by name at one mosquitto, and end with it."""

    def __init__(self, folder: Path, broker: Broker | None = None, federation: str = "digits") -> None:
        self.folder, self.federation = folder, federation
        self.events, self.broker = Events(), broker or mosquitto(folder)
        self.children: dict[str, Child] = {}
        self.heard = Heard()
        x, y = data.load_digits()
        self.test, self.shards = data.write_shards(folder, x, y, data.split(y, HONEST, seed=3))
        self.broker.start()

    def start(self, name: str, target: str, *more: str | Path, artifacts: Path | None = None) -> None:
        """Starts a node with more words on its command line."""
        command = [
            *(sys.executable, "-m", "bb_edge.cli", "run"),
            (artifacts or self.folder) / f"FederatedDigits.{target}.edge.onnx",
            *("--peer", name, "--target", target, "--federation", self.federation, "--budget", "host"),
            *(() if "--broker" in more else ("--broker", self.broker.url)),
            *more,
        ]
        self.children[name] = Child(name, list(map(str, command)), self.folder / f"{name}.log", self.events)

    def honest(
        self, number: int, *more: str | Path, seed: int | None = None, artifacts: Path | None = None
    ) -> None:
        """Starts one of the honest clients, with a shard of its own; without `seed` that is its number."""
        own = number if seed is None else seed
        shard = ("--set", f"shard.path={self.shards[number]}", "--seed", str(own))
        self.start(f"honest-{number}", "Client", *shard, *more, artifacts=artifacts)

    def serve(self, *more: str | Path) -> None:
        """Starts the server, which ends after its rounds."""
        self.start("server", "Server", "--set", f"test.path={self.test}", "--until-done", "--summary", *more)

    def listen(self, until: Callable[[], bool]) -> None:
        """Takes in what the nodes say until something is so. AssertionError where it is not in time."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not until():
            event = self.events.next(deadline)
            assert event is not None, {name: child.tail for name, child in self.children.items()}
            if isinstance(event, Ended):
                assert event.code == 0, (event.child.name, event.child.tail)
            elif event.error:
                self.heard.logs.setdefault(event.child.name, []).append(event.text)
                if event.child.name == "server":
                    self.heard.log.append(event.text)
            elif event.child.name == "server":
                self._record(event.record)

    def _record(self, record: dict[str, Any]) -> None:
        if "summary" in record:
            self.heard.summary = record
        elif record.get("event") == "round" and (record["value"][3] or record["value"][4]):
            value = record["value"]
            self.heard.accuracy.append(value[2])
            self.heard.samples.append(value[3])
            self.heard.missing.append(set(map(id_of, value[4])))

    def connected(self) -> None:
        """Returns once every node has its broker."""
        self.listen(lambda: all(self.heard.said(name, "connected to") for name in self.children))

    def done(self) -> Heard:
        """Returns once the server has ended."""
        server = self.children["server"]
        self.listen(lambda: server.ended.is_set() and bool(self.heard.summary))
        return self.heard

    def failures(self, among: Container[str]) -> dict[str, str]:
        """By the ids of these peers that are up: what failed last in each, as all that have failed say."""
        broker = NodeBroker(self.broker.host, self.broker.port)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            members = read_roster(broker, self.federation).members.items()
            found = {str(peer): str(m.meta.get("failure", "")) for peer, m in members if str(peer) in among}
            if found and all(found.values()):
                return found
        raise AssertionError(found)

    def close(self) -> None:
        for child in self.children.values():
            child.signal(signal.SIGTERM)
        for child in self.children.values():
            child.end(within_s=PATIENCE_S)
        self.broker.kill()


def ids(*names: str) -> set[str]:
    """The peer ids of these names, as texts."""
    return {str(PeerId.from_name(name)) for name in names}
