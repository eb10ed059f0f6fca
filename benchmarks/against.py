"""CPU time against another checkout: `python benchmarks/against.py FOLDER [--only GROUP] [--pairs N]`.

A process per checkout does each act in turn with the other, so that both meet the same load of the machine
(benchmarks/acts.py). Each line is CPU time in milliseconds: the least of both sides, the ratio of the two,
and the median of the pairs' ratios. Where the two ratios differ much, the machine was busy.

`--only federated_round` has whole federations of both checkouts in turns instead, each with and without
`--durable` (benchmarks/federated_round.py): milliseconds of a round, how many times as long a durable one
takes, and how often the server and a client sync in it. It needs mosquitto, and half a minute per pair.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.acts import FOLDERS, GROUPS  # noqa: E402

FEDERATED = "federated_round"


class Side:
    """The acts of one group, by the packages of one checkout."""

    def __init__(self, root: Path, group: str) -> None:
        script = str(ROOT / "benchmarks" / "acts.py")
        # On shared cores, BLAS threads measure each other.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(str(root / folder) for folder in FOLDERS)
        words = [sys.executable, "-c", _RUN, script, str(root), group]
        self._process = subprocess.Popen(
            words, cwd=root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.acts = [name for name in self._line().split("\t") if name]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def sample(self, act: str) -> float:
        """Milliseconds of CPU time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{act}\n")
        self._process.stdin.flush()
        return int(self._line()) / 1e6

    def end(self) -> None:
        self._process.communicate()


# The file is run without its folder in front of sys.path, where `compile.py` would be a module of its own.
_RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


# By each checkout's own benchmark: with and without durable envelopes, in one process with one broker.
FEDERATIONS = """
import itertools, statistics, tempfile
from pathlib import Path
from benchmarks import federated_round as fr
with tempfile.TemporaryDirectory() as folder:
    job = fr.prepare(Path(folder))
    try:
        for command in (fr.edge_command, fr.durable_command):
            life = fr.federate(job, command, fr.ROUNDS, fr.CLIENTS)
            times = itertools.pairwise(life.times[fr.WARM_UP + 1 :])
            syncs = [life.syncs.get(name, 0) / fr.ROUNDS for name in ("server", "client-0")]
            print(statistics.median(b - a for a, b in times) * 1e3, *syncs)
    finally:
        job.broker.stop()
"""


def _federations(root: Path) -> tuple[float, float, float, float]:
    """Milliseconds of a round and of a durable one, and its synced calls at the server and a client."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / folder) for folder in FOLDERS)}
    words = [sys.executable, "-c", FEDERATIONS]
    done = subprocess.run(words, cwd=root, env=env, stdout=subprocess.PIPE, text=True, check=True)
    plain, durable = (line.split() for line in done.stdout.splitlines())
    return float(plain[0]), float(durable[0]), float(durable[1]), float(durable[2])


def federated(other: Path, pairs: int) -> Iterator[str]:
    """A line per checkout."""
    runs: dict[str, list[tuple[float, float, float, float]]] = {"there": [], "here": []}
    for number in range(pairs):
        for name in ("there", "here") if number % 2 else ("here", "there"):
            runs[name].append(_federations(other if name == "there" else ROOT))
    for name, found in runs.items():
        plain, durable, server, client = zip(*found, strict=True)
        ratios = " ".join(f"{b / a:.2f}" for a, b in zip(plain, durable, strict=True))
        yield (
            f"{name:6} a round {min(plain):6.2f} ms  durable {min(durable):6.2f} ms"
            f"  ratio {min(durable) / min(plain):.2f}"
            f"  median {statistics.median(durable) / statistics.median(plain):.2f}  each {ratios}"
            f"  syncs {statistics.median(server):.2f} and {statistics.median(client):.2f}"
        )


@contextmanager
def sides(other: Path, group: str) -> Iterator[tuple[Side, Side]]:
    """The other checkout, and this one."""
    there, here = Side(other, group), Side(ROOT, group)
    try:
        yield there, here
    finally:
        there.end()
        here.end()


def compared(there: Side, here: Side, act: str, pairs: int) -> str:
    """One line."""
    times = []
    for number in range(pairs):
        if number % 2:
            times.append((there.sample(act), here.sample(act)))
        else:
            second = here.sample(act)
            times.append((there.sample(act), second))
    old, new = (min(column) for column in zip(*times, strict=True))
    median = statistics.median(b / a for a, b in times)
    return f"{act:36} there {old:8.2f} ms  here {new:8.2f} ms  ratio {new / old:.3f}  median {median:.3f}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a checkout of an older commit")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted([*GROUPS, FEDERATED]),
        help="repeatable; default: all but that one",
    )
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args(words)
    if FEDERATED in (arguments.only or ()):
        for line in federated(arguments.folder.resolve(), arguments.pairs):
            print(line, flush=True)
    for group in GROUPS:
        if arguments.only and group not in arguments.only:
            continue
        print(f"\n{group}", flush=True)
        with sides(arguments.folder.resolve(), group) as (there, here):
            for act in here.acts:
                if act in there.acts:
                    print(compared(there, here, act, arguments.pairs), flush=True)


if __name__ == "__main__":
    main()
