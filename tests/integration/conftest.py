"""Federations of real processes: artifacts, data, and a hand to start, kill and listen to nodes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled_programs import compiled_once

from federated_digits import data
from federated_digits.processes import Child, Ended, Events, Line

CLIENTS = 3
PATIENCE_S = 60.0
"""Ceiling of every wait, times the machine's patience."""


def _compile(**options: int) -> dict[str, bytes]:
    from bb_host.build import build_edge
    from federated_digits.federation import program

    module, compiler = program("mlp", 0, clients=CLIENTS, **options)
    return {artifact.target: artifact.data for artifact in build_edge(module, compiler).artifacts}


class Artifacts:
    """Compiled programs of this run, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[tuple[str, int], ...], Path] = {}
        x, y = data.load_digits()
        parts = data.split(y, CLIENTS, seed=3)
        self.test, self.shards = data.write_shards(folder / "data", x, y, parts)
        self.shares = {f"client-{n}": len(rows) for n, rows in enumerate(parts.shards)}
        self.samples = sum(self.shares.values())

    def get(self, **options: int) -> tuple[Path, Path]:
        """(server's, client's) artifact of the digits program with these options."""
        key = tuple(sorted(options.items()))
        folder = self._made.get(key)
        if folder is None:
            folder = self._folder / f"program-{len(self._made)}"
            folder.mkdir()
            name = "-".join(["digits", *(f"{option}-{value}" for option, value in key)])
            for target, data in compiled_once(name, lambda: _compile(**options)).items():
                (folder / f"FederatedDigits.{target}.edge.onnx").write_bytes(data)
            self._made[key] = folder
        return folder / "FederatedDigits.Server.edge.onnx", folder / "FederatedDigits.Client.edge.onnx"


class Federation:
    """Nodes at one broker."""

    def __init__(self, folder: Path, url: str, artifacts: Artifacts, **options: int) -> None:
        self.events = Events()
        self.url = url
        self.artifacts = artifacts
        self.server_artifact, self.client_artifact = artifacts.get(**options)
        self.heard: list[Line | Ended] = []
        self.children: list[Child] = []
        self._folder = folder
        self.patience_s = PATIENCE_S

    # --- starting and ending --------------------------------------------------------------------------

    def run(self, name: str, artifact: Path, target: str, *more: str) -> Child:
        """`bb-edge run` with these arguments."""
        child = Child(
            name,
            [
                *(sys.executable, "-m", "bb_edge.cli", "run", artifact, "--target", target, "--peer", name),
                *("--broker", self.url, "--federation", "test", "--budget", "host", "--summary", *more),
            ],
            self._folder / f"{name}-{len(self.children)}.log",
            self.events,
        )
        self.children.append(child)
        return child

    def server(self, *more: str) -> Child:
        path = f"test.path={self.artifacts.test}"
        return self.run("server", self.server_artifact, "Server", "--set", path, "--seed", "9", *more)

    def client(self, number: int, *more: str) -> Child:
        path = f"shard.path={self.artifacts.shards[number]}"
        own = ("--set", path, "--seed", str(number))
        return self.run(f"client-{number}", self.client_artifact, "Client", *own, *more)

    def state(self, name: str) -> tuple[str, str]:
        """Arguments that give a node its own folder."""
        return "--state", str(self._folder / "state" / name)

    def end(self, child: Child) -> tuple[int, dict[str, Any]]:
        """SIGTERM; its exit code and summary."""
        child.signal(signal.SIGTERM)
        code = self.ended(child)
        summaries = [e.record for e in self.heard if isinstance(e, Line) and e.child is child]
        return code, next((r for r in reversed(summaries) if "summary" in r), {})

    def close(self) -> None:
        for child in self.children:
            child.end(within_s=0)

    # --- listening ------------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[Line | Ended], bool], what: str, since: int | None = None
    ) -> Line | Ended:
        """The next event for which the condition holds; with `since`, one heard from there on counts too."""
        if since is not None:
            for event in self.heard[since:]:
                if condition(event):
                    return event
        deadline = time.monotonic() + self.patience_s
        while (event := self.events.next(deadline)) is not None:
            self.heard.append(event)
            if condition(event):
                return event
        tails = "\n".join(f"--- {c.name}\n{c.tail}" for c in self.children)
        pytest.fail(f"{what}: not within {self.patience_s:.0f} s\n{tails}")

    def ended(self, child: Child) -> int:
        """Its exit code, once it has ended."""
        found = self.wait(lambda e: isinstance(e, Ended) and e.child is child, f"{child.name} ends", since=0)
        assert isinstance(found, Ended)
        return found.code

    def says(self, child: Child, text: str, since: int | None = None) -> str:
        """The next line of its log that holds the text."""
        found = self.wait(
            lambda e: isinstance(e, Line) and e.child is child and e.error and text in e.text,
            f"{child.name} says {text!r}",
            since,
        )
        assert isinstance(found, Line)
        return found.text

    def round(
        self, condition: Callable[[list[Any]], bool] = lambda _: True, what: str = "a round"
    ) -> list[Any]:
        """The next round that the server tells of, for which the condition holds."""

        def is_it(event: Line | Ended) -> bool:
            if isinstance(event, Ended):
                return False
            return event.record.get("event") == "round" and condition(_values(event))

        found = self.wait(is_it, what)
        assert isinstance(found, Line)
        return _values(found)

    def full_round(self) -> list[Any]:
        """The next round in which every client's samples count."""
        return self.round(lambda v: v[3] == self.artifacts.samples, "a round with every client")


def _values(line: Line) -> list[Any]:
    value = line.record["value"]
    assert isinstance(value, list)
    return value


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture
def federation(tmp_path: Path, artifacts: Artifacts, patience: float) -> Iterator[Callable[..., Federation]]:
    """`federation(broker_or_url, **options of the program)`; all its processes end with the test."""
    made: list[Federation] = []

    def make(broker: Any, **options: int) -> Federation:
        url = broker if isinstance(broker, str) else f"mqtt://{broker.host}:{broker.port}"
        found = Federation(tmp_path, url, artifacts, **({"local_steps": 5} | options))
        found.patience_s = PATIENCE_S * patience
        made.append(found)
        return found

    yield make
    for found in made:
        found.close()
