"""Machines that write each other durably, while disks are put back, lost and asleep.

What a state has heard is part of it, and goes back with it. Each letter has a number of its own, so that what
every state holds at the end can be compared with what was written down, and with what was reported.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from texts import compiled

from bb_edge import load
from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.engine.program.program import Program
from bb_edge.state.keeper import Restored
from bb_edge.wire import envelope
from bb_edge.wire.durable_rows import read
from bb_shims.testing import CrashMode, FakeDisk
from simulated.ledger import ALLOWED, CAPS, Ledger
from simulated.machine import Machine
from simulated.network import MS
from simulated.plan import Plan, S, Seat
from simulated.world import World

SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, durable=1"
TEXT = f"""
program Letters {{module=Letters}}
function program.Post(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Post}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  y: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="heard">(y)
"""
AFTER_NS = 130 * S
"""How long a world goes on after the faults: a sender that was told that it is old asks a minute later."""
TOLD = (steps.StateRolledBack, steps.PeerBeganAnew, *ALLOWED)


class Letter(NamedTuple):
    """One letter to one peer, by the places of the machines."""

    source: int
    target: int
    number: int


class Report(NamedTuple):
    """Who said what of whom; `kind` says whose state is old: "receiver", "sender", "anew"."""

    by: int
    peer: int
    kind: str
    sender: int
    receiver: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LettersPlan(Plan):
    """A world of letters; the numbers are averages per machine."""

    letters: int = 20
    put_back: float = 1.0
    lost: float = 0.2
    asleep: float = 1.0

    def program_of(self, seat: Seat) -> Program:
        return program()

    @property
    def seats(self) -> list[Seat]:
        return [Seat(f"node-{n}", "Post") for n in range(self.nodes)]


_PROGRAMS: list[Program] = []


def program() -> Program:
    """The program of all machines."""
    if not _PROGRAMS:
        _PROGRAMS.append(load(compiled(TEXT)))
    return _PROGRAMS[0]


class Image(NamedTuple):
    """A disk as somebody has kept it."""

    disk: FakeDisk
    promised: dict[Letter, int]


class LettersLedger(Ledger):
    """What was promised by which disk, and who reported what."""

    world: LettersWorld

    def __init__(self, world: LettersWorld) -> None:
        super().__init__(world)
        self.places = {machine.peer: place for place, machine in enumerate(world.machines)}
        self.by_disk: list[dict[Letter, int]] = [{} for _ in world.machines]
        self.reports: list[Report] = []
        self.older: Counter[int] = Counter()
        """How often the disk of a machine was put back, or lost."""

    def step(self, step: steps.EngineStep, machine: Machine) -> None:
        self.seen[type(step).__name__] += 1
        assert isinstance(step, (steps.PeerRestarts, *TOLD)), f"{machine.name}: {step}"
        if isinstance(step, steps.PersistOutbox):
            if step.token in machine.written:
                self.promise(step.record, machine)
        elif isinstance(step, (steps.StateRolledBack, steps.PeerBeganAnew)):
            self._reported(step, machine)

    def promise(self, data: bytes, machine: Machine) -> None:
        """A row of an outbox that is on disk."""
        by = self.places[machine.peer]
        for record in read([data], {}).records.values():
            (fill,) = envelope.decode(record.encoded, CAPS).fills
            number = int(np.frombuffer(bytes(fill.payload)[-4:], np.float32)[0])
            letter = Letter(by, self.places[record.key.peer], number)
            self.by_disk[by].setdefault(letter, self.world.network.now_ns)

    def _reported(self, step: steps.StateRolledBack | steps.PeerBeganAnew, machine: Machine) -> None:
        by, peer = self.places[machine.peer], self.places[step.peer]
        if isinstance(step, steps.PeerBeganAnew):
            kind, sender, receiver, older = "anew", by, peer, peer
        else:
            older, other = (by, peer) if step.own else (peer, by)
            kind = "receiver" if step.numbers else "sender"
            sender, receiver = (other, older) if step.numbers else (older, other)
        assert self.older[older], f"{machine.name}: {step}: nobody has put that state back"
        self.reports.append(Report(by, peer, kind, sender, receiver, self.world.network.now_ns))

    def restored(self, found: Restored) -> None:
        assert not found.losses, found.losses
        self.seen["restored"] += bool(found.generation)

    # --- the end ----------------------------------------------------------------------------------------

    def done(self) -> bool:
        for machine in self.world.machines:
            node = machine.node
            if node is None or node.pending_sends or node.counters["executions.active"]:
                return False
        return self.world.network.now_ns >= self.world.plan.calm_ns + AFTER_NS

    def heard_by(self, place: int) -> Counter[int]:
        """How often the state of a machine has heard which letter."""
        node = self.world.machines[place].node
        assert node is not None
        return Counter(int(value[0]) for value in node.ring("heard"))  # type: ignore[index]

    def check_end(self) -> None:
        """Each letter that a disk promised was heard, or a report covered it; and none twice without one."""
        heard = [self.heard_by(place) for place in range(len(self.world.machines))]
        for promised in self.by_disk:
            for letter, at_ns in promised.items():
                covered = any((r.sender, r.receiver) == letter[:2] and r.at_ns >= at_ns for r in self.reports)
                assert heard[letter.target][letter.number] or covered, f"{letter} is lost, and nobody said so"
        for place, numbers in enumerate(heard):
            for number, count in numbers.items():
                source = self.world.sources[number]
                twice = any(
                    r.kind == "sender" and (r.sender, r.receiver) == (source, place) for r in self.reports
                )
                # A state that is put back twice may come to know again what the one in between did not.
                between = self.older[place] > 1
                assert count == 1 or twice or between, f"{number} from {source} came to {place} {count} times"
        for machine in self.world.machines:
            assert machine.node is not None and machine.node.counters["ingress.bytes"] == 0

    def state(self) -> str:
        return "\n".join([super().state(), *map(str, self.reports)])


class LettersWorld(World):
    """A world of letters; everybody knows everybody, up or not."""

    ledger: LettersLedger
    plan: LettersPlan

    def __init__(self, seed: int, plan: LettersPlan | None = None) -> None:
        super().__init__(seed, plan or plan_of_letters(seed))
        self.sources: dict[int, int] = {}
        self.images: list[list[Image]] = [[] for _ in self.machines]
        self.asleep_until: dict[str, int] = {}

    def make_ledger(self) -> LettersLedger:
        return LettersLedger(self)

    def _schedule(self) -> None:
        super()._schedule()
        self.network.at(self.plan.calm_ns + AFTER_NS, lambda: None)
        plan, rng, network = self.plan, self.rng, self.network
        for place, machine in enumerate(self.machines):
            for _ in range(plan.letters):
                when = rng.randrange(300 * MS, plan.calm_ns + S)
                network.at(when, lambda p=place: self._write(p))
            for when in self._times(2 * plan.put_back):
                network.at(when, lambda p=place: self._keep_image(p))
            for when in self._times(plan.put_back):
                network.at(when, lambda p=place: self._put_back(p))
            for when in self._times(plan.lost):
                network.at(when, lambda p=place: self._lose(p))
            for when in self._times(plan.asleep):
                network.at(when, lambda m=machine: self._sleeps(m))

    def _write(self, place: int) -> None:
        machine, rng = self.machines[place], self.rng
        if machine.node is None:
            return
        others = [other for other in range(len(self.machines)) if other != place]
        number = len(self.sources) + 1
        self.sources[number] = place
        to = tuple(self.machines[other].peer for other in rng.sample(others, rng.randint(1, len(others))))
        try:
            machine.node.invoke("Post", {"x": np.full(1, number, np.float32), "to": to})
        except IngressFull:
            return
        machine.due = 0

    def _keep_image(self, place: int) -> None:
        machine = self.machines[place]
        if machine.node is None:
            return
        disk = copy.deepcopy(machine.disk)
        disk.disarm()
        disk.crash(CrashMode.LOSE)
        self.images[place].append(Image(disk, dict(self.ledger.by_disk[place])))
        self.network.faults["image"] += 1

    def _put_back(self, place: int) -> None:
        machine = self.machines[place]
        if machine.node is None or not self.images[place]:
            return
        image = self.rng.choice(self.images[place])
        self.crashed(machine, "and put back")
        machine.disk = copy.deepcopy(image.disk)
        self.ledger.by_disk[place] = dict(image.promised)
        self.ledger.older[place] += 1

    def _lose(self, place: int) -> None:
        machine = self.machines[place]
        if machine.node is None:
            return
        self.crashed(machine, "and lost")
        machine.disk = FakeDisk()
        self.ledger.by_disk[place] = {}
        self.ledger.older[place] += 1

    def _sleeps(self, machine: Machine) -> None:
        if machine.node is None:
            return
        self.asleep_until[machine.name] = self.network.now_ns + self.rng.randrange(S, 6 * S)
        self.crashed(machine, "and asleep")

    def _start(self, machine: Machine) -> None:
        until = self.asleep_until.pop(machine.name, 0)
        if until > self.network.now_ns:
            self.network.at(until, lambda: self._start(machine))
        elif machine.node is None:
            super()._start(machine)


def plan_of_letters(seed: int) -> LettersPlan:
    """The plan of a seed."""
    rng = random.Random(f"letters {seed}")
    return LettersPlan(
        "letters",
        nodes=rng.choice((2, 3, 3)),
        letters=rng.choice((5, 20, 40)),
        calm_ns=rng.choice((4, 8)) * S,
        crashes=rng.choice((0.0, 0.5, 2.0)),
        disk_errors=rng.choice((0.0, 0.7)),
        put_back=rng.choice((0.0, 1.0, 2.0)),
        lost=rng.choice((0.0, 0.0, 0.5)),
        asleep=rng.choice((0.0, 1.0)),
        mute=0.0,
        broken=0.0,
    )
