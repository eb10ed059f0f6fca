"""The settings of `bb-edge run`: the file of --config with the flags on top, and what must be in them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import ArgumentError, file_name, given_value
from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.run_config import RunConfig


class MissingArgument(ArgumentError):
    """A value is given neither by a flag nor by the configuration."""


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Adds `--adopt` and what belongs to it to the parser of a verb."""
    parser.add_argument(
        "--adopt",
        type=file_name,
        metavar="OLD",
        help="take over what the same peer's state folder OLD of another program has learned; OLD is only"
        " read, and only while the node's own folder holds no snapshot",
    )
    parser.add_argument(
        "--adopt-without-outbox",
        action="store_true",
        help="with --adopt: list what nobody has acknowledged in the outbox of OLD, and send it no more; what"
        " the broker has already may still arrive",
    )


def add_certificates(parser: argparse.ArgumentParser) -> None:
    """Adds the files of a connection with TLS to the parser of a verb."""
    parser.add_argument("--ca", metavar="FILE", help="certificate authority of an mqtts broker")
    parser.add_argument("--cert", metavar="FILE", help="client certificate")
    parser.add_argument("--key", metavar="FILE", help="key of the client certificate")


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    """Adds `--bootstrap` to the parser of a verb."""
    parser.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        metavar="TARGET.INPUT=VALUE",
        help="an input of a target's bootstrap: a number, a list, or a .npy or .npz file (repeatable)",
    )


def parse_set(texts: list[str]) -> dict[str, dict[str, object]]:
    """Parses flags `SLOT.KEY=VALUE` to slot → key → value.

    A value is JSON if it parses as JSON, else a text. Raises ArgumentError for anything else, and for a key
    that is given twice.
    """
    components: dict[str, dict[str, object]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        slot, dot, key = name.partition(".")
        if not equals or not dot or not slot or not key:
            raise ArgumentError(f"--set {text!r}", hint="write --set SLOT.KEY=VALUE")
        values = components.setdefault(slot, {})
        if key in values:
            raise ArgumentError("it is given twice", f"--set {name}", "leave one of the two out")
        values[key] = given_value(f"--set {name}", value)
    return components


def merged(
    below: Mapping[str, Mapping[str, object]], above: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """Merges two tables of tables key by key; `above` wins."""
    tables = {name: dict(values) for name, values in below.items()}
    for name, values in above.items():
        tables.setdefault(name, {}).update(values)
    return tables


def settings(arguments: argparse.Namespace, environ: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration of --config, with the flags on top.

    Without a state folder, that of the service manager ($STATE_DIRECTORY) is used. Raises ArgumentError for a
    flag that is wrong, ConfigFileError for what is wrong in the file, MissingArgument for a value that is
    given by neither.
    """
    from bb_edge.cli.bootstraps import parse_flags
    from bb_edge.config_file import load_config
    from bb_edge.run_config import ConfigFileError, RunConfig, check_folders

    if arguments.no_bootstrap and arguments.bootstrap:
        raise ArgumentError(
            "--bootstrap gives an input that --no-bootstrap leaves unread", "", "leave one of them out"
        )
    _check_flags(arguments)
    config = RunConfig() if arguments.config is None else load_config(arguments.config)
    flags: dict[str, Any] = {
        "artifact": arguments.artifact,
        "targets": tuple(arguments.target or ()) or None,
        "broker": arguments.broker,
        "snapshot_interval_s": arguments.snapshot_interval,
        "snapshot_rounds": arguments.snapshot_rounds,
        "save_every": arguments.every,
        **{name: getattr(arguments, name) for name in _SAME_NAME},
        "until_done": arguments.until_done or None,
        "give_up_after": arguments.give_up_after,
        "deliver_within_s": arguments.deliver_within,
        "summary": arguments.summary or None,
        "log_json": arguments.json or None,
        "adopt_without_outbox": arguments.adopt_without_outbox or None,
        "run_bootstraps": False if arguments.no_bootstrap else None,
    }
    components = merged(config.components, parse_set(arguments.set))
    inputs = merged(config.bootstrap, parse_flags(arguments.bootstrap))
    given = {name: value for name, value in flags.items() if value is not None}
    load = (*config.load, *arguments.load)
    config = replace(
        config, **given, load=load, components=components, bootstrap=inputs, by_flag=frozenset(given)
    )
    config = with_state(config, environ)
    try:
        check_folders(config)
    except ConfigFileError as error:
        if error.where.startswith("--"):
            raise ArgumentError(error.what, error.where, error.hint) from error
        raise
    complete(config)
    return config


def _check_flags(arguments: argparse.Namespace) -> None:
    """Raises ArgumentError for the flags of `run` that are wrong whatever the file says."""
    from bb_edge.run_config import (
        checked_deliver_within,
        checked_every,
        checked_give_up,
        checked_interval,
        checked_seed,
        checked_snapshot_rounds,
    )

    for flag, check in (
        ("--every", checked_every),
        ("--give-up-after", checked_give_up),
        ("--deliver-within", checked_deliver_within),
        ("--snapshot-interval", checked_interval),
        ("--snapshot-rounds", checked_snapshot_rounds),
        ("--seed", checked_seed),
        ("--metrics", _address),
    ):
        _checked(flag, check, getattr(arguments, flag[2:].replace("-", "_")))
    check_names(arguments)


def check_names(arguments: argparse.Namespace) -> None:
    """Raises ArgumentError for what is not a broker, a federation or a peer."""
    from bb_edge.run_config import misfit_of_peer
    from bb_edge.transport.broker import Broker
    from bb_edge.transport.topics import check_federation

    _checked("--broker", Broker.from_url, arguments.broker)
    _checked("--federation", check_federation, arguments.federation)
    misfit = None if arguments.peer is None else misfit_of_peer(arguments.peer)
    if misfit is not None:
        raise ArgumentError(misfit[0], "--peer", misfit[1])


def _address(text: str) -> object:
    from bb_edge.observe.metrics import parse_address  # which loads an HTTP server

    return parse_address(text)


def _checked(flag: str, check: Callable[[Any], object], value: object) -> None:
    if value is not None:
        try:
            check(value)
        except BBError as error:
            raise ArgumentError(error.what, flag, error.hint) from error


def with_state(config: RunConfig, environ: Mapping[str, str] | None = None) -> RunConfig:
    """Adds the state folder of the service manager to a configuration that names none."""
    state = (os.environ if environ is None else environ).get("STATE_DIRECTORY")
    if config.state is not None or not state:
        return config
    return replace(config, state=Path(state.partition(":")[0]))


def complete(config: RunConfig) -> None:
    """Raises MissingArgument where a setting is missing without which no node runs."""
    for name in NEEDED:
        require(config, name)


def require(config: RunConfig, name: str, verb: str = "run") -> None:
    """Raises MissingArgument where a setting of `NEEDED` is missing, ArgumentError for a strange name.

    `verb` is the one that lacks it.
    """
    from bb_edge.run_config import misfit_of_peer

    if not getattr(config, name):
        raise MissingArgument(
            f"{NEEDED[name]} is missing",
            hint=f'give it to bb-edge {verb}, or "{name}" in the file of --config',
        )
    misfit = misfit_of_peer(str(config.peer)) if name == "peer" else None
    if misfit is not None:
        raise ArgumentError(misfit[0], "--peer", misfit[1])


NEEDED = {"artifact": "an artifact", "targets": "--target", "peer": "--peer", "broker": "--broker"}
"""The settings without which no node runs, and how a command line names them."""


_SAME_NAME = (
    "peer",
    "federation",
    "budget",
    "seed",
    "ca",
    "cert",
    "key",
    "mqtt_version",
    "state",
    "adopt",
    "save_model",
    "trace",
    "metrics",
    "log_level",
)
