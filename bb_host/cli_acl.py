"""`bb-host acl`: mosquitto's access rules for a federation, from its artifacts and a list of its peers.

The broker decides who is of a class: a node believes a class by the topic of a presence alone. So every peer
gets rules of its own for the presences of its classes, and for the calls of their rolls. What all peers may
do alike stands in patterns; these add up, so none of them may let a peer write under a class.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bb_edge.engine.program.program import Program
from bb_edge.input_files import FileRefused, read_regular
from bb_edge.ir.class_names import ENVELOPE_LEVELS
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.transport.roster import DROPPED, UPTIME
from bb_edge.transport.topics import Topics, check_federation
from bb_host.errors import AclError

TAKEN_OUT = "-"
"""The classes of a peer that is taken out: the patterns let everybody else with a login write to others."""
OPERATOR = "operator"
"""The user who may read and clear all presences; no peer has this name, since peers' names are ids."""


MOST_LIST_BYTES = 16 << 20
"""Of a list of peers: a hundred thousand lines, with their ids, are half of it."""


PATTERN_LETTERS = frozenset("*+#%?")
"""What no name in a list of peers holds: in topics, access rules and shells it stands for many names."""


@dataclass(frozen=True, slots=True)
class Member:
    """A peer of the list: what it is called there, its id, the classes that it serves, and its line.

    One without classes is taken out: it may neither read nor write anything.
    """

    name: str
    peer: PeerId
    classes: tuple[str, ...]
    where: str = field(default="peers", compare=False)


def read_members(path: Path) -> tuple[Member, ...]:
    """Reads a list of peers, a line each: `<name or peer id> <class>[,<class>…]`, with `-` as the class of
    one that is taken out; `#` begins a comment.

    AclError, with the line, where one cannot be read, or a peer is named twice.
    """
    try:
        lines = read_regular(path, MOST_LIST_BYTES).decode("utf-8").splitlines()
    except FileRefused as error:
        raise AclError(error.what, str(path), error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise AclError(f"cannot be read: {error}", str(path), "a line each: kitchen Client") from error
    found: dict[PeerId, Member] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) != 2:
            raise AclError(f"{line.strip()!r} is not a name and classes", where, "write: kitchen Client")
        if not set(words[0]).isdisjoint(PATTERN_LETTERS):
            hint = "write a line per peer: a name stands for one of them"
            raise AclError(f"{words[0]!r} looks like a pattern, and is not the name of a peer", where, hint)
        classes = [] if words[1] == TAKEN_OUT else words[1].split(",")
        if not all(classes) or len(set(classes)) < len(classes):
            raise AclError(
                f"{words[1]!r} is not a list of classes", where, "each once, with commas: Client,Hub"
            )
        member = Member(words[0], peer_of(words[0]), tuple(classes), where)
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
    """The text of an `acl_file`.

    Raises AclError for a class that no artifact has; TopicError for a federation's name that a topic cannot
    hold. No class is called as the topics of envelopes are, so no pattern covers a presence.
    """
    prefix = f"bb/{check_federation(federation)}/"
    lines = [
        f"# Access rules of federation {federation}, written by bb-host acl from {artifacts}.",
        "# %u is the user name, or the name in the certificate: it is the peer id. All else is denied:",
        "# an MQTT 5 publisher is answered 135 (not authorized), an MQTT 3.1.1 publisher is acknowledged",
        "# and its message dropped.",
        "",
        "# Envelopes, and chunks of large ones: to anybody as oneself, from anybody to oneself.",
    ]
    for kind in ENVELOPE_LEVELS:
        lines += [f"pattern write {prefix}+/{kind}/%u", f"pattern read {prefix}%u/{kind}/+"]
    lines += [
        "",
        "# One's own presence, to see who else uses one's name.",
        f"pattern read {prefix}presence/+/%u",
        "",
        "# Who runs the fleet: bb-edge peers lists all, --forget clears the presence of one that is gone.",
        f"user {OPERATOR}",
        f"topic readwrite {prefix}presence/#",
        f"topic write {prefix}rollcall/+",
        *(f"topic read {topic}" for topic in (DROPPED, UPTIME)),  # whether presences were dropped
        "",
        "# Each peer: the classes that it may say it is of, and in which it is called; those whose presence",
        "# it needs, and whose rolls it may call.",
    ]
    for member in members:
        for name in member.classes:
            if name not in heard:
                raise AclError(
                    f"{member.name} is of class {name!r}, which no artifact has",
                    member.where,
                    suggestion(name, heard, "classes: "),
                )
        what = ", ".join(member.classes) or "taken out"
        lines += ["", f"# {member.name}: {what}", f"user {member.peer.to_text()}"]
        if not member.classes:
            lines.append(f"topic deny {prefix}#")  # before any pattern, and for a session that is there
            continue
        lines += _of_member(Topics(federation, member.peer), member, heard, members)
    return "\n".join(lines) + "\n"


def _of_member(
    topics: Topics, member: Member, heard: Mapping[str, tuple[str, ...] | None], members: Sequence[Member]
) -> Iterable[str]:
    """The rules of one peer alone."""
    needed = _needed(member.classes, heard)
    for name in member.classes:
        yield f"topic write {topics.presence(name, member.peer)}"
        yield f"topic read {topics.roll_call(name)}"
    for name in needed:
        yield f"topic read {topics.presence(name)}"
        yield f"topic write {topics.roll_call(name)}"
    # The end of a connection is told in one of a peer's classes alone, which its other presences name.
    for other in members:
        if other.peer != member.peer and not set(needed).isdisjoint(other.classes):
            for name in other.classes:
                if name not in needed:
                    yield f"topic read {topics.presence(name, other.peer)}"


def _needed(classes: Iterable[str], heard: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    """The classes whose presence a peer of these classes needs, sorted."""
    needed: set[str] = set()
    for name in classes:
        hears = heard[name]
        needed.update(heard if hears is None else hears)
    return sorted(needed)


# --- the verb ------------------------------------------------------------------------------------------


def add_acl(verbs: Any) -> None:
    """Adds the verb `acl`."""
    p = verbs.add_parser(
        "acl",
        help="write mosquitto's access rules for a federation",
        description="Writes an acl_file that binds each peer to its classes, for brokers that know a client"
        " by its certificate, or by user name and password; either name is the peer id"
        " (docs/how-to/operations.md, The broker).",
    )
    p.add_argument("artifacts", type=Path, nargs="+", metavar="ARTIFACT.onnx", help="of every class")
    p.add_argument("--federation", required=True, metavar="NAME")
    p.add_argument(
        "--peers",
        type=Path,
        required=True,
        metavar="FILE",
        help="a line per peer: <name or id> <class>,…, or - for one that is taken out",
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
    count = f"{len(members)} peer{'' if len(members) == 1 else 's'}"
    print(f"{arguments.out}: rules of {count}; mosquitto reads them again on SIGHUP")
    return 0
