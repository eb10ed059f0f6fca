"""`bb-host acl`: mosquitto's access rules for a federation, from its artifacts and a list of its peers.

The broker decides who is of a class: a node believes a class by the topic of a presence alone. So every peer
gets rules of its own for the presences of its classes. What all peers may do alike stands in patterns; these
add up, so none of them may let a peer write under a class.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bb_edge.engine.program.program import Program
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.transport.topics import check_federation

OPERATOR = "operator"
"""The user who may read and clear all presences; no peer has this name, since peers' names are ids."""


class AclError(BBError):
    """A list of peers, or artifacts, that no access rules can be made of."""


@dataclass(frozen=True, slots=True)
class Member:
    """A peer of the list: what it is called there, its id, and the classes that it serves."""

    name: str
    peer: PeerId
    classes: tuple[str, ...]


def read_members(path: Path) -> tuple[Member, ...]:
    """Reads a list of peers: a line each, `<name or peer id> <class>[,<class>…]`; `#` begins a comment.

    AclError, with the line, where one cannot be read, or a peer is named twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AclError(f"cannot be read: {error}", str(path), "a line each: kitchen Client") from error
    found: dict[PeerId, Member] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) != 2:
            raise AclError(f"{line.strip()!r} is no name and classes", where, "write: kitchen Client")
        member = Member(words[0], peer_of(words[0]), tuple(filter(None, words[1].split(","))))
        if member.peer in found:
            raise AclError(
                f"{words[0]!r} is there already", where, "name each peer once, with all its classes"
            )
        found[member.peer] = member
    if not found:
        raise AclError("it names no peer", str(path), "a line each: kitchen Client")
    return tuple(found.values())


def peer_of(name: str) -> PeerId:
    """The peer of a name, or of a peer id in base58."""
    try:
        return PeerId.from_text(name)
    except PeerIdError:
        return PeerId.from_name(name)


def heard_by_class(programs: Iterable[Program]) -> dict[str, tuple[str, ...] | None]:
    """By class of the artifacts: the classes whose presence it needs, None for all."""
    found: dict[str, tuple[str, ...] | None] = {}
    for program in programs:
        for target in program.targets.values():
            before, hears = found.get(target.peer_class, ()), target.hears
            both = None if hears is None or before is None else tuple(sorted({*before, *hears}))
            found[target.peer_class] = both
    return found


def rules(
    federation: str, heard: Mapping[str, tuple[str, ...] | None], members: Sequence[Member], artifacts: str
) -> str:
    """The text of an `acl_file`. AclError for a class that no artifact has."""
    prefix = f"bb/{check_federation(federation)}"
    lines = [
        f"# Access rules of federation {federation}, written by bb-host acl from {artifacts}.",
        "# %u is the user name, or the name in the certificate: it is the peer id. All else is denied.",
        "",
        "# Envelopes, and chunks of large ones: to anybody as oneself, from anybody to oneself.",
    ]
    for kind in ("from", "chunk"):
        lines += [f"pattern write {prefix}/+/{kind}/%u", f"pattern read {prefix}/%u/{kind}/+"]
    lines += [
        "",
        "# One's own presence, to see who else uses one's name.",
        f"pattern read {prefix}/presence/+/%u",
        "",
        "# Roll calls, which ask the peers of a class to say their presence again; a peer answers seldom.",
        f"pattern readwrite {prefix}/rollcall/+",
        "",
        "# Who runs the fleet: bb-edge peers lists all, --forget clears the presence of one that is gone.",
        f"user {OPERATOR}",
        f"topic readwrite {prefix}/presence/#",
    ]
    lines += ["", "# Each peer: the classes that it may say it is of, and those whose presence it needs."]
    for member in members:
        for name in member.classes:
            if name not in heard:
                raise AclError(
                    f"{member.name} is of class {name!r}, which no artifact has",
                    "peers",
                    suggestion(name, heard, "classes: "),
                )
        lines += ["", f"# {member.name}: {', '.join(member.classes)}", f"user {member.peer.to_text()}"]
        lines += [f"topic write {prefix}/presence/{name}/{member.peer.to_text()}" for name in member.classes]
        lines += [f"topic read {prefix}/presence/{name}/+" for name in _needed(member.classes, heard)]
    return "\n".join(lines) + "\n"


def _needed(classes: Iterable[str], heard: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    needed: set[str] = set()
    for name in classes:
        hears = heard[name]
        if hears is None:
            return ["+"]
        needed.update(hears)
    return sorted(needed)


# --- the verb ------------------------------------------------------------------------------------------


def add_acl(verbs: Any) -> None:
    """Adds the verb `acl`."""
    p = verbs.add_parser(
        "acl",
        help="write mosquitto's access rules for a federation",
        description="Writes an acl_file that binds each peer to its classes, for brokers that know a client"
        " by its certificate, or by user name and password; either name is the peer id"
        " (docs/operations.md, The broker).",
    )
    p.add_argument("artifacts", type=Path, nargs="+", metavar="ARTIFACT.onnx", help="of every class")
    p.add_argument("--federation", required=True, metavar="NAME")
    p.add_argument(
        "--peers", type=Path, required=True, metavar="FILE", help="a line per peer: <name or id> <class>,…"
    )
    p.add_argument("-o", "--out", type=Path, metavar="bb.acl", help="default: standard output")
    p.set_defaults(run=_acl)


def _acl(arguments: argparse.Namespace) -> int:
    programs = []
    for path in arguments.artifacts:
        try:
            programs.append(load(path))
        except BBError as error:
            raise AclError(error.what, str(path), error.hint) from error
        except OSError as error:
            raise AclError(f"cannot be read: {error.strerror}", str(path)) from error
    members = read_members(arguments.peers)
    text = rules(
        arguments.federation,
        heard_by_class(programs),
        members,
        ", ".join(path.name for path in arguments.artifacts),
    )
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    try:
        arguments.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AclError(f"cannot be written: {error.strerror}", str(arguments.out)) from error
    print(f"{arguments.out}: rules of {len(members)} peers; mosquitto reads them again on SIGHUP")
    return 0
