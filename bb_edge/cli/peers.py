"""The verb `bb-edge peers`: who is in a federation, as its broker knows it, and how to forget who left."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.cli.endings import Exit
from bb_edge.cli.peer_names import PeerNames, peer_text
from bb_edge.cli.run_settings import add_certificates, require
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError

if TYPE_CHECKING:
    from bb_edge.run_config import RunConfig
    from bb_edge.transport.broker import Broker
    from bb_edge.transport.roster import Member, Roster

UNKNOWN, NONE = "unknown", "none"
WIDEST = 60
"""Letters of a name or of classes in the table."""
COLUMNS = ("name", "state", "classes", "since", "program", "runtime", "last failure", "peer")


class ForgetError(BBError):
    """A peer that cannot be forgotten: it is not there, or it is up."""


class NodeLoginError(BBError):
    """The login is that of a node, which a visit under its name may throw out of the broker."""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "peers",
        help="list the peers of a federation, up and down",
        description="Reads the presences that the broker keeps; from 900 on it calls the roll, too, which"
        " takes some seconds. The presence of a device that is gone for good stays there, and counts as down,"
        " until it is cleared: bb-edge peers --forget NAME.",
    )
    p.add_argument(
        "--config", type=file_name, metavar="FILE", help="take broker and federation from this file"
    )
    p.add_argument("--broker", metavar="URL", help="mqtt://[user:password@]host[:port] or mqtts://…")
    p.add_argument("--federation", metavar="NAME", help="default: default")
    add_certificates(p)
    p.add_argument("--mqtt-version", choices=("auto", "5", "3.1.1"), help="default: auto")
    p.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="PEER",
        help="clear the presence of a peer that is gone for good, by name or id, or of all whose name or id"
        " fits a pattern with * ? [ ] (repeatable); a pattern needs --yes",
    )
    p.add_argument(
        "--forget-down",
        action="store_true",
        help="clear the presences of peers that are down, and messages that are not presences; needs --yes",
    )
    p.add_argument(
        "--yes", action="store_true", help="with a pattern or --forget-down: do it, instead of listing whom"
    )
    p.add_argument(
        "--force", action="store_true", help="with --forget: also one that says up, for example a forged one"
    )
    p.add_argument(
        "--as-node",
        action="store_true",
        help="log in under the name of a node all the same: where the broker sets client ids by user name"
        " (use_username_as_clientid), this ends that node's connection and session",
    )
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run, usage_error=p.error)


def run(arguments: argparse.Namespace) -> int:
    """Lists the peers, or clears the presences of those to be forgotten."""
    from bb_edge.cli.render import in_columns
    from bb_edge.cli.run_settings import MissingArgument
    from bb_edge.transport.roster import read_roster

    forgets = bool(arguments.forget or arguments.forget_down)
    for flag in ("yes", "force"):
        if getattr(arguments, flag) and not forgets:
            arguments.usage_error(f"--{flag} says nothing without --forget or --forget-down")
    if not all(arguments.forget):
        arguments.usage_error("--forget: an empty text names no peer")
    config = _config_of(arguments)
    try:
        require(config, "broker", "peers")
    except MissingArgument as error:
        arguments.usage_error(str(error))
    broker = config.broker_record()
    if not arguments.as_node:
        _check_login(broker)
    roster = read_roster(broker, config.federation, config.mqtt_version, _tell_of_the_call)
    if roster.doubt:
        print(f"bb-edge: warning: {roster.doubt}", file=sys.stderr)
    if forgets:
        return _forget(arguments, config, roster)
    own = None if config.peer is None else PeerId.from_name(config.peer)
    if own is not None and own not in roster.members:
        print(
            f"bb-edge: warning: the broker tells nothing of {config.peer} ({own}) itself: it has never run"
            " here, its presence was cleared, or rules keep presences from this client",
            file=sys.stderr,
        )
    records = _records(roster, list(roster.members.values()))
    _mark_apart(roster, records)
    for topic in roster.unreadable[:MOST_TOLD]:
        print(f"bb-edge: warning: what is retained under {topic} is not a presence", file=sys.stderr)
    if roster.unreadable:
        count = len(roster.unreadable)
        print(f"bb-edge: {count} hold no presence: --forget-down --yes clears them, too", file=sys.stderr)
    if arguments.json:
        print(json.dumps({**_head(config, roster), "peers": records}))
        return Exit.DONE
    for line in in_columns(COLUMNS, [_row(record) for record in records]):
        print(line)
    up = sum(bool(record["up"]) for record in records)
    silent = sum(bool(record["silent"]) for record in records)
    other = sum(bool(record["other_program"]) for record in records)
    told = f", {silent} of these silent" if silent else ""
    told += f", {other} of these with another program" if other else ""
    print(f"{len(records)} peers in federation {config.federation}, {up} up{told}")
    if silent:
        print("silent: it says up, and did not answer when the roll was called; --forget clears a forged one")
    if other:
        print(
            "another program: most peers that it would deal with neither ask nor hear it (ProgramMismatch);"
            " update who is behind, or compile the new program with --accepts OLD.onnx"
        )
    if up < len(records):
        print("a device that is gone for good: bb-edge peers --forget NAME clears its presence")
    return Exit.DONE


def _tell_of_the_call(kept: int) -> None:
    from bb_edge.transport.rollcall import ANSWER_S, spread_of

    print(
        f"bb-edge: the broker keeps {kept} presences; the roll is called, which takes some"
        f" {max(ANSWER_S, spread_of(kept)):.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _check_login(broker: Broker) -> None:
    """Refuses the login of a node: a broker may end the node's session for it."""
    from bb_edge.transport.credentials import node_login

    name = node_login(broker)
    if name is not None:
        raise NodeLoginError(
            f"it would log in as the node {name}, and a broker that sets client ids by user name"
            " (use_username_as_clientid) would throw the node out",
            str(broker),
            "log in as the user operator (--broker with operator:PASSWORD@, or --cert and --key); --as-node"
            " where the node is stopped, or the broker leaves client ids alone",
        )


def _head(config: RunConfig, roster: Roster) -> dict[str, object]:
    return {
        "federation": config.federation,
        "broker": str(config.broker_record()),
        "doubt": roster.doubt or None,
    }


def _records(roster: Roster, members: list[Member]) -> list[dict[str, object]]:
    """What is known of these members, those that are up first, by name and id."""

    def meta_of(peer: PeerId) -> Mapping[str, object]:
        member = roster.members.get(peer)
        return {} if member is None else member.meta

    in_text = PeerNames(meta_of).in_text
    records = [record_of(member, in_text) for member in members]
    records.sort(key=lambda record: (not record["up"], str(record["name"] or "~"), str(record["peer"])))
    return records


def _mark_apart(roster: Roster, records: list[dict[str, object]]) -> None:
    """Marks those that are up and whose program does not go with those of most that they would deal with."""
    from bb_edge.wire.apart import apart

    up = [member for member in roster.members.values() if member.up]
    found = {str(peer) for peer in apart({member.peer: (member.classes, member.meta) for member in up})}
    for record in records:
        record["other_program"] = record["peer"] in found


def record_of(member: Member, in_text: Callable[[str], str]) -> dict[str, object]:
    """What is known of a peer, in values that JSON has; None for what its presence does not tell.

    `in_text` adds names to the ids of peers in a text.
    """
    meta, peer = member.meta, member.peer
    claimed = meta.get("name")
    shown = peer_text(peer, claimed)
    since = meta.get("since")
    program, failure = meta.get("program"), _text(meta.get("failure"))
    return {
        "name": claimed if shown == f"{claimed} ({peer})" else None,
        "peer": str(peer),
        "claims": claimed if "calls itself" in shown else None,
        "classes": list(member.classes),
        "up": member.up,
        "silent": member.up and member.silent,
        "other_program": False,
        "since": _utc(since) if type(since) is int else None,
        "program": program.hex() if isinstance(program, bytes) else _text(program),
        "runtime": _text(meta.get("runtime")),
        "failure": None if failure is None else in_text(failure),
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.isprintable() else None


def _utc(seconds: int) -> str | None:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return None


def _row(record: Mapping[str, object]) -> tuple[str, ...]:
    name = record["name"] or (f"(claims {record['claims']!r})" if record["claims"] else None)
    classes: Any = record["classes"]
    program = record["program"]
    return (
        _cut(str(name or UNKNOWN)),
        _state(record),
        _cut(", ".join(classes)) or UNKNOWN,
        str(record["since"] or UNKNOWN),
        f"{str(program)[:12]}…" if program else UNKNOWN,
        str(record["runtime"] or UNKNOWN),
        str(record["failure"] or (NONE if record["up"] and record["runtime"] else UNKNOWN)),
        str(record["peer"]),
    )


def _state(record: Mapping[str, object]) -> str:
    if not record["up"]:
        return "down"
    if record["silent"]:
        return "silent"
    return "up, other program" if record["other_program"] else "up"


def _cut(cell: str) -> str:
    """A cell of the table: somebody may forge the longest class there is. --json has all of it."""
    return cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…"


def _forget(arguments: argparse.Namespace, config: RunConfig, roster: Roster) -> int:
    from bb_edge.transport.roster import clear

    patterns = [text for text in arguments.forget if _is_pattern(text)]
    exact = [text for text in arguments.forget if not _is_pattern(text)]
    garbage = [
        topic
        for topic in roster.unreadable
        if arguments.forget_down or any(fnmatchcase(_peer_in(topic), text) for text in (*patterns, *exact))
    ]
    known = {str(peer) for peer in roster.members}
    gone = set(map(_peer_in, garbage)) - known
    named = [_member(roster, text) for text in exact if text not in gone]
    for member in named:
        if member.up and not arguments.force:
            raise ForgetError(f"{_shown(member)} is up", "--forget", STOP_FIRST)
    fitting = [
        member
        for member in roster.members.values()
        if (arguments.forget_down and not member.up) or any(_fits(member, text) for text in patterns)
    ]
    up = [] if arguments.force else [member for member in fitting if member.up]
    members = list({id(member): member for member in (*named, *fitting) if member not in up}.values())
    many = bool(patterns or arguments.forget_down)
    does = arguments.yes or not many
    members.sort(key=_shown)
    if does and (members or garbage):
        topics = [topic for member in members for topic in member.topics]
        clear(config.broker_record(), [*topics, *garbage], config.mqtt_version)
    if arguments.json:
        listed = {
            "forgot": does,
            "peers": _records(roster, members),
            "left": _records(roster, up),
            "garbage": garbage,
        }
        print(json.dumps({**_head(config, roster), **listed}))
        return Exit.DONE
    for member in members:
        state = f", {'up' if member.up else 'down'}" if many else ""
        verb = "forgot" if does else "would forget"
        print(f"{verb} {_shown(member)}: class {', '.join(member.classes) or UNKNOWN}{state}")
    for topic in garbage:
        print(f"{'cleared' if does else 'would clear'} {topic}, which holds no presence")
    if up:
        print(f"{len(up)} that are up are left: {STOP_FIRST}", file=sys.stderr)
    if many:
        print(f"{len(members)} peers" if does else f"{len(members)} peers; --yes clears their presences")
    return Exit.DONE


MOST_TOLD = 10
"""Topics without a presence that are named one by one."""
STOP_FIRST = "stop it first; --force clears a presence that says up, which a running node says again"


def _peer_in(topic: str) -> str:
    return topic.rpartition("/")[2]


def _is_pattern(text: str) -> bool:
    return any(letter in text for letter in "*?[")


def _fits(member: Member, pattern: str) -> bool:
    """Whether the name that is the peer's own, or its id, fits; a name that it only claims does not count."""
    claimed = member.meta.get("name")
    own = peer_text(member.peer, claimed) == f"{claimed} ({member.peer})"
    return fnmatchcase(str(member.peer), pattern) or (own and fnmatchcase(str(claimed), pattern))


def _shown(member: Member) -> str:
    return peer_text(member.peer, member.meta.get("name"))


def _member(roster: Roster, text: str) -> Member:
    """The member of a name or id. Raises ForgetError where the broker keeps no presence of it."""
    try:
        peer = PeerId.from_text(text)
    except PeerIdError:
        peer = PeerId.from_name(text)
    if peer not in roster.members:
        raise ForgetError(
            f"the broker keeps no presence of {text}", "--forget", "name a peer that bb-edge peers lists"
        )
    return roster.members[peer]


def _config_of(arguments: argparse.Namespace) -> RunConfig:
    from dataclasses import replace

    from bb_edge.config_file import load_config
    from bb_edge.run_config import RunConfig
    from bb_edge.transport.broker import Broker

    config = RunConfig() if arguments.config is None else load_config(arguments.config)
    names = ("broker", "federation", "ca", "cert", "key", "mqtt_version")
    flags = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.broker is not None and Broker.from_url(arguments.broker).username is not None:
        flags |= {"username": None, "password": None}  # another login than the file's
    return replace(config, **flags)
