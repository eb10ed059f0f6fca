"""Files that a command writes for its user to look at and change: never over what is there already."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from bb_edge.ir.errors import BBError
from bb_shims.single_file import write_whole

__all__ = ["FileThere", "remedy_of", "write_new"]

_REMEDIES: Mapping[int, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, or name another place"),
    errno.EFBIG: "name another place, or raise the limit of a file's size (ulimit -f)",
    errno.EROFS: "what is mounted there takes no writes: name another place",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "name another place, or give it to the user that writes"),
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "a part of the path is a file: name a folder",
    errno.EISDIR: "it is a folder: name a file in it",
}


def remedy_of(error: OSError) -> str:
    """Returns what to do where a file cannot be written."""
    return _REMEDIES.get(error.errno or 0, "look at the disk, or name another place")


class FileThere(BBError):
    """A file that a command would write is there already, with another content."""


def write_new(files: Mapping[str, bytes], folder: Path, *, force: bool = False) -> list[Path]:
    """Writes files, by their names below `folder`, and returns their paths in the same order.

    What is there with the same content stays as it is. Raises FileThere, before anything is written, where
    one has another content and `force` is not given; OSError where the disk does not take them.
    """
    paths = {folder / name: data for name, data in files.items()}
    if not force:
        for path, data in paths.items():
            if path.exists() and (not path.is_file() or path.read_bytes() != data):
                raise FileThere(
                    "it is there already, and is another one",
                    str(path),
                    "write to another folder with -o, or replace it with --force",
                )
    for path, data in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    return list(paths)
