"""One file in a folder that is somebody else's: written whole or not at all, even if the power fails."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from .disk import Disk, LinuxDisk


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, or replace it; who may read it is as for any new file of this process.

    Afterwards the file survives a power cut. Raises ``OSError``: the file is as it was, unless the folder
    alone could not be synced. What a power cut leaves beside the file begins with a dot and the file's name.
    """
    path = Path(path)
    disk = LinuxDisk(path.parent, own=False, mode=0o666)
    try:
        put(disk, path.name, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not with the temporary file's name
    finally:
        disk.close()


def put(disk: Disk, name: str, data: bytes) -> None:
    """Do the same in an open folder: a temporary file is synced and renamed, then the folder is synced."""
    temporary = f".{name}.{os.getpid()}"
    try:
        handle = disk.create(temporary)
        try:
            view = memoryview(data)
            while view:
                written = disk.write(handle, view)
                if written <= 0:
                    raise OSError(errno.EIO, "the file system accepted no bytes")
                view = view[written:]
            disk.sync(handle)
        finally:
            disk.close_file(handle)
        disk.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync_folder()
