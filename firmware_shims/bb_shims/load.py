"""How busy the board is."""

from __future__ import annotations

import os
from typing import Protocol

from .sysfiles import SysFiles


class Load(Protocol):
    """The work that waits for a processor."""

    def per_core(self) -> float | None:
        """Return how many processes ran or waited over the last minute, per core; None where unknown."""
        ...


class LinuxLoad:
    """The kernel's load average. It counts the node's own work, too."""

    __slots__ = ("_cores", "_files")

    def __init__(self, root: str | os.PathLike[str] = "/", cores: int | None = None) -> None:
        self._files = SysFiles(root)
        self._cores = cores or os.cpu_count() or 1

    def per_core(self) -> float | None:
        """Read the average of one minute anew, and divide it by the number of cores."""
        first = (self._files.text("/proc/loadavg") or "").partition(" ")[0]
        try:
            return float(first) / self._cores
        except ValueError:
            return None
