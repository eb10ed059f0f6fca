"""By hand: ./dev coverage. Branch coverage of what must lose nothing; below 100 % is a failure.

That is the modules of MODULES, and of all others the functions that write a node down and read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = (
    "bb_edge/wire/envelope*.py",
    "bb_edge/wire/codecs.py",
    "bb_edge/wire/forms.py",
    "bb_edge/wire/cbor.py",
    "bb_edge/wire/dedup.py",
    "bb_edge/wire/outbox*.py",
    "bb_edge/wire/durable_*.py",
    "bb_edge/wire/marks.py",
    "bb_edge/state/*.py",
    "bb_edge/engine/callbacks.py",
    "bb_edge/adoption.py",
    "bb_edge/engine/net/ahead.py",
    "bb_edge/engine/net/durable.py",
    "bb_edge/components/parameter_adoption.py",
    "bb_edge/engine/net/former_*.py",
    "bb_edge/engine/net/journal.py",
    "bb_edge/engine/net/marks*.py",
    "bb_edge/engine/net/never_left.py",
    "bb_edge/engine/net/records.py",
    "bb_edge/engine/net/writing.py",
    "bb_edge/engine/older_snapshots.py",
    "bb_edge/engine/plain.py",
    "bb_edge/engine/snapshot.py",
    "bb_edge/engine/net/units.py",
    "bb_edge/engine/net/until_snapshot.py",
    "bb_edge/engine/run/naming.py",
    "bb_edge/engine/run/saved_waiting.py",
)
SAVED = ("bb_edge/engine/", "bb_edge/syscalls/", "bb_edge/wire/")
SAVED_BY = {"save", "restore", "restored"}
"""Whoever owns a part of a node writes it down and reads it: these functions, in whatever module here."""
ENGINE = "tests/bb_edge/engine"
# Two processes that take about as long as each other.
TESTS = (
    (
        *("tests/bb_edge/wire", "tests/bb_edge/state", f"{ENGINE}/test_saved.py"),
        *(f"{ENGINE}/test_journal.py", f"{ENGINE}/test_until_snapshot.py"),
        *(f"{ENGINE}/test_shared_on_disk.py", f"{ENGINE}/test_fan_out.py"),
        *(f"{ENGINE}/test_failed_answers.py", f"{ENGINE}/test_ahead.py"),
        f"{ENGINE}/test_enclosed_rows.py",
    ),
    (
        *(f"{ENGINE}/test_durable.py", f"{ENGINE}/test_durable_corners.py"),
        *(f"{ENGINE}/test_durable_sends.py", f"{ENGINE}/test_durable_receipts.py"),
        *(f"{ENGINE}/test_durable_room.py", f"{ENGINE}/test_durable_repetitions.py"),
        *(f"{ENGINE}/test_marks.py", f"{ENGINE}/test_older_states.py", f"{ENGINE}/test_known_peers.py"),
        *(f"{ENGINE}/test_durable_missing.py", f"{ENGINE}/test_durable_rounds.py"),
        f"{ENGINE}/test_older_snapshots.py",
        *(f"tests/bb_edge/test_{name}.py" for name in ("adoption", "adoption_rows", "adopted_records")),
        *(f"{ENGINE}/test_former_sites.py", f"{ENGINE}/test_former_records.py"),
        *("tests/bb_edge/components/test_parameter_adoption.py", "tests/bb_edge/cli/test_adopt.py"),
        *(f"{ENGINE}/test_durable_restarts.py", f"{ENGINE}/test_replay.py"),
        *(f"{ENGINE}/test_snapshot_round_trip.py", f"{ENGINE}/test_snapshot_refused.py"),
        *(f"{ENGINE}/test_restart_asks.py", f"{ENGINE}/test_restart_components.py"),
        *(f"{ENGINE}/test_net_saved.py", "tests/wrong_programs/test_component_state.py"),
    ),
)
SETTINGS = """
[run]
branch = true
source = bb_edge
parallel = true
data_file = {folder}/data
[report]
exclude_also =
    if TYPE_CHECKING:
    \\.\\.\\.$
    raise AssertionError
"""


def main(arguments: list[str]) -> int:
    """Runs the tests that belong to the modules, then reports; further arguments go to pytest."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "coverage.ini"
        settings.write_text(SETTINGS.format(folder=folder))

        def coverage(command: str, *more: str) -> subprocess.Popen[bytes]:
            line = [sys.executable, "-m", "coverage", command, f"--rcfile={settings}", *more]
            return subprocess.Popen(line, cwd=ROOT, env=env)

        # What it leaves out takes most of the time, and comes by nothing that the others do not.
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not crash_at_any_write")
        running = [coverage("run", *pytest, *tests, *arguments) for tests in TESTS]
        codes = [process.wait() for process in running]
        codes.append(coverage("combine", "--quiet").wait())
        report = ("--include", ",".join(MODULES), "--show-missing", "--fail-under=100", "--precision=1")
        codes.append(coverage("report", *report).wait())
        found = Path(folder) / "coverage.json"
        codes.append(coverage("json", "--quiet", "-o", str(found)).wait())
        codes.append(report_saved(json.loads(found.read_text())) if found.is_file() else 1)
    return next((code for code in codes if code), 0)


def report_saved(found: dict[str, Any]) -> int:
    """Names the functions of SAVED_BY that tests do not cover whole; 1 where there are some, or none."""
    count, missing = 0, []
    for path, module in found["files"].items():
        for name, function in module["functions"].items():
            if path.startswith(SAVED) and name.rpartition(".")[2] in SAVED_BY:
                count += 1
                lines = [*function["missing_lines"], *(line for line, _ in function["missing_branches"])]
                missing += [f"{path}: {name}, lines {sorted(set(lines))}"] if lines else []
    print(f"{count - len(missing)} of {count} functions that save and restore are covered")
    print(*missing, sep="\n")
    return 1 if missing or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
