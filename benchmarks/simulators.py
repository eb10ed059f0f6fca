"""A client-round of `bb-host simulate` beside Flower's simulation on Ray and pfl-research, in turns.

    PYTHONPATH=.:examples python -m benchmarks.simulators --make FOLDER    # an environment with both, once
    PYTHONPATH=.:examples python -m benchmarks.simulators --env FOLDER [--net mlp cnn] [--clients 100 1000]
    PYTHONPATH=.:examples python -m benchmarks.simulators --env FOLDER --by-round --rounds 60 ...

Digits; each client draws 64 of them with replacement and takes two steps of plain gradient descent in batches
of 32; all clients answer in every round; the server averages by rows and scores 360. The layers are the same,
the first numbers are not: each side draws its own. Seconds are those of a round, the median of all but the
first, by the number of clients. Memory is the most that all processes of a side have had together: what
several of them share counts once (PSS). Processor seconds are those of all processes of a side, too: they say
more where a machine has other work. With `--by-round`, rounds of this project and of pfl-research take turns
on one core, and each is compared with its neighbour. Flower and this project have two workers, pfl-research
is one process, beside which this project has one worker too. Everybody's tensors run on one thread per
worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.measuring import ROOT, Row, table
from federated_digits import data

RIVALS = ROOT / "benchmarks" / "simulators_rivals.py"
PACKAGES = ("flwr[simulation]==1.42.0", "pfl==0.6.0")
TORCH = "torch==2.13.0"
EVERY_S = 0.2
GOALS = {("flower", "mlp"): 0.15, ("flower", "cnn"): 0.15, ("pfl", "mlp"): 0.5, ("pfl", "cnn"): 1.0}
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class Cost(NamedTuple):
    """Of one run: seconds of a round, of the clock and of processors; seconds until the first one ended, peak
    PSS in bytes, accuracy at the end.
    """

    seconds: float
    processor: float
    start: float
    peak: int
    accuracy: float


def make(folder: Path) -> None:
    """An environment with PyTorch, Flower and pfl-research."""
    venv.create(folder, with_pip=True)
    pip: list[str | Path] = [folder / "bin" / "pip", "install", "--quiet"]
    for packages in ((TORCH,), PACKAGES):  # PyTorch first: else another build of it comes with pfl
        subprocess.run([*pip, *packages], check=True)


def rows(kind: str, folder: Path) -> Path:
    """The digits, as rows or as images."""
    x, y = data.load_digits()
    path = folder / f"{kind}.npz"
    np.savez(path, x=x if kind == "mlp" else x.reshape(-1, 1, 8, 8), y=y)
    return path


def run(command: Sequence[str | Path], rounds: int) -> Cost:
    """Runs one side. AssertionError where it does not end all of its rounds."""
    began = time.perf_counter()
    found: list[tuple[float, float]] = []
    processor: list[float] = []
    start = 0.0
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **ONE_THREAD}
        ) as process,
        _watched(process.pid) as peak,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[") and line.rstrip().endswith("]"):
                with contextlib.suppress(ValueError):
                    number, seconds, accuracy = json.loads(line)
                    if number >= 1:  # Flower scores the model before the first round, too
                        found.append((seconds, accuracy))
                        processor.append(_processor_seconds(process.pid))
                        start = start or time.perf_counter() - began
        process.wait()
        errors.seek(0)
        assert len(found) == rounds, f"{len(found)} of {rounds} rounds: {errors.read()[-2000:]}"
    used = median(after - before for before, after in pairwise(processor))
    return Cost(median(seconds for seconds, _ in found[1:]), used, start, peak[0], found[-1][1])


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    """The most memory of a process and all that it has started, kept up to date in a list of one."""
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            peak[0] = max(peak[0], sum(map(_pss, _family(pid))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _family(pid: int) -> list[int]:
    """The process and its descendants, as far as they are still there."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:  # it grows
        found += children.get(each, [])
    return found


def _processor_seconds(pid: int) -> float:
    """What the process and its descendants used until now, those that have ended among them.

    A process's own account holds that of the children that it has waited for (proc(5): cutime, cstime), so
    that nothing goes missing as a worker ends. Read again where somebody ended meanwhile: it would count
    twice, or not at all.
    """
    while True:
        family = _family(pid)
        found = sum(map(_account, family))
        if _family(pid) == family:
            return found


def _account(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def compared(env: Path, kind: str, clients: int, rounds: int, turns: int, path: Path) -> list[Row]:
    """Both others against ours, in turns."""
    numbers = (kind, str(clients), str(rounds), str(path))
    python = env / "bin" / "python"
    own = (sys.executable, "-m", "benchmarks.simulators_ours")
    sides: dict[str, Sequence[str | Path]] = {
        "flower": (python, RIVALS, "flower", *numbers),
        "ours, two workers": (*own, *numbers, "2"),
        "pfl": (python, RIVALS, "pfl", *numbers),
        "ours, one worker": (*own, *numbers, "1"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in sides if turn % 2 == 0 else reversed(sides):
            costs[name].append(run(sides[name], rounds))
    found = []
    for rival, mine in (("flower", "ours, two workers"), ("pfl", "ours, one worker")):
        what = f"{kind}, {clients:,} clients, against {rival}"
        goal = GOALS[rival, kind]
        ms = {n: 1e3 * median(c.seconds for c in costs[n]) / clients for n in (mine, rival)}
        found.append(Row(f"{what}: a client-round", ms, "ms", ms[mine] / ms[rival], goal))
        used = {n: 1e3 * median(c.processor for c in costs[n]) / clients for n in (mine, rival)}
        found.append(Row(f"{what}: of processors", used, "ms", used[mine] / used[rival]))
        peak = {n: median(c.peak for c in costs[n]) / 2**20 for n in (mine, rival)}
        memory_goal = goal if rival == "flower" else None
        found.append(Row(f"{what}: memory", peak, "MiB", peak[mine] / peak[rival], memory_goal))
        start = {n: median(c.start for c in costs[n]) for n in (mine, rival)}
        found.append(Row(f"{what}: from the start to the first round's end", start, "s"))
        found.append(Row(f"{what}: accuracy", {n: costs[n][-1].accuracy for n in (mine, rival)}, ""))
    return found


def by_round(env: Path, kind: str, clients: int, rounds: int, path: Path) -> Row:
    """pfl-research against ours on one core, one round of each after the other.

    Both run from the start to the end, and are stopped while the other has its round: what slows a machine
    for seconds slows both. The ratio is the median of those of neighbouring rounds.
    """
    numbers = (kind, str(clients), str(rounds), str(path))
    ours = (sys.executable, "-u", "-m", "benchmarks.simulators_ours", *numbers, "1")
    theirs = (env / "bin" / "python", "-u", RIVALS, "pfl", *numbers)
    core = max(os.sched_getaffinity(0))
    took: list[list[float]] = [[], []]
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_halted(command, core)) for command in (ours, theirs)]
        for turn in range(rounds - 2):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                began = time.perf_counter()
                os.killpg(sides[side].pid, signal.SIGCONT)
                _next_round(sides[side])
                took[side].append(time.perf_counter() - began)
                os.killpg(sides[side].pid, signal.SIGSTOP)
    ms = {name: 1e3 * median(found) / clients for name, found in zip(("ours", "pfl"), took, strict=True)}
    ratio = median(own / other for own, other in zip(*took, strict=True))
    what = f"{kind}, {clients:,} clients, against pfl, round by round"
    return Row(f"{what}: a client-round", ms, "ms", ratio, GOALS["pfl", kind])


@contextlib.contextmanager
def _halted(command: Sequence[str | Path], core: int) -> Iterator[subprocess.Popen[str]]:
    """One side with its workers, on that core, stopped behind its first round."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 (no threads yet)
    ) as process:
        try:
            _next_round(process)
            os.killpg(process.pid, signal.SIGSTOP)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _next_round(process: subprocess.Popen[str]) -> None:
    """Waits until a side tells that a round has ended. AssertionError where it ends instead."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[") and line.rstrip().endswith("]") and json.loads(line)[0] >= 1:
            return
    raise AssertionError("it has ended before its rounds had")


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="benchmarks.simulators", description="Client-rounds beside others'.")
    p.add_argument("--make", type=Path, metavar="FOLDER", help="makes an environment with the others")
    p.add_argument("--env", type=Path, metavar="FOLDER", help="measures with that environment")
    p.add_argument("--net", nargs="+", choices=("mlp", "cnn"), default=["mlp", "cnn"])
    p.add_argument("--clients", nargs="+", type=int, default=[100, 1_000])
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--by-round", action="store_true", help="pfl-research alone, round by round on one core")
    a = p.parse_args(argv)
    if a.make:
        make(a.make)
    if a.env is None:
        if not a.make:
            p.error("name an environment: --env FOLDER; --make FOLDER makes one")
        return 0
    if a.rounds < 2:
        p.error("--rounds: the first is not counted, so give 2 or more")
    with tempfile.TemporaryDirectory() as folder:
        for kind in a.net:
            path = rows(kind, Path(folder))
            for clients in a.clients:
                if a.by_round:
                    print(table([by_round(a.env, kind, clients, a.rounds, path)]) + "\n", flush=True)
                    continue
                print(table(compared(a.env, kind, clients, a.rounds, a.turns, path)) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
