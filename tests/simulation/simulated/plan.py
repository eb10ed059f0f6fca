"""What is simulated under which faults, decided by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulated import programs
from simulated.network import MS, Weather
from simulated.programs import Programs

S = 1_000 * MS
KINDS = ("federation", "gossip", "nested")


@dataclass(frozen=True, slots=True)
class Seat:
    """One machine: its name, its target, and which shard it holds, if any."""

    name: str
    target: str
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One world. The numbers of faults are averages: per machine, or per world."""

    kind: str = "federation"
    nodes: int = 3
    """Clients, gossiping nodes, or leaves."""
    rounds: int = 4
    reports: int = 4
    durable: bool = True
    enough: int | None = None
    weather: Weather = field(default_factory=Weather)
    calm_ns: int = 4 * S
    """When all faults end."""
    crashes: float = 1.0
    disk_errors: float = 0.7
    partitions: float = 2.0
    broker_restarts: float = 0.7
    mute: float = 0.5
    """Times that a machine answers nothing for a while, and goes on with everything else."""
    broken: float = 0.5
    """Times that what a machine is asked fails there for a while."""
    inner_s: int = 8
    """The deadline of relays, in seconds; that of the server is 20."""

    @property
    def programs(self) -> Programs:
        if self.kind == "federation":
            return programs.federation(self.nodes, self.rounds, self.reports, self.durable, self.enough)
        if self.kind == "gossip":
            return programs.gossip(2, self.reports, self.durable)
        return programs.nested(2, self.nodes, self.rounds, self.durable, self.inner_s)

    @property
    def seats(self) -> list[Seat]:
        if self.kind == "gossip":
            return [Seat(f"node-{n}", "Gossip") for n in range(self.nodes)]
        leaf = "Client" if self.kind == "federation" else "Leaf"
        relays = [Seat(f"relay-{n}", "Relay") for n in range(2)] if self.kind == "nested" else []
        return [Seat("server", "Server"), *relays, *(Seat(f"leaf-{n}", leaf, n) for n in range(self.nodes))]


def plan_of(seed: int, short: bool = False) -> Plan:
    """The plan of a seed: one of few, so that few programs are compiled. Short ones cost some ten ms."""
    rng = random.Random(f"plan {seed}")
    durable = rng.random() < 0.3
    kind = rng.choice(("federation", "federation", "gossip", "nested"))
    long = 1 if durable else 4
    nodes = rng.choice((3, 4, 5))
    return Plan(
        kind,
        3 if short else nodes,
        rounds=3 if short else 10 * long,
        reports=4 if short else (20 if kind == "gossip" else 10) * long,
        durable=durable,
        enough=rng.choice((None, None, 2)) if kind == "federation" else None,
        weather=Weather(drop=rng.choice((0.05, 0.2, 0.2, 0.3))),
        calm_ns=(1 if short else rng.choice((2, 4, 8))) * S,
        crashes=rng.choice((0.5, 1.0, 2.0)),
        inner_s=rng.choice((8, 40)),
    )
