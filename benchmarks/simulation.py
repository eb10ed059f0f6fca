"""What simulated clients cost: memory of one that is idle and of one that is asked, and time by their number.

    PYTHONPATH=.:examples python -m benchmarks.simulation
    PYTHONPATH=.:examples python -m benchmarks.simulation --net cnn --most 1000

Digits; each client draws 64 of them by seed and number. A hundred clients are asked per round, for two
rounds (`--rounds`) of two steps. Each line is a run with one worker, which is a process of its own: its peak
memory is the run's, and time is that of the processor, from the worker's start to its end. An idle client is
what runs of more clients take more, of which as many are asked; one that was asked is what runs take more
that ask more of as many. Jitter: all of 1,000 clients, with and without 50 ms.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import Compiler
from bb_host.build import build_edge
from bb_host.simulate import Dealt, Group, Rule, Scenario, simulate
from bb_host.simulate.scenario import MS
from benchmarks.accuracy import image, net
from federated_digits import data
from federated_digits.federation import BATCH, FederatedDigits

ASKED, ROUNDS, STEPS = 100, 2, 2
SIZES = (100, 1_000, 10_000)
PAIRS = 3
"""Of runs with and without jitter; the median of their ratios counts."""


class Cost(NamedTuple):
    """Of one run: seconds of the worker's processor and ours, peak bytes of the worker, and who woke."""

    seconds: float
    peak: int
    woke: int


class Bench:
    """The programs and data of one kind of net, in a folder."""

    def __init__(self, kind: str, folder: Path, rounds: int = ROUNDS) -> None:
        self.kind, self.rounds = kind, rounds
        x, y = data.load_digits()
        pixels = x if kind == "mlp" else image(x)
        self._train, self._test = folder / "train.npz", folder / "test.npz"
        np.savez(self._train, x=pixels[:1500], y=y[:1500])
        np.savez(self._test, x=pixels[1500:], y=y[1500:])
        self._built: dict[int, dict[str, bytes]] = {}

    def _artifacts(self, asked: int) -> dict[str, bytes]:
        if asked not in self._built:
            compiler = (
                Compiler()
                .bind_model("model", GraphModel, net(self.kind))
                .bind_aggregator("agg", FedAvg)
                .bind_peer_selector("clients", PresenceSelector)
                .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": data.CLASSES})
                .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": data.CLASSES})
            )
            module = FederatedDigits(rounds=self.rounds, clients=asked, local_steps=STEPS)
            self._built[asked] = {a.target: a.data for a in build_edge(module, compiler).artifacts}
        return self._built[asked]

    def run(self, clients: int, asked: int, jitter_ns: int = 0) -> Cost:
        """One run with one worker."""
        files = self._artifacts(asked)
        scenario = Scenario(
            (
                Group("Server", "Server", files["Server"], 1, large=True),
                Group("Client", "Client", files["Client"], clients),
            ),
            jitter_ns=jitter_ns,
            settings={"test": {"path": str(self._test)}},
            dealt=(Dealt("shard", self._train, Rule.parse("draw:64")),),
        )
        began = _processor_s()
        outcome = simulate(scenario)
        (peak,) = outcome.peak_rss
        return Cost(_processor_s() - began, peak, outcome.awake - 1)


def _processor_s() -> float:
    """Seconds of processor of this process, and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="benchmarks.simulation", description="What simulated clients cost.")
    p.add_argument("--net", choices=("mlp", "cnn"), default="mlp")
    p.add_argument("--most", type=int, default=SIZES[-1], help="clients of the largest run (10,000)")
    p.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each run ({ROUNDS})")
    p.add_argument("--times-only", action="store_true", help="neither memory nor jitter")
    a = p.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(a.net, Path(folder), a.rounds)
        costs = {}
        for clients in (size for size in SIZES if size <= a.most):
            cost = costs[clients] = bench.run(clients, ASKED)
            print(
                f"{clients:>6,} clients, {ASKED} asked in {a.rounds} rounds: "
                f"{cost.seconds:6.2f} s of processor, {cost.woke} woke, {cost.peak / 2**20:.1f} MiB, "
                f"{1e3 * cost.seconds / (ASKED * a.rounds):.1f} ms per answer",
                flush=True,
            )
        if a.times_only:
            return 0
        few, many = min(costs), max(costs)
        more = costs[many].woke - costs[few].woke
        half = bench.run(1_000, ASKED // 2)
        full = costs.get(1_000) or bench.run(1_000, ASKED)
        asked = (full.peak - half.peak) / (full.woke - half.woke)
        print(f"per client that was asked: {asked / 2**20:.2f} MiB")
        idle = (costs[many].peak - costs[few].peak - more * asked) / (many - few - more)
        print(f"per idle client: {idle / 1000:.1f} kB")
        ratios = []
        for _ in range(PAIRS):
            plain, shaken = bench.run(1_000, 1_000), bench.run(1_000, 1_000, 50 * MS)
            ratios.append(shaken.seconds / plain.seconds)
        print(f"50 ms of jitter, 1,000 clients all asked: {median(ratios):.2f} x of without")
    return 0


if __name__ == "__main__":
    sys.exit(main())
