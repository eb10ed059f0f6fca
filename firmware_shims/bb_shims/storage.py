"""Files that survive a power cut at any moment: the old bytes or the new ones, whole.

``write_atomic`` writes a temporary file, syncs it, renames it over the old one and syncs the folder.
``append`` adds to a journal; a power cut may tear its last unsynced records, so each record carries its
length and checksum, which is the journal's business. After an error the file reads as before the call, with
one exception that the error names: where the last step, syncing the folder, failed, the new bytes are in
place, but a power cut may yet bring the old ones back.

One storage belongs to one thread.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol

from .disk import Disk, LinuxDisk
from .errors import MissingFileError, StorageError, StorageFullError

Buffer = bytes | bytearray | memoryview

TEMP_PREFIX: Final = ".bb-new-"
MAX_NAME_BYTES: Final = 200
"""Longest name in UTF-8 bytes. With the prefix of temporary files it stays below Linux's limit of 255."""
MAX_OPEN_JOURNALS: Final = 8
"""Journals kept open between appends. For a ninth, the least recently used one is closed."""
FOLDER_IN_USE: Final = "another storage has this folder open; each node needs a folder of its own"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_GONE_ADVICE = "what it held is lost; nothing is written there until the node is started again"
_FULL_ADVICE = "free some space there"


class Storage(Protocol):
    """The files of a folder.

    Names are plain: no separators, no control characters, no ``..``, no leading dot.

    Every operation raises :class:`StorageError` (:class:`StorageFullError`, :class:`MissingFileError`).
    """

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        """Replace the file's bytes, which may come in pieces; on return they survive a power cut."""
        ...

    def read(self, name: str) -> bytes:
        """Return the file's bytes. Raises :class:`MissingFileError`."""
        ...

    def size(self, name: str) -> int:
        """Return the file's length, without reading it. Raises :class:`MissingFileError`."""
        ...

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
        """Add to the file's end, creating it; the bytes may come in pieces.

        With ``sync`` all that was ever appended survives a power cut.
        """
        ...

    def list(self) -> list[str]:
        """Return the names of the files, sorted.

        Files of foreign shape (leading dots, folders, links) are left out.
        """
        ...

    def remove(self, name: str, sync: bool = True) -> None:
        """Remove the file; with ``sync`` it stays removed. Raises :class:`MissingFileError`.

        Without, a power cut may bring it back, the last ones first, until any call that syncs the folder.
        """
        ...

    def free_bytes(self) -> int:
        """Return the bytes that can still be written."""
        ...

    def close(self) -> None:
        """Give the folder back without a sync. Operations after it raise :class:`StorageError`."""
        ...


def name_fault(name: str) -> str | None:
    """Return why ``name`` is not a plain file name, or None if it is."""
    if not name:
        return "the name is empty"
    if "/" in name or "\\" in name:
        return "the name holds a separator"
    if ".." in name or name.startswith("."):
        return "the name holds '..' or starts with a dot"
    if not name.isprintable():
        return "the name holds control characters"
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"the name is longer than {MAX_NAME_BYTES} bytes"
    return None


def _pieces(data: bytes | Sequence[Buffer]) -> Sequence[Buffer]:
    return (data,) if isinstance(data, bytes) else data


class _Journal:
    """An open file that is appended to."""

    __slots__ = ("created", "handle", "named")

    def __init__(self, handle: int, created: bool) -> None:
        self.handle = handle
        self.created = created  # by the append that is under way
        self.named = False  # whether a power cut would spare its name


class AtomicStorage:
    """:class:`Storage` over a :class:`Disk`.

    Opening it removes the temporary files that a crash left.
    """

    __slots__ = ("_closed", "_disk", "_journals", "_suspect", "_torn")

    def __init__(self, disk: Disk) -> None:
        """Clean up the folder. Raises :class:`StorageError` where it cannot be read or written."""
        self._disk = disk
        self._journals: OrderedDict[str, _Journal] = OrderedDict()
        # Both by name, and never more names than the folder has files:
        self._suspect: set[str] = set()  # files of which a sync failed
        self._torn: dict[str, int] = {}  # files that end in a torn record, and the length without it
        self._closed = False
        for name in self._names("clean up"):
            if name.startswith(TEMP_PREFIX):
                try:
                    disk.unlink(name)
                except OSError as error:
                    raise self._error(name, "remove the leftover", error) from error

    # -------------------------------------------------------------------------------------------- whole files

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        """Write a temporary file, sync it, rename it over ``name``, and sync the folder."""
        self._check(name, "write")
        self._forget_journal(name)  # its handle would stay with the old file
        temp = TEMP_PREFIX + name
        step = "create"
        try:
            handle = self._disk.create(temp)
            try:
                step = "write"
                for piece in _pieces(data):
                    self._write_all(handle, piece)
                step = "sync"
                self._disk.sync(handle)
            finally:
                self._disk.close_file(handle)
            step = "rename"
            self._disk.rename(temp, name)
        except OSError as error:
            self._unlink_quietly(temp)
            raise self._error(name, step, error) from error
        self._mend(name)
        self._sync_folder(name, "the change is in place, but a power cut may undo it")

    def read(self, name: str) -> bytes:
        """Read the file anew at each call."""
        self._check(name, "read")
        try:
            return self._disk.read(name)
        except OSError as error:
            raise self._error(name, "read", error) from error

    def size(self, name: str) -> int:
        """Ask the disk anew at each call."""
        self._check(name, "read")
        try:
            return self._disk.length(name)
        except OSError as error:
            raise self._error(name, "read", error) from error

    def remove(self, name: str, sync: bool = True) -> None:
        """Unlink the file and, with ``sync``, sync the folder."""
        self._check(name, "remove")
        self._forget_journal(name)
        try:
            self._disk.unlink(name)
        except OSError as error:
            raise self._error(name, "remove", error) from error
        self._mend(name)
        if sync:
            self._sync_folder(name, "the change is in place, but a power cut may undo it")

    # ----------------------------------------------------------------------------------------------- journals

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
        """Write to the open journal; after a failed sync write the whole file anew."""
        self._check(name, "append to")
        if sync and name in self._suspect:
            # After a failed sync the kernel takes the unwritten pages for clean: a later sync would succeed
            # without having written them. So the whole file is written anew.
            whole = self.read(name)[: self._torn.get(name)]
            self.write_atomic(name, [whole, *_pieces(data)])
            return
        journal = self._journal(name)
        try:
            if sync and not journal.named:
                # Before the record, so that a failure leaves the file as it was and the caller may try again.
                self._sync_folder(name, "nothing was appended")
            self._append(name, journal.handle, data, sync)
        except StorageError:
            if journal.created:
                self._forget_journal(name)
                self._unlink_quietly(name)
                self._mend(name)
            raise
        journal.created = False

    def _append(self, name: str, handle: int, data: bytes | Sequence[Buffer], sync: bool) -> None:
        step = "append to"
        try:
            if name in self._torn:
                self._disk.truncate(handle, self._torn[name])
                del self._torn[name]
            before = self._disk.size(handle)
            try:
                for piece in _pieces(data):
                    self._write_all(handle, piece)
                if sync:
                    step = "sync"
                    self._disk.sync(handle)
            except OSError:
                if step == "sync":
                    self._suspect.add(name)
                # What follows a torn record would be unreadable, so the record goes, now or before the next
                # one.
                self._torn[name] = before
                self._disk.truncate(handle, before)
                del self._torn[name]
                raise
        except OSError as error:
            raise self._error(name, step, error) from error

    def _journal(self, name: str) -> _Journal:
        journal = self._journals.get(name)
        if journal is not None:
            self._journals.move_to_end(name)
            return journal
        while len(self._journals) >= MAX_OPEN_JOURNALS:
            self._forget_journal(next(iter(self._journals)))
        created = False
        try:
            try:
                handle = self._disk.open_append(name)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                handle = self._disk.create(name)
                created = True
        except OSError as error:
            raise self._error(name, "open", error) from error
        journal = self._journals[name] = _Journal(handle, created)
        return journal

    def _forget_journal(self, name: str) -> None:
        journal = self._journals.pop(name, None)
        if journal is not None:
            try:
                self._disk.close_file(journal.handle)
            except OSError as error:
                raise self._error(name, "close", error) from error

    # --------------------------------------------------------------------------------------------- the folder

    def list(self) -> list[str]:
        """List the folder anew at each call."""
        self._check_open("list")
        return sorted(name for name in self._names("list") if name_fault(name) is None)

    def free_bytes(self) -> int:
        """Ask the disk."""
        self._check_open("measure")
        try:
            return self._disk.free_bytes()
        except OSError as error:
            raise self._error("", "measure", error) from error

    def close(self) -> None:
        """Close all journals and the disk; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            while self._journals:
                self._forget_journal(next(iter(self._journals)))
        finally:
            self._disk.close()

    def __enter__(self) -> AtomicStorage:
        """Return this storage, which ``with`` closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the storage."""
        self.close()

    def __del__(self) -> None:
        """Close a storage that nobody closed, which would hold its folder's lock for ever."""
        # A storage that nobody closed must not hold its folder's lock for ever.
        if not getattr(self, "_closed", True):
            self.close()

    # ------------------------------------------------------------------------------------------------ helpers

    def _names(self, step: str) -> Sequence[str]:
        try:
            return self._disk.names()
        except OSError as error:
            raise self._error("", step, error) from error

    def _write_all(self, handle: int, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            written = self._disk.write(handle, view)
            if written <= 0:
                raise OSError(errno.EIO, "the file system accepted no bytes")
            view = view[written:]

    def _mend(self, name: str) -> None:
        self._suspect.discard(name)
        self._torn.pop(name, None)

    def _unlink_quietly(self, name: str) -> None:
        try:
            self._disk.unlink(name)
        except OSError:
            # It may never have been created, or the disk is dead. Either way the first error is the one to
            # report, and a leftover temporary file is removed when the storage is opened next.
            return

    def _sync_folder(self, name: str, advice: str) -> None:
        try:
            self._disk.sync_folder()
        except OSError as error:
            raise self._error(name, "sync the folder of", error, advice) from error
        for journal in self._journals.values():
            journal.named = True

    def _check_open(self, step: str) -> None:
        if self._closed:
            raise StorageError(self._disk.where, step, "the storage is closed")

    def _check(self, name: str, step: str) -> None:
        self._check_open(step)
        fault = name_fault(name)
        if fault is not None:
            raise StorageError(repr(name), step, fault, "use a plain file name")

    def _error(self, name: str, step: str, error: OSError, advice: str = "") -> StorageError:
        path = os.path.join(self._disk.where, name)
        if error.errno == errno.ENOENT and step in ("read", "remove"):
            return MissingFileError(path, step, error, advice)
        if error.errno == errno.ENOENT and step == "append to":
            advice = advice or _GONE_ADVICE
        if error.errno in _FULL:
            return StorageFullError(path, step, error, advice or _FULL_ADVICE)
        return StorageError(path, step, error, advice)


def open_folder(folder: str | os.PathLike[str]) -> AtomicStorage:
    """Open storage in a folder of the machine, created where absent. Raises :class:`StorageError`.

    The folder is locked until the storage is closed; a second storage on it, of this or another process, is
    refused.
    """
    try:
        disk = LinuxDisk(folder)
    except OSError as error:
        advice = ""
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            advice = FOLDER_IN_USE
        raise StorageError(os.fspath(folder), "open", error, advice) from error
    try:
        return AtomicStorage(disk)
    except StorageError:
        disk.close()
        raise
