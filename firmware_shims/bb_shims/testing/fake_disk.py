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
    """The simulated power goes. Not an ``Exception``: no handler gets to see the real one either."""


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
    """``kind`` happens at the ``at``-th operation from now on (1 is the next), counting only ``operation`` if
    given.
    """

    kind: FaultKind
    at: int = 1
    operation: str | None = None


OPERATIONS: Final = ("create", "open", "write", "truncate", "sync", "rename", "unlink", "sync_folder", "read")
"""The operations that are counted and can fail."""


class _Inode:
    """A file: its bytes, and those of them that would survive."""

    __slots__ = ("data", "synced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)


class FakeDisk:
    """The medium. ``open()`` gives what a storage works with; ``crash()`` ends all that is open.

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
        self._faults: list[list[object]] = []
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        # Each change of the folder: the name given and to which file, the name taken away.
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
        """How many operations were asked for in all."""
        return sum(self.counts.values())

    @property
    def dead(self) -> bool:
        """Whether the power is gone and ``crash`` was not called yet."""
        return self._dead

    @property
    def files(self) -> dict[str, bytes]:
        """What a reader of the disk would see now, temporary files included. Counts and fails nothing."""
        return {name: bytes(inode.data) for name, inode in self._names.items()}

    def inject(self, *faults: Fault) -> None:
        """Arm the faults; each strikes once."""
        self._faults += [[fault, fault.at] for fault in faults]

    def disarm(self) -> None:
        """Forget the faults that did not strike."""
        self._faults.clear()

    @property
    def armed(self) -> int:
        """How many faults did not strike yet."""
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
        kept = {CrashMode.LOSE: 0, CrashMode.SEEDED: rng.randint(0, len(self._changes))}.get(
            mode, len(self._changes)
        )
        for given, inode, taken in self._changes[:kept]:
            if taken is not None:
                names.pop(taken, None)
            if given is not None and inode is not None:
                names[given] = inode
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
        self.counts[operation] += 1
        if self._dead:
            raise PowerCut
        struck: FaultKind | None = None
        for armed in list(self._faults):
            fault, left = armed
            assert isinstance(fault, Fault) and isinstance(left, int)
            if fault.operation in (None, operation):
                armed[1] = left - 1
                if left == 1:
                    self._faults.remove(armed)
                    struck = struck or fault.kind
        if struck is FaultKind.FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if struck is FaultKind.FAIL or (struck is FaultKind.TORN and operation != "write"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if struck is FaultKind.CUT_BEFORE or (struck is FaultKind.CUT_INSIDE and operation != "write"):
            self._cut()
        return struck

    def _cut(self) -> None:
        self._dead = True
        raise PowerCut

    def _mirror(self, name: str) -> None:
        if self._folder is None:
            return
        inode = self._names.get(name)
        if inode is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            (self._folder / name).write_bytes(inode.data)


def _partly(inode: _Inode, rng: random.Random) -> bytes:
    """What may be on the medium of a file with unsynced changes: old bytes, new bytes, or the new ones up to
    a point.
    """
    if bytes(inode.data) == inode.synced:
        return inode.synced
    if inode.data.startswith(inode.synced):
        return bytes(inode.data[: rng.randint(len(inode.synced), len(inode.data))])
    return rng.choice((inode.synced, bytes(inode.data)))


class FakeDiskSession:
    """:class:`bb_shims.disk.Disk` on a :class:`FakeDisk`. After a crash it is as dead as its process."""

    def __init__(self, disk: FakeDisk, generation: int) -> None:
        self._disk = disk
        self._generation = generation
        self._handles: dict[int, tuple[str, _Inode]] = {}
        self._next = 3

    @property
    def where(self) -> str:
        return self._disk.where

    @property
    def open_handles(self) -> int:
        """How many files are open: a leak shows here."""
        return len(self._handles)

    def create(self, name: str) -> int:
        struck = self._begin("create")
        inode = self._disk._names.get(name)
        if inode is None:
            inode = self._link(name, _Inode())
        inode.data.clear()
        return self._open(name, inode, struck)

    def open_append(self, name: str) -> int:
        struck = self._begin("open")
        return self._open(name, self._find(name, struck), struck)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        struck = self._begin("write")
        name, inode = self._file(handle)
        count = len(data)
        if struck in (FaultKind.TORN, FaultKind.SHORT, FaultKind.CUT_INSIDE):
            count = count // 2 if struck is not FaultKind.SHORT else max(count // 2, 1)
        if count:
            count = min(count, self.free_bytes())
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.data += data[:count]
        self._disk._mirror(name)
        if struck is FaultKind.TORN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if struck is FaultKind.CUT_INSIDE:
            self._disk._cut()
        self._end(struck)
        return count

    def size(self, handle: int) -> int:
        return len(self._file(handle)[1].data)

    def truncate(self, handle: int, size: int) -> None:
        struck = self._begin("truncate")
        name, inode = self._file(handle)
        del inode.data[size:]
        self._disk._mirror(name)
        self._end(struck)

    def sync(self, handle: int) -> None:
        struck = self._begin("sync")
        inode = self._file(handle)[1]
        inode.synced = bytes(inode.data)
        self._end(struck)

    def close_file(self, handle: int) -> None:
        self._handles.pop(handle, None)

    def rename(self, old: str, new: str) -> None:
        struck = self._begin("rename")
        disk = self._disk
        inode = self._find(old, struck)
        del disk._names[old]
        disk._names[new] = inode
        disk._changes.append((new, inode, old))
        disk._mirror(old)
        disk._mirror(new)
        self._end(struck)

    def unlink(self, name: str) -> None:
        struck = self._begin("unlink")
        self._find(name, struck)
        del self._disk._names[name]
        self._disk._changes.append((None, None, name))
        self._disk._mirror(name)
        self._end(struck)

    def sync_folder(self) -> None:
        struck = self._begin("sync_folder")
        self._disk._synced_names = dict(self._disk._names)
        self._disk._changes.clear()
        self._end(struck)

    def read(self, name: str) -> bytes:
        struck = self._begin("read")
        data = bytes(self._find(name, struck).data)
        self._end(struck)
        return data

    def names(self) -> list[str]:
        self._alive()
        return list(self._disk._names)

    def free_bytes(self) -> int:
        self._alive()
        inodes = {id(inode): inode for inode in self._disk._names.values()}
        return max(self._disk.capacity_bytes - sum(len(inode.data) for inode in inodes.values()), 0)

    def close(self) -> None:
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

    def _end(self, struck: FaultKind | None) -> None:
        if struck is FaultKind.CUT_AFTER:
            self._disk._cut()

    def _open(self, name: str, inode: _Inode, struck: FaultKind | None) -> int:
        self._disk._mirror(name)
        self._end(struck)
        handle, self._next = self._next, self._next + 1
        self._handles[handle] = (name, inode)
        return handle

    def _link(self, name: str, inode: _Inode) -> _Inode:
        self._disk._names[name] = inode
        self._disk._changes.append((name, inode, None))
        return inode

    def _find(self, name: str, struck: FaultKind | None) -> _Inode:
        try:
            return self._disk._names[name]
        except KeyError:
            self._end(struck)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def _file(self, handle: int) -> tuple[str, _Inode]:
        self._alive()
        try:
            return self._handles[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
