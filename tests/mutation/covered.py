"""By hand: ./dev coverage. Branch coverage of what must lose nothing; below 100 % is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = (
    "bb_edge/wire/envelope*.py",
    "bb_edge/wire/codecs.py",
    "bb_edge/wire/cbor.py",
    "bb_edge/wire/dedup.py",
    "bb_edge/wire/outbox.py",
    "bb_edge/state/*.py",
    "bb_edge/engine/journal.py",
    "bb_edge/engine/durable.py",
    "bb_edge/engine/saved.py",
    "bb_edge/engine/snapshot*.py",
)
TESTS = (
    "tests/bb_edge/wire",
    "tests/bb_edge/state",
    "tests/bb_edge/engine",
    "tests/bb_edge/components",
    "tests/fuzz",
)


def main(arguments: list[str]) -> int:
    """Runs the tests that belong to the modules, then reports; further arguments go to pytest."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "coverage.ini"
        settings.write_text(
            "[run]\nbranch = true\nsource = bb_edge\n"
            f"data_file = {folder}/data\n"
            "[report]\nexclude_also =\n    if TYPE_CHECKING:\n    \\.\\.\\.$\n    raise AssertionError\n"
        )
        run = [sys.executable, "-m", "coverage"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        tests = subprocess.run(
            [*run, "run", f"--rcfile={settings}", "-m", "pytest", "-q", *TESTS, *arguments],
            cwd=ROOT,
            env=env,
            check=False,
        ).returncode
        report = subprocess.run(
            [
                *(*run, "report", f"--rcfile={settings}", "--include", ",".join(MODULES)),
                *("--show-missing", "--fail-under=100", "--precision=1"),
            ],
            cwd=ROOT,
            env=env,
            check=False,
        ).returncode
    return tests or report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
