"""The few system calls that storage is built on, as an interface, so that tests can fail each of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Protocol


class Disk(Protocol):
    """A flat folder. Handles are small integers.

    Every method raises ``OSError`` and does nothing then, except ``write``, which may have stored a part: the
    caller looks at ``size``.
    """

    @property
    def where(self) -> str:
        """Name the folder, for messages."""
        ...

    def create(self, name: str) -> int:
        """Open ``name`` empty, whether it is new or not; each write goes to its end."""
        ...

    def open_append(self, name: str) -> int:
        """Open the existing file ``name``; each write goes to its end."""
        ...

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Write some bytes of ``data``, at least one, and return how many."""
        ...

    def size(self, handle: int) -> int:
        """Return the file's length in bytes. ENOENT where the file has been removed: nobody would read it."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def sync(self, handle: int) -> None:
        """Return once the file's bytes and length would survive a power cut."""
        ...

    def close_file(self, handle: int) -> None:
        """Give the handle back."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give the file ``old`` the name ``new``, atomically; a file of that name is replaced."""
        ...

    def unlink(self, name: str) -> None:
        """Remove the name."""
        ...

    def sync_folder(self) -> None:
        """Return once the folder's names would survive a power cut."""
        ...

    def read(self, name: str) -> bytes:
        """Return the whole file."""
        ...

    def length(self, name: str) -> int:
        """Return the length of the file in bytes."""
        ...

    def names(self) -> list[str]:
        """Return the names of the regular files, in no order."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes that this process may still write."""
        ...

    def close(self) -> None:
        """Give the folder back; once is enough."""
        ...


def folder_in_use(folder: str | os.PathLike[str]) -> bool:
    """Return whether a storage has this folder open. Changes nothing. Raises ``OSError`` where it is none."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class LinuxDisk:
    """A folder of a Linux file system, locked: one process, one storage. It is created where absent.

    One that is not its ``own`` is neither created nor locked. All names are resolved relative to the opened
    folder, so a folder that is moved meanwhile is still the same.
    """

    __slots__ = ("_fd", "_mode", "_where")

    def __init__(self, folder: str | os.PathLike[str], own: bool = True, mode: int = 0o600) -> None:
        """Open and lock ``folder``. Raises ``OSError``, with EWOULDBLOCK where another storage has it.

        New files get the permissions ``mode``, less the process's umask.
        """
        self._fd = -1
        self._mode = mode
        self._where = os.fspath(folder)
        created = own and self._make(self._where)
        self._fd = os.open(self._where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Two nodes that share an outbox would hand out the same numbers twice, so the second must not
            # start.
            if own:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if created:
                self._sync_parent()
        except OSError:
            self.close()
            raise

    @staticmethod
    def _make(where: str) -> bool:
        if os.path.isdir(where):
            return False
        os.makedirs(where, mode=0o700, exist_ok=True)
        return True

    def _sync_parent(self) -> None:
        parent = os.open(
            os.path.dirname(os.path.abspath(self._where)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    @property
    def where(self) -> str:
        """Name the folder as the caller wrote it."""
        return self._where

    def create(self, name: str) -> int:
        """Open with O_CREAT, O_TRUNC and O_APPEND, and follow no link."""
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
        return os.open(name, flags, self._mode, dir_fd=self._fd)

    def open_append(self, name: str) -> int:
        """Open with O_APPEND, and follow no link."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._fd)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Call write(2)."""
        return os.write(handle, data)

    def size(self, handle: int) -> int:
        """Call fstat(2)."""
        status = os.fstat(handle)
        if not status.st_nlink:
            raise OSError(errno.ENOENT, "somebody has removed the file")
        return status.st_size

    def truncate(self, handle: int, size: int) -> None:
        """Call ftruncate(2)."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Call fdatasync(2)."""
        os.fdatasync(handle)  # bytes and length; the times of the last change may be lost

    def close_file(self, handle: int) -> None:
        """Call close(2)."""
        os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Call renameat(2) within the folder."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Call unlinkat(2)."""
        os.unlink(name, dir_fd=self._fd)

    def sync_folder(self) -> None:
        """Call fsync(2) on the folder."""
        os.fsync(self._fd)

    def read(self, name: str) -> bytes:
        """Read a regular file to its end; EINVAL for anything else."""
        # O_NONBLOCK: a named pipe that someone left here must not hang the node.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._fd)
        with open(handle, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return file.readall()

    def length(self, name: str) -> int:
        """Ask stat(2), without following a link."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size

    def names(self) -> list[str]:
        """List the folder without following links."""
        with os.scandir(self._fd) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def free_bytes(self) -> int:
        """Return what fstatvfs(2) leaves to unprivileged processes."""
        system = os.fstatvfs(self._fd)
        return system.f_bavail * system.f_frsize

    def close(self) -> None:
        """Close the folder and give its lock back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)  # gives the lock back too
