"""A round of the digits federation, as `bb-edge run` processes and as bare paho with NumPy, in turns.

Four client processes and a server that scores: 64-32-10 MLP, one local epoch (11 steps of 32), learning rate
0.1, seeded split, mosquitto on loopback. Figures: milliseconds per round, bytes per client and round (topics
and payloads), peak memory, and cold start: from a client's spawn, in a federation that waits for it, to the
end of the first round. Beside it the same federation with durable questions and a state folder per node:
milliseconds, and what a round writes to the disk.
"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.measuring import Row
from federated_digits import data
from federated_digits.brokers import OwnBroker, start_broker
from federated_digits.federation import program
from federated_digits.processes import Child, ChildError, Ended, Events
from federated_digits.run import node_command

CLIENTS, STEPS, ROUNDS, WARM_UP = 4, 11, 120, 20
DEADLINE_S = 60.0
HERE = Path(__file__).resolve().parent


@dataclass(slots=True)
class Job:
    """What one side's processes are started with."""

    folder: Path
    broker: OwnBroker
    artifacts: dict[tuple[int, int, bool], Path]
    test: Path
    shards: tuple[Path, ...]


@dataclass(slots=True)
class Result:
    """One federation's life."""

    times: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    moved: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    syncs: dict[str, int] = field(default_factory=dict)


Command = Callable[[Job, str, str, int, int], list[str | Path]]
"""(job, name of the federation, name of the process, rounds, clients) → command line."""

_runs = itertools.count(1)


def edge_command(
    job: Job, federation: str, name: str, rounds: int, clients: int, durable: bool = False
) -> list[str | Path]:
    folder = job.artifacts[rounds, clients, durable]
    more: tuple[str, ...]
    if name == "server":
        more = ("--set", f"test.path={job.test}", "--until-done")
        artifact, target = folder / "FederatedDigits.Server.edge.onnx", "Server"
    else:
        number = int(name.rpartition("-")[2])
        more = ("--set", f"shard.path={job.shards[number]}")
        artifact, target = folder / "FederatedDigits.Client.edge.onnx", "Client"
    return node_command(artifact, target, name, job.broker.url, federation, "--seed", "1", *more)


def durable_command(job: Job, federation: str, name: str, rounds: int, clients: int) -> list[str | Path]:
    command = edge_command(job, federation, name, rounds, clients, durable=True)
    return [*command, "--state", job.folder / "state" / federation / name]


def bare_command(job: Job, federation: str, name: str, rounds: int, clients: int) -> list[str | Path]:
    port = job.broker.url.rpartition(":")[2]
    server = name == "server"
    path = job.test if server else job.shards[int(name.rpartition("-")[2])]
    role = "server" if server else "client"
    numbers = (str(rounds), str(clients), str(STEPS))
    script = HERE / "bare_federation.py"
    return [sys.executable, script, role, name, "127.0.0.1", port, federation, path, *numbers]


def federate(job: Job, command: Command, rounds: int, clients: int, last_alone: bool = False) -> Result:
    """Runs a federation to its end; the first entry of `times` is the spawn of the last process.

    With `last_alone` that process starts when the others have had their time to start.
    """
    events, result, federation = Events(), Result(), f"bench-{next(_runs)}"
    names = ["server", *(f"client-{number}" for number in range(clients))]
    children: list[Child] = []
    try:
        for name in names:
            if last_alone and name == names[-1]:
                time.sleep(1.5)
            result.times[:] = [time.monotonic()]
            children.append(
                Child(
                    name, command(job, federation, name, rounds, clients), job.folder / f"{name}.log", events
                )
            )
        deadline = time.monotonic() + DEADLINE_S
        while (event := events.next(deadline)) is not None:
            if isinstance(event, Ended):
                if event.child.name == "server" and event.code == 0:
                    break
                raise ChildError(f"{event.child.name} ended with {event.code}:\n{event.child.tail}")
            value = event.record.get("value")
            if isinstance(value, list) and value[3] > 0:  # else nobody was there to be asked yet
                result.times.append(time.monotonic())
                result.accuracy = float(value[2])
            _keep(event.record, result)
        else:
            raise ChildError(f"{rounds} rounds were not done in {DEADLINE_S:.0f} s:\n{children[0].tail}")
    finally:
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            child.end()
    for event in events.drain():
        if not isinstance(event, Ended):
            _keep(event.record, result)
    assert len(result.times) == rounds + 1, f"{len(result.times) - 1} of {rounds} rounds were told"
    return result


def _keep(record: dict[str, object], result: Result) -> None:
    name, transport, memory = record.get("summary"), record.get("transport"), record.get("peak_rss_bytes")
    if isinstance(name, str) and isinstance(transport, dict) and isinstance(memory, int):
        result.moved[name] = int(transport["sent_bytes"]) + int(transport["received_bytes"])
        result.memory[name] = memory
        counters = record.get("counters")
        if isinstance(counters, dict) and "state.bytes_written" in counters:
            result.written[name] = int(counters["state.bytes_written"])
            result.syncs[name] = int(counters["state.syncs"])


def prepare(folder: Path) -> Job:
    """Artifacts, data and a broker."""
    from bb_host.build import compile_edge

    x, y = data.load_digits()
    test, shards = data.write_shards(folder / "data", x, y, data.split(y, CLIENTS, seed=1))
    artifacts = {}
    for rounds, clients, durable in ((ROUNDS, CLIENTS, False), (1, 1, False), (ROUNDS, CLIENTS, True)):
        out = artifacts[rounds, clients, durable] = folder / f"{rounds}x{clients}{'-durable' * durable}"
        module, compiler = program(
            "mlp",
            0,
            rounds=rounds,
            clients=clients,
            local_steps=STEPS,
            at_least=clients,
            durable=durable,
        )
        compile_edge(module, compiler, out)
    broker = start_broker(folder / "broker", Events(), "mosquitto")
    return Job(folder, broker, artifacts, test, shards)


def run(rounds: int = 6, seconds: float = 90.0) -> list[Row]:
    """BrokerError without mosquitto, ChildError where a process ends, AssertionError on wrong results."""
    commands: dict[str, Command] = {
        "bb_edge": edge_command,
        "bare": bare_command,
        "durable": durable_command,
    }
    ms: dict[str, list[float]] = {name: [] for name in commands}
    cold: dict[str, list[float]] = {"bb_edge": [], "bare": []}
    lives: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(Path(folder))
        try:
            end = time.monotonic() + seconds
            for number in range(rounds):
                if number >= 2 and time.monotonic() > end:
                    break
                order = list(commands) if number % 2 == 0 else list(reversed(commands))
                for name in order:
                    life = lives[name] = federate(job, commands[name], ROUNDS, CLIENTS)
                    steady = life.times[1 + WARM_UP :]
                    ms[name].append(median(b - a for a, b in itertools.pairwise(steady)) * 1e3)
                    if name in cold:
                        first = federate(job, commands[name], 1, 1, last_alone=True)
                        cold[name].append(first.times[1] - first.times[0])
        finally:
            job.broker.stop()
    for name, life in lives.items():
        assert life.accuracy >= 0.9, f"{name} learnt nothing: accuracy {life.accuracy}"
    return rows(ms, cold, lives)


def rows(ms: dict[str, list[float]], cold: dict[str, list[float]], lives: dict[str, Result]) -> list[Row]:
    names = list(cold)
    per_round = {name: median(ms[name]) for name in ms}
    durable = per_round.pop("durable")
    start = {name: median(cold[name]) for name in names}
    bytes_each = {
        name: sum(moved for who, moved in lives[name].moved.items() if who != "server") / CLIENTS / ROUNDS
        for name in names
    }
    memory = {name: max(lives[name].memory.values()) / 1e6 for name in names}
    accuracy = {name: lives[name].accuracy for name in lives}
    disk = lives["durable"]
    client = f"client-{CLIENTS - 1}"
    written = {name: disk.written[who] / ROUNDS for name, who in (("server", "server"), ("client", client))}
    syncs = {name: disk.syncs[who] / ROUNDS for name, who in (("server", "server"), ("client", client))}
    return [
        Row("a round", per_round, "ms", per_round["bb_edge"] / per_round["bare"], 1.6),
        Row("bytes per client and round", bytes_each, "B", bytes_each["bb_edge"] / bytes_each["bare"], 1.05),
        Row("peak memory of the largest node", {"bb_edge": memory["bb_edge"]}, "MB", None, 52.0),
        Row("peak memory beside it", memory, "MB"),
        Row("cold start to the first round", {"bb_edge": start["bb_edge"]}, "s", None, 0.3),
        Row("cold start beside it", start, "s"),
        Row(
            "a durable round",
            {"durable": durable, "bb_edge": per_round["bb_edge"]},
            "ms",
            durable / per_round["bb_edge"],
            2.0,
        ),
        Row("written to disk per durable round", written, "B"),
        Row("synced calls per durable round", syncs, ""),
        Row(f"accuracy after {ROUNDS} rounds", accuracy, ""),
    ]
