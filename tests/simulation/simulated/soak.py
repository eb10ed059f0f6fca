"""One durable federation for very long: `./dev soak --polls 1000000`.

Crashes, full disks, clocks that jump, nodes that are installed anew and forget everything. Asserted all the
way: what the ledger asserts; memory that does not grow; a disk that holds no more than its budget; bytes
written per round within a budget.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from dataclasses import dataclass
from itertools import islice

from bb_edge.engine import steps
from bb_shims.testing import FakeDisk
from simulated.ledger import Ledger
from simulated.machine import Machine
from simulated.network import MS, Weather
from simulated.plan import Plan, S
from simulated.world import CUTS, ERRORS, World, WorldError

KIB = 1024
FOREVER = 1_000_000_000
PLAN = Plan(rounds=FOREVER, reports=FOREVER, report_ms=60, weather=Weather(drop=0.05), calm_ns=FOREVER * S)
"""Reports as fast as a network that loses so many carries them: what waits beyond that would only grow."""
KEPT = 300
HOUR = 3600 * S
MESSAGE_BYTES = 1536
"""What all nodes together may write per durable message, to outbox and journal, snapshots included."""

DISK_BYTES = 1 << 20
MOST_WAITING = 1_000
"""Reports that are on a sender's disk and not counted yet."""

GROWTH_BYTES = 256 * KIB
"""What the least memory of later checkpoints may be above an earlier one's: what waits makes some higher."""


class SoakLedger(Ledger):
    """The same ledger, of the last `KEPT` things each."""

    promised_ever = 0
    rounds_ever = 0

    def step(self, step: steps.EngineStep, machine: Machine) -> None:
        if isinstance(step, steps.CycleBudgetExceeded):  # what waited for hours comes in one poll
            self.seen["a poll's budget"] += 1
            return
        super().step(step, machine)

    def promise(self, data: bytes, machine: Machine) -> None:
        before = len(self.promised)
        super().promise(data, machine)
        self.promised_ever += len(self.promised) - before

    def told_once(self, n: int, value: tuple[object, ...], heard: bool) -> None:
        self.rounds_ever += heard and n not in self.told
        super().told_once(n, value, heard)

    def forget(self) -> None:
        """Drops what is old."""
        for several in self.promised.values():
            assert len(several) == 1, f"a report under several numbers: {several}"
        for table in (self.promised, self.heard, self.told):
            kept = list(islice(table.items(), max(0, len(table) - KEPT), None))
            table.clear()  # a table that only loses entries keeps its size, and is taken for a leak
            table.update(kept)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is held and was done at one moment."""

    polls: int
    rounds: int
    reports: int
    memory_bytes: int
    objects: int
    disk_bytes: int
    written_bytes: int
    counted: int

    @property
    def message_bytes(self) -> int:
        """Bytes written per durable message: reports, and a round's asks and answers."""
        return self.written_bytes // (self.reports + 2 * PLAN.nodes * self.rounds)


class Soak(World):
    """A world without an end."""

    ledger: SoakLedger

    def __init__(self, seed: int, every_ns: int = 4 * S, plan: Plan = PLAN) -> None:
        super().__init__(seed, plan)
        self.every_ns = every_ns
        """The longest time between two faults."""
        self.written = 0
        self._heard = 0
        self.checkpoints: list[Checkpoint] = []

    def make_ledger(self) -> Ledger:
        return SoakLedger(self)

    def crashed(self, machine: Machine, why: str) -> None:
        self._count(machine)
        super().crashed(machine, why)

    def _count(self, machine: Machine) -> None:
        if machine.store is not None:
            self.written += machine.store.counters["state.bytes_written"]

    def _something(self) -> None:
        """The next fault, and the one after it later."""
        rng, network = self.rng, self.network
        machine, other = rng.sample(self.machines, 2)
        what = rng.randrange(9)
        if what <= 2:
            self.crashed(machine, "between polls")
        elif what <= 4:
            self._arm(machine, CUTS if what == 3 else ERRORS, rng.randrange(1, 30))
        elif what == 5:
            network.cut(machine.name, other.name, rng.randrange(1, 2 * S))
        elif what == 6:
            self._broker_restarts()
        elif what == 7:
            network.faults["full disk"] += 1
            machine.disk.capacity_bytes = sum(map(len, machine.disk.files.values())) + rng.randrange(600)
            network.at(network.now_ns + 1 * S, lambda: setattr(machine.disk, "capacity_bytes", DISK_BYTES))
        else:
            self._clock_jumps()
        network.at(network.now_ns + rng.randrange(1, self.every_ns), self._something)

    def _clock_jumps(self) -> None:
        """Nobody is polled for a while, or the time of day is set."""
        rng, network = self.rng, self.network
        network.faults["clock jumps"] += 1
        if rng.random() < 0.5:
            network.now_ns += rng.choice((1 * S, 30 * S, HOUR))
        else:
            self.wall_ns += rng.choice((-1, 1)) * rng.choice((1 * S, HOUR, 1000 * HOUR))

    @property
    def _all_up(self) -> bool:
        return all(machine.node is not None for machine in self.machines)

    def _checkpoint(self) -> None:
        self.ledger.forget()
        gc.collect()
        server = self.machines[0].node
        if server is not None:
            self._heard = server.counters.get("reports", 0)
        written = self.written
        for machine in self.machines:
            if machine.node is not None and machine.store is not None:
                written += machine.store.counters["state.bytes_written"]
        disk = max(sum(map(len, machine.disk.files.values())) for machine in self.machines)
        assert disk <= DISK_BYTES, f"{disk} bytes on a disk"
        self.checkpoints.append(
            Checkpoint(
                self.polls,
                self.ledger.rounds_ever,
                self.ledger.promised_ever,
                tracemalloc.get_traced_memory()[0],
                len(gc.get_objects()),
                disk,
                written,
                self._heard,
            )
        )

    def soak(self, polls: int, checkpoints: int = 10, tell: bool = False) -> Soak:
        """So many polls; WorldError where something is wrong."""
        for machine in self.machines:
            machine.disk = FakeDisk(capacity_bytes=DISK_BYTES)
            self.network.at(self.rng.randrange(1, 200 * MS), lambda m=machine: self._start(m))
        self.network.at(S, self._something)
        tracemalloc.start()
        try:
            for number in range(1, checkpoints + 1):
                # With all nodes up: one that is away has no memory.
                self._advance(lambda n=number: self.polls >= polls * n // checkpoints and self._all_up)
                self._checkpoint()
                if tell:
                    print(self.checkpoints[-1], flush=True)
            self._check()
        except Exception as error:
            raise WorldError(
                f"seed {self.seed}, poll {self.polls}: {type(error).__name__}: {error}\n{self.ledger.state()}"
            ) from error
        finally:
            tracemalloc.stop()
        return self

    def _check(self) -> None:
        first, *later = self.checkpoints[len(self.checkpoints) // 2 :]
        least = min(later, key=lambda point: point.memory_bytes, default=first)
        grown = least.memory_bytes - first.memory_bytes
        assert grown <= GROWTH_BYTES, f"memory grew by {grown} bytes from {first} to {least}"
        last = self.checkpoints[-1]
        assert last.rounds > self.checkpoints[0].rounds, "rounds do not go on"
        assert last.message_bytes <= MESSAGE_BYTES, f"{last.message_bytes} bytes written per durable message"
        missing = last.reports - last.counted
        assert 0 <= missing <= MOST_WAITING, f"{last.reports} reports on disk, {last.counted} counted"


def main() -> int:
    parser = argparse.ArgumentParser("./dev soak", description="one federation for very long")
    parser.add_argument("--polls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    soak = Soak(options.seed).soak(options.polls, tell=True)
    last = soak.checkpoints[-1]
    print("faults: " + ", ".join(f"{name} {count}" for name, count in soak.faults.most_common()))
    seconds = time.monotonic() - began
    print(f"{last.polls} polls in {seconds:.0f} s, {last.rounds} rounds, {last.reports} reports")
    print(f"{last.message_bytes} bytes written per durable message by {len(soak.machines)} nodes together")
    return 0


if __name__ == "__main__":
    sys.exit(main())
