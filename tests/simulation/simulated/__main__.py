"""Simulates worlds: `./dev simulate --seeds 20000 --jobs 2`.

Prints what was delivered, which faults there were, and for each failure the seed that replays it:
`./dev simulate --start SEED --seeds 1`. Exit code 1 where a world failed.

`--kind letters` runs machines that write each other durably while their disks are put back (letters.py).

A change of structure alone changes no trace: `--hashes FILE` before it, `--same-as FILE` after it.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from simulated.letters import LettersWorld
from simulated.mixed import MixedWorld
from simulated.plan import MixedPlan, plan_of
from simulated.world import World, WorldError

CHUNK = 50


@dataclass
class Tally:
    """What some worlds add up to."""

    seeds: int = 0
    polls: int = 0
    delivered: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hashes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.polls += other.polls
        self.delivered += other.delivered
        self.seen.update(other.seen)
        self.faults.update(other.faults)
        self.hashes += other.hashes
        self.failures += other.failures


FEDERATIONS, LETTERS = "federations", "letters"


def world_of(seed: int, short: bool = False, kind: str = FEDERATIONS) -> World:
    """The world of a seed."""
    if kind == LETTERS:
        return LettersWorld(seed, short=short)
    plan = plan_of(seed, short)
    return MixedWorld(seed, plan) if isinstance(plan, MixedPlan) else World(seed, plan)


def simulate(seeds: range, short: bool = False, kind: str = FEDERATIONS) -> Tally:
    """The worlds of these seeds, one after the other."""
    tally = Tally()
    for seed in seeds:
        world = world_of(seed, short, kind)
        try:
            world.run()
        except WorldError as error:
            tally.failures.append(str(error))
        tally.seeds += 1
        tally.polls += world.polls
        tally.delivered += world.network.delivered
        tally.seen.update(world.ledger.seen)
        tally.faults.update(world.faults)
        tally.hashes.append(world.trace_hash)
    return tally


def _prepare() -> None:
    gc.freeze()


def simulate_all(
    start: int, seeds: int, jobs: int, short: bool = False, kind: str = FEDERATIONS, tell: bool = False
) -> Tally:
    """The same by several processes; results do not depend on their number."""
    chunks = [range(at, min(at + CHUNK, start + seeds)) for at in range(start, start + seeds, CHUNK)]
    total = Tally()
    began = time.monotonic()
    with multiprocessing.Pool(jobs, _prepare) as pool:
        work = functools.partial(simulate, short=short, kind=kind)
        for number, tally in enumerate(pool.imap(work, chunks), 1):
            total.add(tally)
            if tell and (tally.failures or number % 20 == 0 or number == len(chunks)):
                seconds = time.monotonic() - began
                print(f"{total.seeds} seeds, {total.delivered} deliveries, {seconds:.0f} s", flush=True)
                for failure in tally.failures:
                    print(failure, flush=True)
    return total


def write_hashes(path: Path, start: int, hashes: list[str]) -> None:
    """Writes the trace hash of each seed, as JSON."""
    by_seed = {str(seed): digest for seed, digest in enumerate(hashes, start)}
    path.write_text(json.dumps(by_seed, indent=0) + "\n")


def differing(path: Path, start: int, hashes: list[str]) -> list[int]:
    """The seeds whose trace is not the one that `write_hashes` wrote. KeyError for a seed that it did not."""
    written = json.loads(path.read_text())
    return [seed for seed, digest in enumerate(hashes, start) if written[str(seed)] != digest]


def main() -> int:
    parser = argparse.ArgumentParser("./dev simulate", description="federations under faults, by seed")
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--kind", choices=(FEDERATIONS, LETTERS), default=FEDERATIONS, help="of the worlds")
    parser.add_argument("--short", action="store_true", help="the smaller worlds of the test command")
    parser.add_argument("--hashes", type=Path, metavar="FILE", help="write each seed's trace hash there")
    parser.add_argument("--same-as", type=Path, metavar="FILE", help="fail where a trace is not as written")
    options = parser.parse_args()
    began = time.monotonic()
    what = options.short, options.kind
    total = simulate_all(options.start, options.seeds, max(1, options.jobs), *what, tell=True)
    seconds = time.monotonic() - began
    digest = hashlib.sha256("".join(total.hashes).encode()).hexdigest()
    print(f"deliveries {total.delivered}, polls {total.polls}, {total.delivered / seconds:.0f} deliveries/s")
    for title, counts in (("faults", total.faults), ("seen", total.seen)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print(f"trace hash {digest}")
    if options.hashes:
        write_hashes(options.hashes, options.start, total.hashes)
    if options.same_as:
        others = differing(options.same_as, options.start, total.hashes)
        total.failures += [f"seed {seed}: another trace than in {options.same_as}" for seed in others]
        print(f"traces as in {options.same_as}: {total.seeds - len(others)} of {total.seeds}")
    for failure in total.failures:
        seed = failure.split(":")[0].removeprefix("seed ")
        more = (" --short" if options.short else "") + f" --kind {options.kind}"
        print(f"replay: ./dev simulate --seeds 1 --start {seed}{more}")
    print(
        f"{total.seeds} seeds in {seconds:.0f} s: "
        + (f"{len(total.failures)} failed" if total.failures else "ok")
    )
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
