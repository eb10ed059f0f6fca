"""The files of one node, and what writing them costs: every call to the storage passes here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from bb_edge.state import frames
from bb_edge.state.errors import StateError, StateReadError, StateWriteError

T = TypeVar("T")

ASIDE: Final = "damaged-"
"""What cannot be read is kept under its name behind this."""


class Storage(Protocol):
    """Files of one folder that survive a power cut; `bb_shims.AtomicStorage` is one.

    Each call fails as a whole: after an error the file reads as before it, but for a replaced or removed
    file whose error says that a power cut may yet undo the change. A missing file is a FileNotFoundError.
    """

    def write_atomic(self, name: str, data: bytes) -> None:
        """Replace the file's bytes; on return they survive a power cut."""

    def read(self, name: str) -> bytes:
        """The file's bytes."""

    def append(self, name: str, data: bytes, sync: bool) -> None:
        """Add to the file's end, creating it; with `sync` all of it survives a power cut."""

    def list(self) -> list[str]:
        """The names of the files, sorted."""

    def remove(self, name: str, sync: bool) -> None:
        """Remove the file. Without `sync` a power cut may bring it back, the last ones first."""


class Files:
    """A storage that counts what is written, with the errors of this package.

    `failures` are the exceptions that the storage raises for what the disk does.
    """

    __slots__ = ("_failures", "_storage", "bytes_written", "damaged", "failed_writes", "syncs")

    def __init__(self, storage: Storage, failures: tuple[type[Exception], ...]) -> None:
        self._storage = storage
        self._failures = failures
        self.bytes_written = 0
        """Bytes handed to the storage to be written, for ever: what flash wears out by."""
        self.syncs = 0
        """Calls that returned only when their bytes were on the medium."""
        self.failed_writes = 0
        self.damaged: set[str] = set()
        """Files that hold more than can be read: kept aside before they go."""

    def _writing(self, where: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except self._failures as error:
            self.failed_writes += 1
            raise StateWriteError(str(error), where, "nothing of it counts as written") from error

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file. StateWriteError."""
        self._set_aside(name)
        self._writing(name, self._storage.write_atomic, name, data)
        self.bytes_written += len(data)
        self.syncs += 1

    def append(self, name: str, data: bytes, sync: bool) -> None:
        """Adds to a file. StateWriteError."""
        self._writing(name, self._storage.append, name, data, sync)
        self.bytes_written += len(data)
        self.syncs += sync

    def remove(self, name: str) -> None:
        """Removes a file, if it is still there; a power cut may bring it back. StateWriteError.

        It does no harm then: whatever makes a file useless was on the medium before.
        """
        self._set_aside(name)
        self._writing(name, self._remove, name)

    def _set_aside(self, name: str) -> None:
        """Of damaged files the last one stays, for whoever wants to know; never mind if it cannot."""
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
        """A file's bytes. StateReadError."""
        return self._reading(name, lambda: self._storage.read(name))

    def names(self) -> list[str]:
        """The names of all files. StateReadError."""
        return self._reading("state", self._storage.list)

    def _reading(self, where: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except self._failures as error:
            raise StateReadError(str(error), where, "look at the disk, or give another folder") from error


class Log:
    """A file of records that grows at its end.

    What an earlier process left behind its last whole record is cut with the next append, not before: a full
    disk does not keep a node from starting.
    """

    __slots__ = ("_files", "_kind", "_sequence", "floor", "length", "name", "number", "ragged")

    def __init__(self, files: Files, kind: int, number: int, floor: int = 0) -> None:
        self._files = files
        self._kind = kind
        self._sequence = 1
        self.name = log_name(kind, number)
        self.number = number
        self.floor = floor
        self.length = 0
        """Bytes up to the end of the last whole record; 0 where there is no file yet."""
        self.ragged = False
        """Whether something else follows there."""

    def load(self) -> frames.Parsed:
        """Reads the file that is there. StateReadError, StateVersionError; `complaint` tells of damage."""
        parsed = frames.parse(self._files.read(self.name), self._kind, self.number, self.name)
        self.length, self.floor = parsed.length, parsed.floor
        self.ragged = parsed.lost > 0
        if parsed.damaged:
            self._files.damaged.add(self.name)
        self._sequence = len(parsed.bodies) + 1
        return parsed

    def complaint(self, parsed: frames.Parsed) -> str:
        """What to say of a file that does not end with a whole record."""
        lost = f"{parsed.lost} bytes after the first {parsed.length} are given up"
        return f"{self.name} is damaged: {lost}" if parsed.damaged else f"{self.name} is torn: {lost}"

    def bodies(self) -> tuple[bytes, ...]:
        """The records, read again. StateReadError."""
        data = self._files.read(self.name)[: self.length]
        return frames.parse(data, self._kind, self.number, self.name).bodies

    def append(self, bodies: Iterable[bytes], sync: bool = True) -> int:
        """Adds records, all or none; gives back the bytes that it took. StateWriteError, StateReadError."""
        records = tuple(bodies)
        data = frames.frames(self._kind, self.number, self._sequence, records)
        start = self.length
        if not start:
            data = frames.header(self._kind, self.number, self.floor) + data
        if self.ragged:
            before = self._files.read(self.name)[:start] if start else b""
            self._files.write(self.name, before + data)
            self.ragged = False
        else:
            self.ragged = not start  # what failed to begin may have left something behind
            self._files.append(self.name, data, sync)
            self.ragged = False
        self.length += len(data)
        self._sequence += len(records)
        return len(data)

    def create(self, bodies: Iterable[bytes]) -> None:
        """Writes the whole file at once. StateWriteError."""
        records = tuple(bodies)
        data = frames.header(self._kind, self.number, self.floor)
        data += frames.frames(self._kind, self.number, 1, records)
        self._files.write(self.name, data)
        self.length = len(data)
        self._sequence = len(records) + 1


_NAMES = {frames.SNAPSHOT: "snapshot", frames.JOURNAL: "journal", frames.OUTBOX: "outbox"}


def log_name(kind: int, number: int) -> str:
    """What a file is called."""
    return f"{_NAMES[kind]}-{number}"


def numbers(names: Iterable[str], kind: int) -> list[int]:
    """The numbers of the files of a kind, ascending; what is called otherwise is not ours."""
    prefix = f"{_NAMES[kind]}-"
    found = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return sorted(int(n) for n in found if len(n) < 19 and n.isascii() and n.isdecimal() and str(int(n)) == n)
