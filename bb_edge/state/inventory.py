"""What the files of a folder say of each other, against what is there.

A file may be gone, emptied, cut short or another node's without its own bytes saying so. So each header names
its owner and the file before it, and a snapshot lists the outbox's segments, with the length that they had
on the medium. A file that is shorter than another one says has lost something; one that is longer has grown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.state import record_framing
from bb_edge.state.errors import StateDamagedError, StateForeignError
from bb_edge.state.files import Log, log_name, numbers
from bb_edge.state.record_framing import Link, Owner, Parsed

_ROW = struct.Struct(">QQB")

LOST: Final = {
    record_framing.JOURNAL: "what peers sent and this node acknowledged is lost with it, and they do not"
    " send it again",
    record_framing.OUTBOX: "what it held is lost, and goes to no peer that has not acknowledged it",
}
"""What is gone with the records of a kind of file."""
ADVICE: Final = "look at the disk, and at who writes into this folder"


class Listed(NamedTuple):
    """A segment as a snapshot lists it: its length on the medium, and the version of its header."""

    number: int
    length: int
    version: int


def pack(segments: Iterable[Listed]) -> bytes:
    """Returns the list as a record of a snapshot's file."""
    return b"".join(_ROW.pack(*row) for row in segments)


def unpack(data: bytes, where: str) -> tuple[Listed, ...]:
    """Reads what `pack` returned. StateDamagedError for other bytes."""
    try:
        return tuple(Listed(*row) for row in _ROW.iter_unpack(data))
    except struct.error as error:
        raise StateDamagedError(f"not a list of files: {error}", where, "move the file aside") from error


class Inventory:
    """Collects what files say while they are read, and compares it at the end.

    `owner` is whose folder it is; without one it is the owner of the first file that names one.
    """

    def __init__(self, owner: Owner | None = None) -> None:
        self.owner = owner
        self._claims: dict[str, tuple[int, int, str]] = {}  # kind, length, and who says so
        self._read: dict[str, tuple[Log, Parsed]] = {}

    def check(self, name: str, parsed: Parsed, *, old: bool) -> None:
        """Raises StateForeignError where the file is another node's, or was written under another name.

        `old`: it may be of version 1.
        """
        if parsed.elsewhere is not None:
            raise self._misplaced(name, parsed.elsewhere)
        header = parsed.header
        if header is None:
            return
        if header.owner is None:
            if old:
                return
            raise StateForeignError(
                "it names no owner, and the files beside it do: an older version wrote it elsewhere",
                name,
                _advice(name),
            )
        self.owner = self.owner or header.owner
        if header.owner.peer != self.owner.peer:
            raise StateForeignError(
                f"{_peer(header.owner)} wrote it, and this is the folder of {_peer(self.owner)}",
                name,
                _advice(name),
            )
        if header.owner.program != self.owner.program:
            raise StateForeignError(
                f"it is of another artifact, or of other targets of it: state {_shown(header.owner)}, this is"
                f" {_shown(self.owner)}",
                name,
                "run the artifact and targets that wrote it (bb-edge inspect shows an artifact's state), or"
                " take over what it holds: --adopt (docs/how-to/upgrade.md). With the folder moved aside what"
                " it learned, and has not sent, is lost",
            )

    def _misplaced(self, name: str, found: record_framing.Elsewhere) -> StateForeignError:
        there, owner = log_name(found.kind, found.number), found.owner
        if owner is None:
            what = f"it was written as {there}"
        elif self.owner is not None and owner.peer != self.owner.peer:
            what = f"{_peer(owner)} wrote it as {there}, and this is the folder of {_peer(self.owner)}"
        else:
            what = f"{_peer(owner)} wrote it as {there}"
        return StateForeignError(what, name, _advice(name))

    def claim(self, kind: int, link: Link, by: str) -> None:
        """Notes that a file says of another one how long it is at least."""
        name = log_name(kind, link.number)
        if name not in self._claims or self._claims[name][1] < link.length:
            self._claims[name] = kind, link.length, by

    def took(self, log: Log, parsed: Parsed) -> None:
        """Notes a file that was read."""
        self._read[log.name] = log, parsed

    def report(self) -> tuple[list[str], list[str]]:
        """Returns notes about files that are not whole, and those of them that say that something is lost."""
        notes, losses = [], []
        for name, (log, parsed) in self._read.items():
            _, least, by = self._claims.get(name, (0, 0, ""))
            text = ""
            if parsed.length < least:
                state = "damaged" if parsed.damaged else "cut short" if parsed.length else "empty"
                there = f"{parsed.length} of its bytes can be read, and {by} says that it had {least}"
                text = f"{name} is {state}: {there}; {LOST[log.kind]} ({ADVICE})"
            elif parsed.damaged:
                text = f"{log.complaint(parsed)}; {LOST[log.kind]} ({ADVICE})"
            if text:
                losses.append(text)
            elif parsed.lost:
                text = log.complaint(parsed)
            elif not parsed.length:
                text = (
                    f"{name} is empty, and no other file says that it held a record: a power cut before its"
                    f" first one was on the medium leaves it so, and loses nothing. If somebody emptied it,"
                    f" {LOST[log.kind]}"
                )
            notes += [text] if text else []
        for name in sorted(self._claims.keys() - self._read.keys()):
            kind, least, by = self._claims[name]
            size = f", with {least} bytes" if least else ""
            losses.append(f"{name} is missing: {by} names it{size}; {LOST[kind]} ({ADVICE})")
            notes.append(losses[-1])
        return notes, losses


def lost_with(log: Log, there: int | None) -> str:
    """Returns what is lost with a file that this node has written and that has so many bytes on disk, None
    where it is gone; "" where nobody has cut it.
    """
    if there is None:
        return f"{log.name} is gone, and this node has not removed it: {LOST[log.kind]} ({ADVICE})"
    if there < log.length:
        cut = f"{log.name} has {there} bytes, and this node wrote {log.length}"
        return f"{cut}: {LOST[log.kind]} ({ADVICE})"
    return ""


def nothing_to_restore(notes: Iterable[str], names: Iterable[str]) -> StateDamagedError:
    """Returns the error of a folder whose files stand for a node, and hold no snapshot that can be used."""
    what = "; ".join(notes) or "the snapshots are missing"
    if waiting := [log_name(record_framing.OUTBOX, n) for n in numbers(names, record_framing.OUTBOX)]:
        return StateDamagedError(
            what,
            "state",
            f"{' and '.join(waiting)} may hold envelopes that nobody has yet: a snapshot from a copy of this"
            " folder, put beside them, sends them; move the folder aside to start anew without them",
        )
    hint = "put one back from a copy of this folder, or move the folder aside to start anew"
    return StateDamagedError(what, "state", hint)


def instead_of(base: int) -> str:
    """Returns what a node comes back from where a snapshot is missing, and `base` is the one that is used."""
    where = f"{log_name(record_framing.SNAPSHOT, base)} and the journals" if base else "the journals"
    return f"the node comes back from {where}, and asks anew what it had asked in that file alone"


def _shown(owner: Owner) -> str:
    """As much of the digest as `bb-edge inspect` shows."""
    return f"{owner.program.hex()[:16]}…"


def _advice(name: str) -> str:
    if name.startswith("snapshot"):
        return f"give this node a folder of its own with --state, or put its own {name} back"
    return (
        f"put the node's own {name} back; or move this one out of the folder, and the start says what is"
        " lost with its own"
    )


def _peer(owner: Owner) -> str:
    try:
        return f"peer {PeerId.from_bytes(owner.peer)}"
    except BBError:
        return "nobody"
