"""A disk in memory that fails where it is told to and forgets in a power cut what was not synced.

It follows the weakest promises that Linux file systems make: bytes survive when their file was synced, names
when the folder was, and nothing else need survive, or may.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_CAPACITY_BYTES: Final = 1 << 30


class PowerCut(BaseException):
    """The simulated power goes. It is not an ``Exception``: no handler sees the real power go either."""


class FaultKind(enum.Enum):
    """What happens at the chosen operation."""

    FAIL = "the operation fails with EIO and does nothing"
    FULL = "the operation fails with ENOSPC and does nothing"
    TORN = "a write stores its first half, then fails with EIO; other operations fail"
    SHORT = "a write stores its first half and says so; other operations succeed"
    CUT_BEFORE = "the power goes before the operation"
    CUT_INSIDE = "the power goes when half of a write is stored; before other operations"
    CUT_AFTER = "the power goes after the operation"


class CrashMode(enum.Enum):
    """What, beyond the synced, survives a crash."""

    LOSE = "nothing: the caches were never written back"
    KEEP = "everything: only the process died"
    NAMES = "the names, not the bytes: the file system wrote its metadata first"
    SEEDED = "the first few changes of the folder, and some part of each file's unsynced bytes, by the seed"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at the ``at``-th operation from now on; 1 is the next.

    With ``operation`` only operations of that name count.
    """

    kind: FaultKind
    at: int = 1
    operation: str | None = None


OPERATIONS: Final = ("create", "open", "write", "truncate", "sync", "rename", "unlink", "sync_folder", "read")
"""The operations that count and can fail."""


class _Inode:
    """A file: its bytes, and those of them that would survive."""

    __slots__ = ("data", "synced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)


class FakeDisk:
    """The medium. ``open()`` returns what a storage works with; ``crash()`` ends all that is open.

    With ``folder`` the files are read from there, and its files always show what a reader of the disk would
    see now.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, capacity_bytes: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        self.where = "fake disk" if folder is None else os.fspath(folder)
        self.capacity_bytes = capacity_bytes
        self.counts: Counter[str] = Counter()
        """How often each operation was asked for."""
        self._folder = None if folder is None else Path(folder)
        self._faults: list[tuple[Fault, int]] = []  # with the operations until it strikes
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        # Each change of the folder: the name that came, its file, the name that went.
        self._changes: list[tuple[str | None, _Inode | None, str | None]] = []
        self._generation = 0
        self._dead = False
        self._open = False
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                self._names[path.name] = _Inode(path.read_bytes())
            self._synced_names = dict(self._names)

    @property
    def operations(self) -> int:
        """Return how many operations were asked for in all."""
        return sum(self.counts.values())

    @property
    def dead(self) -> bool:
        """Whether the power is gone and ``crash`` was not called yet."""
        return self._dead

    @property
    def files(self) -> dict[str, bytes]:
        """Return what a reader of the disk would see now, temporary files included.

        It counts nothing and fails nothing.
        """
        return {name: bytes(inode.data) for name, inode in self._names.items()}

    def inject(self, *faults: Fault) -> None:
        """Arm the faults; each strikes once."""
        self._faults += [(fault, fault.at) for fault in faults]

    def disarm(self) -> None:
        """Forget the faults that did not strike."""
        self._faults.clear()

    @property
    def armed(self) -> int:
        """Return how many faults did not strike yet."""
        return len(self._faults)

    def open(self) -> FakeDiskSession:
        """Open the disk, once at a time, as the lock of a real folder has it."""
        if self._open:
            raise OSError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        if self._dead:
            raise PowerCut
        self._open = True
        return FakeDiskSession(self, self._generation)

    def crash(self, mode: CrashMode = CrashMode.LOSE, seed: int = 0) -> None:
        """Cut the power and switch it on again: what is open is lost, what survives is up to ``mode``."""
        rng = random.Random(seed)
        names = dict(self._synced_names)
        survivors = {CrashMode.LOSE: 0, CrashMode.SEEDED: rng.randint(0, len(self._changes))}.get(
            mode, len(self._changes)
        )
        for new, inode, old in self._changes[:survivors]:
            if old is not None:
                names.pop(old, None)
            if new is not None and inode is not None:
                names[new] = inode
        inodes = {id(inode): inode for inode in itertools.chain(names.values(), self._names.values())}
        for inode in inodes.values():
            if mode is CrashMode.KEEP:
                inode.synced = bytes(inode.data)
            elif mode is CrashMode.SEEDED:
                inode.synced = _partly(inode, rng)
            inode.data = bytearray(inode.synced)
        self._names, self._synced_names, self._changes = names, dict(names), []
        self._generation += 1
        self._dead = self._open = False
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
            for name in names:
                self._mirror(name)

    # ---------------------------------------------------------------------------------- for the session below

    def _strike(self, operation: str) -> FaultKind | None:
        """Count an operation, and return or raise the fault that strikes it."""
        self.counts[operation] += 1
        if self._dead:
            raise PowerCut
        kind: FaultKind | None = None
        armed: list[tuple[Fault, int]] = []
        for fault, left in self._faults:
            if fault.operation not in (None, operation):
                armed.append((fault, left))
            elif left == 1:
                kind = kind or fault.kind
            else:
                armed.append((fault, left - 1))
        self._faults = armed
        if kind is FaultKind.FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if kind is FaultKind.FAIL or (kind is FaultKind.TORN and operation != "write"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if kind is FaultKind.CUT_BEFORE or (kind is FaultKind.CUT_INSIDE and operation != "write"):
            self._cut()
        return kind

    def _cut(self) -> None:
        """Cut the power."""
        self._dead = True
        raise PowerCut

    def _mirror(self, name: str) -> None:
        """Write a file to the real folder, if there is one."""
        if self._folder is None:
            return
        inode = self._names.get(name)
        if inode is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            (self._folder / name).write_bytes(inode.data)


def _partly(inode: _Inode, rng: random.Random) -> bytes:
    """Return what may be on the medium of a file with unsynced changes.

    That is the old bytes, the new bytes, or the new bytes up to a point.
    """
    if bytes(inode.data) == inode.synced:
        return inode.synced
    if inode.data.startswith(inode.synced):
        return bytes(inode.data[: rng.randint(len(inode.synced), len(inode.data))])
    return rng.choice((inode.synced, bytes(inode.data)))


class FakeDiskSession:
    """A :class:`bb_shims.Disk` on a :class:`FakeDisk`. After a crash it is as dead as its process."""

    def __init__(self, disk: FakeDisk, generation: int) -> None:
        self._disk = disk
        self._generation = generation
        self._handles: dict[int, tuple[str, _Inode]] = {}
        self._next = 3

    @property
    def where(self) -> str:
        """Name the fake disk, or the folder that it is mirrored to."""
        return self._disk.where

    @property
    def open_handles(self) -> int:
        """Return how many files are open: a leak shows here."""
        return len(self._handles)

    def create(self, name: str) -> int:
        """Open a file empty; its name is a change that a crash may undo."""
        fault = self._begin("create")
        inode = self._disk._names.get(name)
        if inode is None:
            inode = self._link(name, _Inode())
        inode.data.clear()
        return self._open(name, inode, fault)

    def open_append(self, name: str) -> int:
        """Open an existing file; ENOENT without."""
        fault = self._begin("open")
        return self._open(name, self._find(name, fault), fault)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Store bytes, half of them where a fault says so; ENOSPC on a full disk."""
        fault = self._begin("write")
        name, inode = self._file(handle)
        count = len(data)
        if fault in (FaultKind.TORN, FaultKind.SHORT, FaultKind.CUT_INSIDE):
            count = count // 2 if fault is not FaultKind.SHORT else max(count // 2, 1)
        if count:
            count = min(count, self.free_bytes())
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.data += data[:count]
        self._disk._mirror(name)
        if fault is FaultKind.TORN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fault is FaultKind.CUT_INSIDE:
            self._disk._cut()
        self._end(fault)
        return count

    def size(self, handle: int) -> int:
        """Return the file's length."""
        return len(self._file(handle)[1].data)

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file, which a crash may undo."""
        fault = self._begin("truncate")
        name, inode = self._file(handle)
        del inode.data[size:]
        self._disk._mirror(name)
        self._end(fault)

    def sync(self, handle: int) -> None:
        """Make the file's bytes survive a crash."""
        fault = self._begin("sync")
        inode = self._file(handle)[1]
        inode.synced = bytes(inode.data)
        self._end(fault)

    def close_file(self, handle: int) -> None:
        """Forget the handle."""
        self._handles.pop(handle, None)

    def rename(self, old: str, new: str) -> None:
        """Move the name, which a crash may undo."""
        fault = self._begin("rename")
        disk = self._disk
        inode = self._find(old, fault)
        del disk._names[old]
        disk._names[new] = inode
        disk._changes.append((new, inode, old))
        disk._mirror(old)
        disk._mirror(new)
        self._end(fault)

    def unlink(self, name: str) -> None:
        """Remove the name, which a crash may undo."""
        fault = self._begin("unlink")
        self._find(name, fault)
        del self._disk._names[name]
        self._disk._changes.append((None, None, name))
        self._disk._mirror(name)
        self._end(fault)

    def sync_folder(self) -> None:
        """Make the names survive a crash."""
        fault = self._begin("sync_folder")
        self._disk._synced_names = dict(self._disk._names)
        self._disk._changes.clear()
        self._end(fault)

    def read(self, name: str) -> bytes:
        """Return the file's bytes; ENOENT without."""
        fault = self._begin("read")
        data = bytes(self._find(name, fault).data)
        self._end(fault)
        return data

    def length(self, name: str) -> int:
        """Return the file's length; ENOENT without."""
        self._alive()
        return len(self._find(name, None).data)

    def names(self) -> list[str]:
        """Return all names."""
        self._alive()
        return list(self._disk._names)

    def free_bytes(self) -> int:
        """Return the capacity that the files leave."""
        self._alive()
        inodes = {id(inode): inode for inode in self._disk._names.values()}
        return max(self._disk.capacity_bytes - sum(len(inode.data) for inode in inodes.values()), 0)

    def close(self) -> None:
        """End the session; a second call does nothing."""
        self._handles.clear()
        if self._generation == self._disk._generation:
            self._disk._open = False
            self._generation = -1

    # ------------------------------------------------------------------------------------------------ helpers

    def _alive(self) -> None:
        if self._generation == -1:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._disk.dead or self._generation != self._disk._generation:
            raise PowerCut

    def _begin(self, operation: str) -> FaultKind | None:
        self._alive()
        return self._disk._strike(operation)

    def _end(self, fault: FaultKind | None) -> None:
        if fault is FaultKind.CUT_AFTER:
            self._disk._cut()

    def _open(self, name: str, inode: _Inode, fault: FaultKind | None) -> int:
        self._disk._mirror(name)
        self._end(fault)
        handle, self._next = self._next, self._next + 1
        self._handles[handle] = (name, inode)
        return handle

    def _link(self, name: str, inode: _Inode) -> _Inode:
        self._disk._names[name] = inode
        self._disk._changes.append((name, inode, None))
        return inode

    def _find(self, name: str, fault: FaultKind | None) -> _Inode:
        try:
            return self._disk._names[name]
        except KeyError:
            self._end(fault)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def _file(self, handle: int) -> tuple[str, _Inode]:
        self._alive()
        try:
            return self._handles[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
