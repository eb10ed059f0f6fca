"""CPU time against another checkout: `python benchmarks/against.py FOLDER [--only GROUP] [--pairs N]`.

A process per checkout does each act in turn with the other, so that both meet the same load of the machine
(benchmarks/acts.py). Each line is CPU time in milliseconds: the least of both sides, the ratio of the two,
and the median of the pairs' ratios. Where the two ratios differ much, the machine was busy.
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
    parser.add_argument("--only", action="append", choices=sorted(GROUPS), help="repeatable; default: all")
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args(words)
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
