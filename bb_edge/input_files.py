"""Opens the files that users name: artifacts, configurations, data, certificates.

A FIFO would be waited for without end, and a device such as /dev/zero has no end: only regular files are
opened.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from bb_edge.ir.errors import BBError

__all__ = ["MAX_ARTIFACT", "FileRefused", "open_regular", "read_artifact", "read_regular", "refuse_special"]

MAX_ARTIFACT = 2**31 - 1
"""Bytes of the largest artifact: protobuf reads no larger message."""


class FileRefused(BBError):
    """A path leads to no regular file, or to one that is too large to be what it is given for."""


def open_regular(path: str | os.PathLike[str], follow: bool = True) -> BinaryIO:
    """Opens a regular file for reading, without waiting; with `follow` also one that a link leads to.

    Raises FileRefused for anything else but a file, OSError where it cannot be opened.
    """
    try:
        handle = os.open(path, _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    except ValueError as error:  # a NUL in it
        raise _no_name(path, error) from error
    try:
        _refuse(os.fstat(handle).st_mode, path)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(
    path: str | os.PathLike[str], most: int, hint: str = "is it the right file?", follow: bool = True
) -> bytes:
    """Returns the content of a regular file of `most` bytes at most; with `follow` also through a link.

    Raises FileRefused for a larger file and for anything else but a file, OSError where it cannot be read.
    """
    with open_regular(path, follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            try:
                # Room is made for what is asked for: `most` of an artifact is more than a board has.
                data = file.read(size + 1)
                if len(data) > size:  # it grows
                    data += file.read(most + 1 - len(data))
            except MemoryError:
                raise FileRefused(f"its {size} bytes do not fit into memory", os.fspath(path), hint) from None
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from error
            if len(data) <= most:
                return data
    raise FileRefused(f"it is larger than {most} bytes", os.fspath(path), hint)


def read_artifact(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of an artifact. Raises FileRefused and OSError, as `read_regular` does."""
    return read_regular(path, MAX_ARTIFACT, "give an artifact, a compiled .onnx file")


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raises FileRefused where a path that another library will open leads to a FIFO, device or socket.

    A path that leads nowhere, and a folder, are left to that library.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    except ValueError as error:
        raise _no_name(path, error) from error
    if not stat.S_ISDIR(mode):
        _refuse(mode, path)


def _no_name(path: str | os.PathLike[str], error: ValueError) -> FileRefused:
    return FileRefused(str(error), repr(os.fspath(path))[:100], "write the name of a file")


def _refuse(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_one, name in _KINDS if is_one(mode)), "no file")
        raise FileRefused(f"it is {kind}", os.fspath(path), "give a regular file")


_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)  # without waiting a FIFO opens at once; Windows has other flags

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO, which may never end"),
    (stat.S_ISCHR, "a device, which may never end"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
