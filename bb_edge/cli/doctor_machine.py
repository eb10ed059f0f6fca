"""What `bb-edge doctor` looks at on the machine itself: versions, board, interpreters, state folder.

Nothing is changed: the probe file in the state folder is removed. Each installed TFLite interpreter runs a
small model in a process of its own, so that a build for another processor, which kills its process, is only a
finding.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bb_edge import __version__
from bb_edge.cli.findings import FAILED, OK, SKIPPED, WARNING, Finding, guarded, mib

PROBE_FILE = "doctor-probe"
LITTLE_MEMORY = 96 * 1024 * 1024
"""Bytes of memory below which there is a warning: a node with NumPy and a small program takes 50 MB."""
LITTLE_SPACE = 32 * 1024 * 1024
"""Bytes of disk below which there is a warning: two snapshots and an outbox of a small program."""
PACKAGES = ("numpy", "protobuf", "cbor2", "paho-mqtt")
PROBE_SECONDS = 120.0
"""Seconds for an interpreter to load and run a tiny model; an SD card or an emulated board is slow."""


def versions() -> Finding:
    from importlib import metadata  # slow to import, and every verb imports this module

    from google.protobuf.internal import api_implementation

    versions: dict[str, object] = {"bb-edge": __version__, "python": platform.python_version()}
    missing = []
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    implementation = str(api_implementation.Type())
    versions["protobuf implementation"] = implementation
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if " " not in name)
    if missing:
        return Finding("versions", FAILED, f"{text}; missing: {', '.join(missing)}", versions)
    if implementation == "python":
        slow = "protobuf in pure Python: loading is slower, running is not"
        return Finding("versions", OK, f"{text}; {slow}", versions)
    return Finding("versions", OK, text, versions)


def board() -> Iterator[Finding]:
    from bb_shims import BoardError, WatchdogError, detect

    try:
        board = detect()
    except (BoardError, WatchdogError) as error:
        yield Finding("board", FAILED, str(error))
        return
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding(
        "board", OK, f"{board.model} ({board.name}), {kernel}", {"name": board.name, "model": board.model}
    )
    if board.clock.wall_is_set():
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
    else:
        yield Finding(
            "clock", WARNING, "the wall clock was never set: certificates will not verify, logs have no dates"
        )

    def memory() -> Finding:
        info = board.memory.info()
        text = f"{mib(info.available_bytes)} of {mib(info.limit_bytes)} available ({info.source})"
        status = OK if info.available_bytes >= LITTLE_MEMORY else WARNING
        return Finding("memory", status, text, asdict(info))

    def heat() -> Finding:
        celsius = board.thermal.celsius()
        return Finding(
            "temperature",
            OK if celsius is not None else SKIPPED,
            f"{celsius:.0f} °C" if celsius is not None else "no sensor",
            {"celsius": celsius},
        )

    def power() -> Finding:
        status = board.power.status()
        known = {name: value for name, value in asdict(status).items() if value is not None}
        bad = [name for name, value in known.items() if value is True]
        if bad:
            return Finding("power", WARNING, ", ".join(bad).replace("_", " "), known)
        text = status.mode or ("fine" if known else "this board does not report it")
        return Finding("power", OK if known else SKIPPED, text, known)

    yield guarded("memory", memory)
    yield guarded("power", power)
    yield guarded("temperature", heat)
    if board.watchdog is None:
        yield Finding("watchdog", SKIPPED, "not started by a service manager with WatchdogSec=")
    else:
        yield Finding("watchdog", OK, f"the service manager's, {board.watchdog.timeout_ns / 1e9:.0f} s")
    if board.notifier is not None:
        board.notifier.close()


def interpreters() -> Finding:
    from importlib import metadata, util

    from bb_edge.backends.tflite.probe import INTERPRETERS

    used = ""
    broken = []
    outcomes: dict[str, object] = {}
    texts = []
    for module, package in INTERPRETERS:
        try:
            there = util.find_spec(module) is not None
        except (ImportError, ValueError):
            there = False
        if not there:
            outcomes[package] = {"outcome": "not installed"}
            continue
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "of unknown version"
        wrong = _probe_apart(module)
        outcome = wrong or ("spare" if used else "used")
        outcomes[package] = {"version": version, "outcome": outcome}
        if wrong:
            broken.append(package)
            texts.append(f"{package} {version} does not run ({wrong})")
        elif used:
            texts.append(f"{package} {version} would run too")
        else:
            used = package
            texts.append(f"{package} {version} is used")
    data: dict[str, object] = {"used": used or "numpy", "interpreters": outcomes}
    if not texts:
        return Finding("interpreters", OK, "no TFLite interpreter: programs run on NumPy", data)
    if not used:
        texts.append("programs run on NumPy; those of `--backend tflite` do not run")
    numpy_major = int(metadata.version("numpy").partition(".")[0])
    if "tflite-runtime" in broken and not used and numpy_major >= 2:
        texts.append("tflite-runtime needs numpy below 2: pip install 'numpy<2', or ai-edge-litert")
    return Finding("interpreters", WARNING if broken else OK, "; ".join(texts), data)


def _probe_apart(module: str) -> str:
    """Runs an interpreter in another process; returns why it does not work here, or an empty text."""
    import signal
    import subprocess

    code = f"from bb_edge.backends.tflite.probe import attempt; print('outcome:', attempt({module!r})[1])"
    places = os.pathsep.join(place or os.curdir for place in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": places},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode < 0:
        try:
            return f"it is killed by {signal.Signals(-done.returncode).name}"
        except ValueError:
            return f"it is killed by signal {-done.returncode}"
    _, mark, outcome = done.stdout.decode("utf-8", "replace").rpartition("outcome:")
    if mark:
        return outcome.strip()
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def storage(folder: Path) -> Finding:
    from bb_edge.cli.kept import check_folder, trial_folder

    check_folder(folder, "--state")
    if folder.exists():
        return _written(folder, folder)
    with trial_folder(folder) as trial:
        return _written(trial, folder)


def _written(place: Path, folder: Path) -> Finding:
    """Writes to `place`, which stands for the folder, and measures it."""
    from bb_edge.cli.kept import in_use
    from bb_shims import StorageError, open_folder

    try:
        storage = open_folder(place)
    except StorageError as error:
        running = in_use(error)
        detail = f"{folder} is in use by a running node" if running else str(error)
        return Finding("storage", WARNING if running else FAILED, detail, {"in_use": running})
    try:
        began = time.perf_counter()
        storage.write_atomic(PROBE_FILE, b"probe")
        written_ms = (time.perf_counter() - began) * 1e3
        same = storage.read(PROBE_FILE) == b"probe"
        storage.remove(PROBE_FILE)
        free = storage.free_bytes()
    except StorageError as error:
        return Finding("storage", FAILED, str(error))
    finally:
        storage.close()
    if not same:
        return Finding("storage", FAILED, f"{folder}: a file read back differs from what was written")
    text = f"{folder} is writable, {mib(free)} free, a synced write takes {written_ms:.1f} ms"
    data: dict[str, object] = {"free_bytes": free, "write_ms": round(written_ms, 3)}
    return Finding("storage", OK if free >= LITTLE_SPACE else WARNING, text, data)
