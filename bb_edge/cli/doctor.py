"""The verb `bb-edge doctor`: says whether this machine can run a node, and what it lacks.

Nothing is changed: the probe file in the state folder is removed, and the session at the broker leaves
nothing behind. Each installed TFLite interpreter runs a small model in a process of its own, so that a build
for another processor, which kills its process, is only a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge import __version__
from bb_edge.cli.arguments import file_name
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.run_config import RunConfig

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
PROBE_FILE = "doctor-probe"
LITTLE_MEMORY = 96 * 1024 * 1024
"""Bytes of memory below which there is a warning: a node with NumPy and a small program takes 50 MB."""
LITTLE_SPACE = 32 * 1024 * 1024
"""Bytes of disk below which there is a warning: two snapshots and an outbox of a small program."""
PACKAGES = ("numpy", "protobuf", "cbor2", "paho-mqtt")
PROBE_SECONDS = 120.0
"""Seconds for an interpreter to load and run a tiny model; an SD card or an emulated board is slow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `status` is `ok`, `warning`, `failed` or `skipped`."""

    check: str
    status: str
    detail: str
    data: dict[str, object] = field(default_factory=dict)


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "doctor", help="check this machine: board, clock, memory, storage, broker, interpreters, versions"
    )
    p.add_argument(
        "--config", type=file_name, metavar="FILE", help="take broker, state and peer from this file"
    )
    p.add_argument("--broker", metavar="URL", help="connect to this broker, and measure a round trip")
    p.add_argument("--ca", metavar="FILE", help="certificate authority of an mqtts broker")
    p.add_argument("--cert", metavar="FILE", help="client certificate")
    p.add_argument("--key", metavar="FILE", help="key of the client certificate")
    p.add_argument(
        "--peer", metavar="NAME", help="the node's name; its peer id is shown, and used at the broker"
    )
    p.add_argument("--state", type=file_name, metavar="FOLDER", help="try to write to this folder")
    add_load(p)
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints all findings. Returns 0 if nothing failed, else 1."""
    findings = []
    for finding in examine(arguments):
        findings.append(finding)
        if not arguments.json:
            print(f"{finding.status:8} {finding.check:13} {finding.detail}", flush=True)
    failed = list(dict.fromkeys(finding.check for finding in findings if finding.status == FAILED))
    if arguments.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in findings]}))
    elif failed:
        print(f"bb-edge: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Makes all checks, and yields each finding at once."""
    from dataclasses import replace

    from bb_edge.config_file import load_config
    from bb_edge.run_config import RunConfig

    yield _versions()
    yield from _board()
    yield _interpreters()
    names = ("broker", "ca", "cert", "key", "peer", "state")
    flags = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    config = RunConfig()
    if arguments.config is None:
        config = replace(config, load=tuple(arguments.load), **flags)
        for name in config.load:
            yield _guarded("components", partial(_component, name))
    else:
        try:
            config = load_config(arguments.config)
        except BBError as error:
            yield Finding("configuration", FAILED, str(error))
            config = replace(config, **flags)
        else:
            config = replace(config, load=(*config.load, *arguments.load), **flags)
            yield from _configuration(config, arguments.config)
    peer = PeerId.from_name(config.peer) if config.peer is not None else None
    if peer is not None:
        yield Finding("identity", OK, f"{config.peer} is {peer}", {"peer": config.peer, "peer_id": str(peer)})
    folder = config.state or os.environ.get("STATE_DIRECTORY")
    yield (
        _guarded("storage", lambda: _storage(Path(str(folder).partition(":")[0])))
        if folder
        else Finding("storage", SKIPPED, "no folder is named (--state)")
    )
    if config.broker is None:
        yield Finding("broker", SKIPPED, "no broker is named (--broker)")
        return
    yield _guarded("broker", lambda: _broker(config, peer))
    if peer is not None and config.artifact is not None:
        yield _guarded("access rules", lambda: _rules(config, peer))


def _configuration(config: RunConfig, path: Path) -> Iterator[Finding]:
    """Makes a dry run of the configuration, as `bb-edge check --config` does: a finding per refusal."""
    from bb_edge.cli.launch import dry_run
    from bb_edge.cli.run_settings import with_state

    warnings: list[str] = []

    def log(level: str, message: str, **more: object) -> None:
        if level in (
            "warning",
            "error",
        ):  # an error that refuses nothing: the state folder has lost something
            warnings.append(message)

    refusals = dry_run(with_state(config), log)
    for warning in warnings:
        yield Finding("configuration", WARNING, f"{path}: {warning}")
    for refusal in refusals:
        yield Finding("configuration", FAILED, f"{path}: {refusal}")
    if not refusals and config.artifact is not None:
        yield Finding("configuration", OK, f"{path}: {config.artifact.name} would run")


def _component(name: str) -> Finding:
    load_all((name,))
    return Finding("components", OK, f"loaded {name}", {"load": [name]})


def _guarded(check: str, look: Callable[[], Finding]) -> Finding:
    """Runs a check; our own errors become its finding."""
    from bb_shims import ShimError

    try:
        return look()
    except (BBError, ShimError, OSError) as error:
        return Finding(check, FAILED, str(error))


def _versions() -> Finding:
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


def _board() -> Iterator[Finding]:
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
        text = f"{_mib(info.available_bytes)} of {_mib(info.limit_bytes)} available ({info.source})"
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

    yield _guarded("memory", memory)
    yield _guarded("power", power)
    yield _guarded("temperature", heat)
    if board.watchdog is None:
        yield Finding("watchdog", SKIPPED, "not started by a service manager with WatchdogSec=")
    else:
        yield Finding("watchdog", OK, f"the service manager's, {board.watchdog.timeout_ns / 1e9:.0f} s")
    if board.notifier is not None:
        board.notifier.close()


def _interpreters() -> Finding:
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


def _storage(folder: Path) -> Finding:
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
        return Finding("storage", WARNING if running else FAILED, detail)
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
    text = f"{folder} is writable, {_mib(free)} free, a synced write takes {written_ms:.1f} ms"
    data: dict[str, object] = {"free_bytes": free, "write_ms": round(written_ms, 3)}
    return Finding("storage", OK if free >= LITTLE_SPACE else WARNING, text, data)


def _broker(config: Any, peer: PeerId | None) -> Finding:
    from bb_edge.transport.probe import FEDERATION, probe

    federation = FEDERATION if config.artifact is None else config.federation
    known = peer or PeerId.from_name("bb-edge doctor")
    report = probe(config.broker_record(), known, federation, config.mqtt_version)
    text = (
        f"{report.broker}, MQTT {report.protocol}: connected in {report.connect_ms:.1f} ms, "
        f"round trip {report.round_trip_ms:.2f} ms"
    )
    if report.max_packet_bytes is not None:
        text += f", packets up to {report.max_packet_bytes} bytes (larger envelopes go in chunks)"
    slow = report.round_trip_ms > 30 and report.broker.startswith(("mqtt://127.", "mqtt://localhost"))
    if slow:
        text += "; slow for this machine: is set_tcp_nodelay true in its configuration?"
    return Finding("broker", WARNING if slow else OK, text, asdict(report))


def _rules(config: RunConfig, peer: PeerId) -> Finding:
    """Whether the broker lets the node be what it is, and nothing else."""
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets
    from bb_edge.transport.rights import rights

    assert config.artifact is not None
    targets = chosen_targets(load(config.artifact), config.targets)
    own = {target.peer_class for target in targets}
    heard = {name for target in targets for name in target.hears or ()}
    found = rights(config.broker_record(), peer, config.federation, own, heard, config.mqtt_version)
    data = asdict(found)
    if found.lacking:
        return Finding(
            "access rules", FAILED, f"the broker does not let this node {', '.join(found.lacking)}", data
        )
    if not found.told:
        return Finding("access rules", SKIPPED, "MQTT 3.1.1 tells nobody what is refused", data)
    write = "bb-host acl writes rules"
    if not found.any_rules:
        text = f"the broker has none: every client may be any peer of any class ({write})"
        return Finding("access rules", WARNING, text, data)
    if found.excess:
        text = f"the broker lets this node {', '.join(found.excess)} ({write})"
        return Finding("access rules", WARNING, text, data)
    text = f"this node may be a {' and a '.join(sorted(own))}, and neither another peer nor of another class"
    return Finding("access rules", OK, text, data)


def _mib(count: int) -> str:
    return f"{count / (1024 * 1024):,.0f} MiB"
