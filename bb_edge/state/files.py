"""The files of one node, and what writing them costs; every call to the storage passes here."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from bb_edge.ir.transitions import Table
from bb_edge.state import record_framing
from bb_edge.state.errors import (
    StateDamagedError,
    StateDeniedError,
    StateError,
    StateReadError,
    StateWriteError,
)
from bb_edge.wire.cbor import Buffer

T = TypeVar("T")

ASIDE: Final = "damaged-"
"""A damaged file is kept under its own name with this before it."""


class Storage(Protocol):
    """The files of one folder, which survive a power cut; `bb_shims.AtomicStorage` is one.

    Each call fails as a whole: after an error the file reads as before, except for a file that was replaced
    or removed and whose error says that a power cut may still undo the change. Raises FileNotFoundError for a
    missing file.
    """

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        """Replaces the file's bytes, which may come in pieces; on return they survive a power cut."""

    def read(self, name: str) -> bytes:
        """Returns the file's bytes."""

    def size(self, name: str) -> int:
        """Returns the length of the file in bytes, without reading it."""

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
        """Adds to the file's end, creating it; with `sync` all of the file survives a power cut."""

    def list(self) -> list[str]:
        """Returns the names of the files, sorted."""

    def remove(self, name: str, sync: bool) -> None:
        """Removes the file. Without `sync` a power cut may bring it back, the last removed first."""


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_BOUNDS = "limits.outbox_bytes and disk, in a configuration, bound what a node takes of it"


class Files:
    """A storage that counts what is written and raises the errors of this package.

    `failures` are the exceptions that the storage raises for faults of the disk. `most` are the bytes of the
    longest file of a kind that is read; a kind that it does not name has no limit.
    """

    __slots__ = (
        "_failures",
        "_most",
        "_storage",
        "bytes_written",
        "damaged",
        "failed_writes",
        "owner",
        "syncs",
    )

    def __init__(
        self,
        storage: Storage,
        failures: tuple[type[Exception], ...],
        most: Mapping[int, int] | None = None,
    ) -> None:
        self._storage = storage
        self._most = {_NAMES[kind]: size for kind, size in (most or {}).items()}
        self._failures = failures
        self.owner = record_framing.NOBODY
        """Whose name new files carry."""
        self.bytes_written = 0
        """Bytes handed to the storage since the start; flash wears out by them."""
        self.syncs = 0
        """Calls that returned only when their bytes were on the medium; they are what costs time."""
        self.failed_writes = 0
        self.damaged: set[str] = set()
        """Files that hold more than can be read; a copy stays when they are replaced or removed."""

    def _writing(self, where: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except self._failures as error:
            self.failed_writes += 1
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
            raise StateWriteError(str(error), where, _BOUNDS if full else "look at the disk") from error

    def write(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        """Replaces a file by bytes, or their pieces. StateWriteError where the disk does not take them."""
        self._set_aside(name)
        self._writing(name, self._storage.write_atomic, name, data)
        self.bytes_written += len(data) if isinstance(data, bytes) else sum(map(len, data))
        self.syncs += 1

    def append(self, name: str, data: Sequence[Buffer], sync: bool) -> None:
        """Adds pieces to a file. StateWriteError where the disk does not take them."""
        self._writing(name, self._storage.append, name, data, sync)
        self.bytes_written += sum(map(len, data))
        self.syncs += sync

    def remove(self, name: str) -> None:
        """Removes a file, if it is still there. StateWriteError where the disk refuses.

        A power cut may bring it back. That does no harm: whatever made the file useless was on the medium
        before.
        """
        self._set_aside(name)
        self._writing(name, self._remove, name)

    def _set_aside(self, name: str) -> None:
        """Keeps a copy of the last damaged file for whoever investigates; without a copy where that fails."""
        if name not in self.damaged:
            return
        self.damaged.discard(name)
        try:
            for old in self.names():
                if old.startswith(ASIDE):
                    self.remove(old)
            self.write(ASIDE + name, self.read(name))
        except StateError:
            return

    def _remove(self, name: str) -> None:
        try:
            self._storage.remove(name, False)
        except FileNotFoundError:
            return

    def read(self, name: str) -> bytes:
        """Returns a file's bytes.

        Raises StateReadError where the disk does not give them, and StateDamagedError where the file is
        longer than this node can have written it: it is not read then, whatever memory that would take.
        """
        most = self._most.get(name.partition("-")[0])
        if most is not None and (size := self._reading(name, lambda: self._storage.size(name))) > most:
            raise StateDamagedError(
                f"it has {size} bytes, and with its limits this node writes {most} at most",
                name,
                "put the node's own file back; or, where the limits of the disk were lowered, raise them",
            )
        return self._reading(name, lambda: self._storage.read(name))

    def length(self, name: str) -> int | None:
        """Returns the length of a file in bytes, None where there is no such file. StateReadError."""

        def size() -> int | None:
            try:
                return self._storage.size(name)
            except FileNotFoundError:
                return None

        return self._reading(name, size)

    def names(self) -> list[str]:
        """Returns the names of all files. StateReadError where the disk does not give them."""
        return self._reading("state", self._storage.list)

    def _reading(self, where: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except self._failures as error:
            if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
                hint = (
                    "give it to the user that runs the node (chown -R USER FOLDER; chmod u+rw FILE), or run"
                    " the node as its owner: without this file it would not know what it knew"
                )
                raise StateDeniedError(str(error), where, hint) from error
            raise StateReadError(
                str(error), where, "look at the disk, or give another state folder"
            ) from error


class LogState(enum.Enum):
    """What is at the end of a file of records."""

    ABSENT = "no file, or an empty one"
    WHOLE = "a whole record"
    RAGGED = "bytes that are not a record; the next append replaces the file"


class LogEvent(enum.Enum):
    """What happens to a file of records."""

    READ_WHOLE = "it was read, and ends with a whole record"
    READ_RAGGED = "it was read, and something else follows its last whole record"
    BEGUN = "its first bytes are handed to the disk; should that fail, some of them may be there"
    WRITTEN = "the disk has taken a write"


LOG: Final = Table(
    "file of records",
    LogState.ABSENT,
    {
        (LogState.ABSENT, LogEvent.READ_WHOLE): LogState.WHOLE,
        (LogState.ABSENT, LogEvent.READ_RAGGED): LogState.RAGGED,
        (LogState.ABSENT, LogEvent.BEGUN): LogState.RAGGED,
        (LogState.ABSENT, LogEvent.WRITTEN): LogState.WHOLE,
        (LogState.WHOLE, LogEvent.WRITTEN): LogState.WHOLE,
        (LogState.RAGGED, LogEvent.WRITTEN): LogState.WHOLE,
    },
)


class Log:
    """A file of records that grows at its end.

    Bytes that an earlier process left after the last whole record are cut with the next append, not before:
    a full disk does not keep a node from starting.
    """

    __slots__ = (
        "_files",
        "_sequence",
        "before",
        "floor",
        "kind",
        "length",
        "name",
        "number",
        "state",
        "synced",
        "version",
    )

    def __init__(
        self,
        files: Files,
        kind: int,
        number: int,
        floor: int = 0,
        before: record_framing.Link | None = None,
    ) -> None:
        self._files = files
        self._sequence = 1
        self.kind = kind
        self.name = log_name(kind, number)
        self.number = number
        self.floor = floor
        self.before = before
        journal = kind == record_framing.JOURNAL
        self.version = record_framing.ENCLOSING if journal else record_framing.VERSION
        self.length = 0
        """Bytes up to the end of the last whole record; 0 where there is none."""
        self.synced = 0
        """How many of them are on the medium for sure."""
        self.state = LOG.start

    @property
    def empty(self) -> bool:
        """Whether it holds no record beside its header."""
        return self._sequence == 1

    def load(self) -> record_framing.Parsed:
        """Reads the file that is there; `complaint` says what was wrong with it.

        Raises StateReadError and StateVersionError.
        """
        parsed = record_framing.parse(self._files.read(self.name), self.kind, self.number, self.name)
        self.length = parsed.length
        # A header alone may never have been synced, and be gone after a power cut that comes only now.
        self.synced = parsed.length if parsed.bodies else 0
        if parsed.header is not None:
            self.floor, self.before = parsed.header.floor, parsed.header.before
            self.version = parsed.header.version
        if parsed.lost:
            self.state = LOG.next(self.state, LogEvent.READ_RAGGED)
        elif parsed.length:
            self.state = LOG.next(self.state, LogEvent.READ_WHOLE)
        if parsed.damaged:
            self._files.damaged.add(self.name)
        self._sequence = len(parsed.bodies) + 1
        return parsed

    def complaint(self, parsed: record_framing.Parsed) -> str:
        """Returns the note about a file that does not end with a whole record."""
        lost = f"{parsed.lost} bytes after the first {parsed.length} are given up"
        return f"{self.name} is damaged: {lost}" if parsed.damaged else f"{self.name} is torn: {lost}"

    def bodies(self) -> tuple[bytes, ...]:
        """Reads the records again. StateReadError where the disk does not give them."""
        data = self._files.read(self.name)[: self.length]
        return record_framing.parse(data, self.kind, self.number, self.name).bodies

    def append(self, bodies: Iterable[record_framing.Body], sync: bool = True) -> int:
        """Adds records, all or none, and returns how many bytes that took.

        Raises StateWriteError, and StateReadError where a ragged end has to be cut.
        """
        records = tuple(bodies)
        start = self.length
        header = b"" if start else self._header()
        data = record_framing.framed_whole(self.kind, self.number, self._sequence, records, header)
        if self.state is LogState.RAGGED:
            before = self._files.read(self.name)[:start] if start else b""
            self._files.write(self.name, [before, *data])
            sync = True
        else:
            if self.state is LogState.ABSENT:
                self.state = LOG.next(self.state, LogEvent.BEGUN)
            self._files.append(self.name, data, sync)
        self.state = LOG.next(self.state, LogEvent.WRITTEN)
        size = sum(map(len, data))
        self.length += size
        self.synced = self.length if sync else self.synced
        self._sequence += len(records)
        return size

    def _header(self) -> bytes:
        owner = self._files.owner
        return record_framing.header(self.kind, self.number, self.floor, owner, self.before, self.version)

    def create(self, bodies: Iterable[bytes]) -> None:
        """Writes the whole file at once, with its length. StateWriteError where the disk does not take it."""
        records = tuple(bodies)
        data = record_framing.framed(self.kind, self.number, 1, records)
        whole = record_framing.header_bytes(self._files.owner) + len(data)
        self.before = record_framing.Link(self.number, whole)
        self._files.write(self.name, self._header() + data)
        self.state = LOG.next(self.state, LogEvent.WRITTEN)
        self.length = self.synced = whole
        self._sequence = len(records) + 1


_NAMES = {
    record_framing.SNAPSHOT: "snapshot",
    record_framing.JOURNAL: "journal",
    record_framing.OUTBOX: "outbox",
}


def log_name(kind: int, number: int) -> str:
    """Returns the name of a file of a kind."""
    return f"{_NAMES[kind]}-{number}"


def numbers(names: Iterable[str], kind: int) -> list[int]:
    """Returns the numbers of the files of a kind, ascending, and passes over files of other names."""
    prefix = f"{_NAMES[kind]}-"
    ends = (name[len(prefix) :] for name in names if name.startswith(prefix))
    # Below 19 digits a number fits into the 64 bits that the header has for it.
    return sorted(int(n) for n in ends if len(n) < 19 and n.isascii() and n.isdecimal() and str(int(n)) == n)
