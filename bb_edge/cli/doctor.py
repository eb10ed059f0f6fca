"""The verb `bb-edge doctor`: says whether this machine can run a node, and what it lacks.

Nothing is changed: what is tried leaves nothing behind, and nobody logs in under a node's name unasked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.cli.findings import FAILED, OK, SKIPPED, WARNING, Finding, guarded
from bb_edge.cli.run_settings import add_certificates
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.run_config import RunConfig


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "doctor", help="check this machine: board, clock, memory, storage, broker, interpreters, versions"
    )
    p.add_argument(
        "--config", type=file_name, metavar="FILE", help="take broker, state and peer from this file"
    )
    p.add_argument("--broker", metavar="URL", help="connect to this broker, and measure a round trip")
    add_certificates(p)
    p.add_argument(
        "--peer", metavar="NAME", help="the node's name; its peer id is shown, and used at the broker"
    )
    p.add_argument("--state", type=file_name, metavar="FOLDER", help="try to write to this folder")
    p.add_argument(
        "--as-node",
        action="store_true",
        help="log in to the broker under the name of a node all the same: where it sets client ids by user"
        " name (use_username_as_clientid), this ends that node's connection and session",
    )
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

    from bb_edge.cli import doctor_broker, doctor_machine
    from bb_edge.config_file import load_config
    from bb_edge.run_config import RunConfig

    yield doctor_machine.versions()
    yield from doctor_machine.board()
    yield doctor_machine.interpreters()
    names = ("broker", "ca", "cert", "key", "peer", "state")
    flags = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    config, presence = RunConfig(), 0
    if arguments.config is None:
        config = replace(config, load=tuple(arguments.load), **flags)
        for name in config.load:
            yield guarded("components", partial(_component, name))
        yield from _certificates(config)
    else:
        try:
            config = load_config(arguments.config)
        except BBError as error:
            yield Finding("configuration", FAILED, str(error))
            config = replace(config, **flags)
        else:
            config = replace(config, load=(*config.load, *arguments.load), **flags)
            presence = yield from _configuration(config, arguments.config)
    peer = PeerId.from_name(config.peer) if config.peer is not None else None
    if peer is not None:
        yield Finding("identity", OK, f"{config.peer} is {peer}", {"peer": config.peer, "peer_id": str(peer)})
    folder = config.state or os.environ.get("STATE_DIRECTORY")
    storage = (
        guarded("storage", lambda: doctor_machine.storage(Path(str(folder).partition(":")[0])))
        if folder
        else Finding("storage", SKIPPED, "no folder is named (--state)")
    )
    yield storage
    running = bool(storage.data.get("in_use"))
    yield from doctor_broker.examine(
        config, peer, as_node=arguments.as_node, running=running, presence=presence
    )


def _configuration(config: RunConfig, path: Path) -> Generator[Finding, None, int]:
    """Makes a dry run of the configuration, as `bb-edge check --config` does: a finding per refusal.

    Returns the bytes of the packet in which the node would say its presence, 0 where it is not known.
    """
    from bb_edge.cli.launch import dry_launch
    from bb_edge.cli.run_settings import with_state

    warnings: list[str] = []

    def log(level: str, message: str, **more: object) -> None:
        if level in (
            "warning",
            "error",
        ):  # an error that refuses nothing: the state folder has lost something
            warnings.append(message)

    refusals, launch = dry_launch(with_state(config), log)
    for warning in warnings:
        yield Finding("configuration", WARNING, f"{path}: {warning}")
    for refusal in refusals:
        yield Finding("configuration", FAILED, f"{path}: {refusal}")
    if not refusals and config.artifact is not None:
        yield Finding("configuration", OK, f"{path}: {config.artifact.name} would run")
    return launch.presence_packet_bytes


def _certificates(config: RunConfig) -> Iterator[Finding]:
    """What is to be said of the certificates that flags name; with --config the dry run says it."""
    from bb_edge.transport.renewal import CertificateWatch

    found: list[Finding] = []

    def log(level: str, message: str, **more: object) -> None:
        found.append(Finding("certificate", WARNING, message))

    if config.broker is not None:
        with suppress(BBError):  # a URL or file that cannot be used is the broker's finding
            CertificateWatch(config.broker_record(), log)
    yield from found


def _component(name: str) -> Finding:
    load_all((name,))
    return Finding("components", OK, f"loaded {name}", {"load": [name]})
