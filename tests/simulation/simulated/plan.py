"""What is simulated under which faults, decided by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace

from bb_edge.engine.program.program import Program
from simulated import programs
from simulated.network import MS, Weather
from simulated.programs import EDITIONS, OWN, TALKING, Programs

S = 1_000 * MS
KINDS = ("federation", "gossip", "nested")
MIXED_FROM = 10_000_000
"""From this seed on, presences go over a broker, and peers misbehave in what they are and say."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One machine: its name, its target, and which shard it holds, if any.

    A machine of two classes serves `also`, too; `edition` says which version of the program it runs.
    """

    name: str
    target: str
    shard: int | None = None
    also: str = ""
    edition: str = OWN

    @property
    def targets(self) -> list[str]:
        return [self.target, self.also] if self.also else [self.target]


@dataclass(frozen=True, slots=True)
class Plan:
    """One world. The numbers of faults are averages: per machine, or per world."""

    kind: str = "federation"
    nodes: int = 3
    """Clients, gossiping nodes, or leaves."""
    rounds: int = 4
    reports: int = 4
    report_ms: int = 30
    """Between two reports of a client in a federation."""
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
            return programs.federation(
                self.nodes, self.rounds, self.reports, self.durable, self.enough, self.report_ms
            )
        if self.kind == "gossip":
            return programs.gossip(2, self.reports, self.durable)
        return programs.nested(2, self.nodes, self.rounds, self.durable, self.inner_s)

    def program_of(self, seat: Seat) -> Program:
        """What a machine runs."""
        return self.programs[seat.target]

    @property
    def seats(self) -> list[Seat]:
        if self.kind == "gossip":
            return [Seat(f"node-{n}", "Gossip") for n in range(self.nodes)]
        leaf = "Client" if self.kind == "federation" else "Leaf"
        relays = [Seat(f"relay-{n}", "Relay") for n in range(2)] if self.kind == "nested" else []
        return [Seat("server", "Server"), *relays, *(Seat(f"leaf-{n}", leaf, n) for n in range(self.nodes))]


@dataclass(frozen=True, slots=True)
class MixedPlan(Plan):
    """A world whose presences go over a broker, as real memberships say them, in several editions."""

    editions: tuple[str, ...] = (OWN, OWN, OWN)
    """Of the machines in the order of their seats, the first one (a server) left out."""
    two_classes: bool = False
    """Whether a machine serves two classes: the server is a client too, a relay is a leaf."""
    reconnects: float = 2.0
    """Times that a machine loses its connection and nothing else; the broker may notice late."""
    takeovers: float = 0.3
    """Times that a second machine comes up under the name, and stays for a while."""
    late: float = 0.3
    """Chance that a machine that starts hears nobody's presence for up to 6 s."""
    replaced: float = 0.3
    """Chance that a best-effort machine comes back from a crash with another edition."""
    spoiled: float = 1.0
    """Times that a client of a federation answers with data that are not numbers, for a while."""
    misshapen: float = 1.0
    """Times that its answers have another shape for a while."""
    crowd: int = 0
    """Peers that say their presence and run a program that nobody lists."""

    def program_of(self, seat: Seat) -> Program:
        return self.program_in(seat.edition)

    def program_in(self, edition: str) -> Program:
        """The program as an edition has it, with all its targets."""
        options: tuple[int | bool | None, ...]
        if self.kind == "federation":
            options = (self.nodes + self.two_classes, self.rounds, self.reports, self.durable, self.enough)
        elif self.kind == "gossip":
            options = (2, self.reports, self.durable)
        else:
            options = (2, self.nodes + self.two_classes, self.rounds, self.durable, self.inner_s)
        return programs.editions(self.kind, *options)[edition]

    @property
    def crowded(self) -> str:
        """The class that the crowd is of."""
        return {"federation": "Client", "gossip": "Gossip", "nested": "Relay"}[self.kind]

    @property
    def seats(self) -> list[Seat]:
        first, *others = Plan.seats.__get__(self)
        if self.two_classes and self.kind == "federation":
            first = replace(first, also="Client", shard=self.nodes)
        elif self.two_classes and self.kind == "nested":
            others[0] = replace(others[0], also="Leaf", shard=self.nodes)
        editions = (*self.editions, *[OWN] * len(others))
        return [first, *(replace(seat, edition=one) for seat, one in zip(others, editions, strict=False))]


def talks(one: str, other: str) -> bool:
    """Whether nodes of two editions are to talk."""
    return one == other or frozenset((one, other)) in TALKING


def plan_of(seed: int, short: bool = False) -> Plan:
    """The plan of a seed: one of few, so that few programs are compiled. Short ones cost some ten ms."""
    plan = _plain(seed, short)
    return plan if seed < MIXED_FROM else _mixed(random.Random(f"mixed {seed}"), plan)


def _mixed(rng: random.Random, plan: Plan) -> MixedPlan:
    """The same with a broker, and peers that misbehave. The first of each class has the own edition."""
    others = [rng.choice((OWN, OWN, *EDITIONS)) for _ in range(plan.nodes + 2)]
    others[0] = OWN
    if plan.kind == "nested":
        others[2] = OWN
    return MixedPlan(
        **{one.name: getattr(plan, one.name) for one in fields(plan)},
        editions=tuple(others),
        two_classes=plan.kind != "gossip" and rng.random() < 0.5,
        reconnects=rng.choice((1.0, 3.0)),
        takeovers=rng.choice((0.0, 0.5)),
        late=rng.choice((0.0, 0.3)),
        replaced=rng.choice((0.0, 0.5)),
        crowd=rng.choice((0, 0, 0, 40)),
    )


def _plain(seed: int, short: bool) -> Plan:
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
