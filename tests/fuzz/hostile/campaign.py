"""Many hostile inputs for one reader: typed errors only, bounded time and memory each.

An input is named by (seed, number) and made anew from that, so whatever fails can be repeated alone.
"""

from __future__ import annotations

import gc
import hashlib
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bb_edge.ir.errors import BBError

BATCH = 256
SECONDS_EACH = 1.0
"""Processor time that no input may take; emulated machines are some ten times slower than real ones."""
MEASURED_EVERY = 4096
"""Every so many inputs one is run once more, with its allocations counted."""


class Absent(Exception):
    """What would read is not to be had on this machine."""


@dataclass
class Subject:
    """What reads bytes. `read` raises a BBError for what it refuses, and gives something for what it takes.

    `seeds` are sound inputs, `mutate` makes others out of them; `memory(size)` are the bytes that reading an
    input of that size may allocate at its peak, beyond what it gives. `close` ends what reads.
    """

    name: str
    seeds: Sequence[bytes]
    mutate: Sequence[Callable[[bytes, Sequence[bytes], Random], bytes]]
    read: Callable[[bytes], object]
    memory: Callable[[int], int]
    close: Callable[[], None] = lambda: None

    def make(self, rng: Random) -> bytes:
        data = self.seeds[int(rng.random() * len(self.seeds))]
        change = self.mutate[int(rng.random() * len(self.mutate))]
        data = change(data, self.seeds, rng)
        if rng.random() < 0.3:
            data = change(data, self.seeds, rng)
        return data


@dataclass
class Crash:
    """An input and what it did."""

    data: bytes
    what: str

    def keep(self, folder: Path, name: str) -> Path:
        """Writes the input down under its digest."""
        path = folder / name / hashlib.sha256(self.data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


@dataclass
class Result:
    name: str
    inputs: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    crashes: list[Crash] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0

    def line(self) -> str:
        kinds = ", ".join(f"{k} {n}" for k, n in self.refused.most_common(12))
        return (
            f"{self.name}: {self.inputs:,} inputs in {self.seconds:.0f} s, {self.taken:,} taken, "
            f"{len(self.crashes)} failures, slowest {self.slowest * 1e3:.0f} ms, "
            f"peak {self.peak >> 10} KiB; refused: {kinds}"
        )


def one(subject: Subject, data: bytes, result: Result) -> None:
    """One input, counted; whatever is not a BBError is a failure."""
    result.inputs += 1
    try:
        subject.read(data)
        result.taken += 1
    except BBError as error:
        result.refused[type(error).__name__] += 1
    except Exception as error:  # noqa: BLE001  (this is what is looked for)
        result.crashes.append(Crash(data, f"{type(error).__name__}: {error}"))


def measured(subject: Subject, data: bytes, result: Result) -> None:
    """The same input once more, for its memory and its time alone."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    one(subject, data, Result(""))
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    result.peak = max(result.peak, peak)
    if peak > subject.memory(len(data)):
        result.crashes.append(Crash(data, f"{peak} bytes allocated for {len(data)}"))


def run(subject: Subject, count: int, seed: int = 0, until: Callable[[], bool] = lambda: False) -> Result:
    """`count` inputs of a seed, or as many as come before `until()`."""
    result = Result(subject.name)
    started = time.monotonic()
    for batch in range(-(-count // BATCH)):
        rng = Random(f"{subject.name} {seed} {batch}")
        inputs = [subject.make(rng) for _ in range(min(BATCH, count - batch * BATCH))]
        before = time.thread_time()
        for data in inputs:
            one(subject, data, result)
        if time.thread_time() - before > SECONDS_EACH:
            for data in inputs:
                before = time.thread_time()
                one(subject, data, Result(""))
                took = time.thread_time() - before
                result.slowest = max(result.slowest, took)
                if took > SECONDS_EACH:
                    result.crashes.append(Crash(data, f"{took:.2f} s"))
        if batch * BATCH % MEASURED_EVERY == 0:
            measured(subject, inputs[0], result)
            before = time.thread_time()
            one(subject, inputs[-1], Result(""))
            result.slowest = max(result.slowest, time.thread_time() - before)
        if len(result.crashes) >= 100 or until():
            break
    subject.close()
    result.seconds = time.monotonic() - started
    return result
