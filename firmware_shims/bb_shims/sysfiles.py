"""Reads the kernel's small text files below a root folder.

The root is ``/`` on a board and a temporary tree in tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 1 << 16
"""The most bytes that are read of a kernel file. Most have some hundreds, ``memory.stat`` a few thousand."""


class SysFiles:
    """Files of /proc, /sys, /etc, /var below ``root``.

    A file that is not there is ``None``; nothing is cached.
    """

    __slots__ = ("root",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root)

    def path(self, name: str) -> Path:
        """Return where the absolute path ``name`` lies below the root."""
        return self.root / name.lstrip("/")

    def raw(self, name: str) -> bytes | None:
        """Return the file's bytes, at most ``MAX_FILE_BYTES``, or None where it is absent or cannot be read.

        Kernel attributes answer EAGAIN, EINVAL or ENODATA while a device sleeps, which is no different from
        absence.
        """
        try:
            with open(self.path(name), "rb") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return None

    def text(self, name: str) -> str | None:
        """Return the file's text, or None where it is absent.

        Surrounding blanks and NULs are cut: device tree strings end with one.
        """
        raw = self.raw(name)
        return None if raw is None else raw.decode("utf-8", "replace").strip(" \t\r\n\0")

    def number(self, name: str) -> int | None:
        """Return the file's decimal number, or None where it is absent or holds something else."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            return None

    def folders(self, name: str, prefix: str) -> list[str]:
        """Return the absolute names of entries that start with ``prefix``, zone2 before zone10."""
        try:
            entries = [e for e in os.listdir(self.path(name)) if e.startswith(prefix)]
        except OSError:
            return []
        return [f"{name}/{e}" for e in sorted(entries, key=lambda e: (len(e), e))]
