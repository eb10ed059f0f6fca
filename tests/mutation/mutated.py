"""By hand: ./dev mutate [--module NAME...] [--jobs N] [--keep FOLDER]. Changes one thing: does a test notice?

mutmut makes the mutants and runs, for each, the tests that come by the changed function. It works in a copy
of the checkout, because it writes all mutants of a file into the file. Only bodies of functions are changed,
none that is decorated (a classmethod is), and no constant of a module.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("bb_edge", "bb_host", "kernels", "firmware_shims", "examples", "tests", "pyproject.toml")
WIRE, STATE, ENGINE = "tests/bb_edge/wire/test_", "tests/bb_edge/state/test_", "tests/bb_edge/engine/test_"
STATES = "tests/wrong_programs/test_component_state.py"
RESTARTS = tuple(
    f"{ENGINE}{name}.py"
    for name in (
        *("snapshot_round_trip", "net_saved", "restart_asks", "restart_components", "snapshot_refused"),
        *("durable_corners", "durable_restarts"),
    )
)
ADOPTED = (
    *(f"tests/bb_edge/test_{name}.py" for name in ("adoption", "adoption_rows", "adopted_records")),
    *(f"{ENGINE}{name}.py" for name in ("former_sites", "former_records", "known_peers")),
)
PARAMETERS_ADOPTED = tuple(
    f"tests/bb_edge/components/test_{t}.py" for t in ("parameter_adoption", "optimizers")
)
LEFT_OUT = "not crash_at_any_write and not damaged_byte and not 65th"
# Quick tests only: a mutant that survives has come past all of them.
MODULES: dict[str, tuple[str, ...]] = {
    "bb_edge/wire/cbor.py": (f"{WIRE}cbor.py",),
    "bb_edge/wire/dedup.py": (f"{WIRE}dedup.py",),
    "bb_edge/wire/envelope.py": (f"{WIRE}envelope.py", f"{WIRE}envelope_refusals.py"),
    "bb_edge/wire/envelope_records.py": (f"{WIRE}envelope.py", f"{WIRE}envelope_refusals.py"),
    "bb_edge/wire/codecs.py": (f"{WIRE}codecs.py", f"{WIRE}codec_refusals.py"),
    "bb_edge/wire/forms.py": (f"{WIRE}codecs.py", f"{WIRE}codec_refusals.py"),
    "bb_edge/wire/outbox.py": (f"{WIRE}outbox.py", f"{ENGINE}shared_on_disk.py"),
    "bb_edge/wire/outbox_room.py": (f"{WIRE}outbox.py",),
    "bb_edge/wire/places.py": (f"{WIRE}places.py", f"{WIRE}peers.py"),
    **{
        f"bb_edge/wire/{name}.py": (
            *(f"{WIRE}{t}.py" for t in ("durable_protocol", "durable_rows")),
            f"{ENGINE}known_peers.py",
        )
        for name in (
            *("marks", "durable_questions", "durable_rows", "durable_flows", "durable_saved"),
            *("durable_sender", "durable_receiver"),
        )
    },
    "bb_edge/engine/callbacks.py": (f"{ENGINE}journal.py", *RESTARTS),
    "bb_edge/engine/net/journal.py": (
        *(f"{ENGINE}{name}.py" for name in ("journal", "durable", "durable_receipts", "marks", "replay")),
        *RESTARTS,
    ),
    "bb_edge/engine/plain.py": (f"{ENGINE}saved.py", f"{ENGINE}net_saved.py"),
    **{
        f"bb_edge/engine/net/{name}.py": (
            *(
                f"{ENGINE}{t}.py"
                for t in (
                    *("durable", "durable_sends", "durable_room", "durable_repetitions", "durable_receipts"),
                    *("shared_on_disk", "marks", "older_states", "failed_answers", "known_peers"),
                    *("ahead", "enclosed_rows", "durable_rounds"),
                )
            ),
            *RESTARTS,
        )
        for name in ("durable", "records", "marks", "marks_op", "writing")
    },
    "bb_edge/engine/net/ahead.py": (f"{ENGINE}ahead.py", f"{ENGINE}enclosed_rows.py", *RESTARTS),
    "bb_edge/engine/net/never_left.py": (f"{ENGINE}durable_sends.py", f"{ENGINE}shared_on_disk.py"),
    "bb_edge/engine/older_snapshots.py": (f"{ENGINE}older_snapshots.py",),
    "bb_edge/engine/snapshot.py": (
        *(f"{ENGINE}{name}.py" for name in ("replay", "durable", "shared_on_disk")),
        STATES,
        *RESTARTS,
    ),
    **{
        f"bb_edge/{name}.py": ADOPTED
        for name in ("adoption", "engine/net/former_records", "engine/net/former_sites")
    },
    "bb_edge/components/parameter_adoption.py": PARAMETERS_ADOPTED,
    "bb_edge/engine/run/naming.py": RESTARTS,
    "bb_edge/engine/net/units.py": (f"{ENGINE}net_saved.py",),
    "bb_edge/engine/net/until_snapshot.py": (f"{ENGINE}until_snapshot.py",),
    **{
        f"bb_edge/state/{name}.py": tuple(
            f"{STATE}{t}.py"
            for t in (
                *("record_framing", "store", "store_files", "store_outbox", "inventory"),
                *("removed_files", "words"),
                *("keeper", "journaling", "refusals"),
            )
        )
        for name in (
            "files",
            "inventory",
            "journaling",
            "keeper",
            "record_framing",
            "refusals",
            "segment_rows",
            "segments",
            "store",
            "writer",
        )
    },
}
SAVING = (
    *("save*", "restore*", "_restored", "_serialized", "*_row", "_tie*", "_dump*", "_load*"),
    "_again_or_lost",
)
"""What writes a part of a node down and reads it: of modules that are not in MODULES, only this counts."""


def owners() -> list[str]:
    """The other modules that save and restore something of their own."""
    places = (*sorted((ROOT / "bb_edge/engine").rglob("*.py")), ROOT / "bb_edge/syscalls/state.py")
    found = [path.relative_to(ROOT).as_posix() for path in places if "def save(" in path.read_text()]
    return [name for name in found if name not in MODULES]


MEMORY_BYTES = 4 << 30
"""Address space of the tests of a mutant: one that loops for ever ends with it, as a mutant that was noticed.

Tests and tool take some 0.5 GiB."""
SURVIVED, NO_TESTS = (0, None), (5, 33)


def main(arguments: list[str]) -> int:
    """Prints, per module, how many mutants there are, how many no test noticed, and which."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("--module", nargs="+", default=[""], help="only modules whose path contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder to work in, which is then kept")
    given = parser.parse_args(arguments)
    known = [*MODULES, *owners()]
    modules = [name for name in known if any(part in name for part in given.module)]
    if not modules:
        parser.error(f"no module of {given.module!r} in its path; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(source, folder / name)
        tests = sorted({path for name in modules for path in MODULES.get(name, (STATES, *RESTARTS))})
        (folder / "setup.cfg").write_text(settings(modules, tests))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        run = [sys.executable, "-m", "mutmut", "run", "--max-children", str(given.jobs)]
        run += [pattern for name in modules for pattern in mutants_of(name)]
        code = subprocess.run(run, cwd=folder, env=env, check=False, preexec_fn=bounded).returncode
        if code == 0:
            report(folder, modules)
    return code


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def mutants_of(module: str) -> list[str]:
    """Patterns of the names that mutmut gives to those mutants of a module that count."""
    dotted = module.removesuffix(".py").replace("/", ".")
    if module in MODULES:
        return [f"{dotted}.x*"]
    return [f"{dotted}.x{place}{name}__mutmut_*" for name in SAVING for place in ("_", "ǁ*ǁ")]


def settings(modules: list[str], tests: list[str]) -> str:
    lists = {
        "source_paths": ["bb_edge"],
        "only_mutate": modules,
        "also_copy": [name for name in COPIED if name not in ("bb_edge", "tests", "pyproject.toml")],
        "pytest_add_cli_args": ["-q", "-p", "no:cacheprovider", "-k", LEFT_OUT],
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = [f"{name}=\n" + "".join(f"    {value}\n" for value in values) for name, values in lists.items()]
    return "[mutmut]\n" + "".join(lines) + "track_dependencies=false\nuse_git_change_detection=false\n"


def report(folder: Path, modules: list[str]) -> None:
    total = noticed = 0
    survivors: list[str] = []
    print(f"\n{'module':<42} mutants  noticed")
    for name in modules:
        found = folder / "mutants" / f"{name}.meta"
        codes = json.loads(found.read_text())["exit_code_by_key"] if found.is_file() else {}
        patterns = mutants_of(name)
        codes = {key: code for key, code in codes.items() if any(fnmatchcase(key, one) for one in patterns)}
        bad = {key: code for key, code in codes.items() if code in (*SURVIVED, *NO_TESTS)}
        survivors += [key + (" (no test)" if code in NO_TESTS else "") for key, code in bad.items()]
        share = f"{1 - len(bad) / len(codes):.1%}" if codes else "none"
        print(f"{name:<42} {len(codes):7}  {len(codes) - len(bad):7}  {share}")
        total, noticed = total + len(codes), noticed + len(codes) - len(bad)
    print(f"{'all':<42} {total:7}  {noticed:7}  {noticed / max(total, 1):.1%}\n")
    print("\n".join(survivors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
