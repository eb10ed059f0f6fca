"""The names by which workers of one machine hand on what lies in their files.

They pass through who has started the workers, which does not read them: nothing here needs NumPy.
"""

from __future__ import annotations

import os
from pathlib import Path

from bb_host.errors import WorkerError


class Lying(bytes):
    """In place of a body: in which file it lies, for a process on the same machine."""

    __slots__ = ()

    @classmethod
    def at(cls, path: Path, start: int, size: int) -> Lying:
        """The name of `size` bytes in a file."""
        return cls(b"%d %d " % (start, size) + os.fsencode(path))

    def read(self, files: OpenFiles) -> bytes:
        """Returns the bytes. WorkerError where the file does not have them."""
        start, size, path = self.split(b" ", 2)
        try:
            found = os.pread(files.descriptor(path), int(size), int(start))
        except FileNotFoundError as error:
            raise WorkerError("the worker that keeps an envelope has ended", os.fsdecode(path)) from error
        if len(found) != int(size):
            raise WorkerError(
                f"{len(found)} of {int(size)} bytes of an envelope are there", os.fsdecode(path)
            )
        return found


class OpenFiles:
    """Files of other workers, each opened once."""

    def __init__(self) -> None:
        self._descriptors: dict[bytes, int] = {}

    def descriptor(self, path: bytes) -> int:
        """The descriptor of a file, open for reading."""
        found = self._descriptors.get(path)
        if found is None:
            found = self._descriptors[path] = os.open(path, os.O_RDONLY)
        return found

    def close(self) -> None:
        """Closes all of them."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
