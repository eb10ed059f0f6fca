"""Compile times against another checkout: `python benchmarks/against.py FOLDER`.

A process per checkout compiles in turn with the other, so that both meet the same load of the machine. Each
line is CPU time in milliseconds: the fastest of both sides, the ratio of the fastest, and the median of the
pairs' ratios. Where the two ratios differ much, the machine was busy.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 30
ACTS = ("federation", "layers", "model", "record_layers", "record_federation", "edge")

WORKER = """
import gc, os, sys, time, warnings
root = sys.argv[1]
os.chdir(root)
sys.path[:0] = [root, *(f"{root}/{folder}" for folder in ("kernels", "firmware_shims", "examples"))]
warnings.simplefilter("ignore")
from benchmarks.compile import OPS, Layers, federation
from bb_host import Compiler
from bb_host.edge.target import build_edge
from bb_host.program_proto import to_proto
from federated_digits.federation import program as digits
program, compiler = federation(OPS)
layers, (module, binds) = Layers(OPS).record(), digits()
model = to_proto(layers)
acts = {
    "federation": lambda: compiler.run(program),
    "layers": lambda: Compiler().run(layers),
    "model": lambda: Compiler().compile(model),
    "record_layers": lambda: Layers(OPS).record(),
    "record_federation": module.record,
    "edge": lambda: build_edge(module, binds),
}
for act in acts.values():
    act()
for line in sys.stdin:
    gc.collect()
    began = time.process_time_ns()
    acts[line.strip()]()
    print(time.process_time_ns() - began, flush=True)
"""


def main(other: Path) -> None:
    sides = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for root in (other.resolve(), ROOT)
    ]

    def sample(side: subprocess.Popen[str], act: str) -> float:
        assert side.stdin is not None and side.stdout is not None
        side.stdin.write(f"{act}\n")
        side.stdin.flush()
        return int(side.stdout.readline()) / 1e6

    for act in ACTS:
        pairs = []
        for number in range(PAIRS):
            order = (0, 1) if number % 2 else (1, 0)
            times = {side: sample(sides[side], act) for side in order}
            pairs.append((times[0], times[1]))
        there, here = (min(pair[side] for pair in pairs) for side in (0, 1))
        median = statistics.median(b / a for a, b in pairs)
        times = f"there {there:8.2f} ms  here {here:8.2f} ms"
        print(f"{act:18} {times}  ratio {here / there:.3f}  median {median:.3f}", flush=True)
    for side in sides:
        side.communicate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
