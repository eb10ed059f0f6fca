"""How much memory this process may use: the smallest of its cgroups' limits and the machine's memory."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from .errors import MemoryInfoError, MemoryLimitError
from .sysfiles import SysFiles

MemorySource = Literal["cgroup2", "cgroup1", "meminfo"]

MAX_CGROUP_DEPTH: Final = 32
"""Levels of the cgroup tree that are read, from the process's own group upwards; real trees have some six."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """A look at the memory, all in bytes.

    ``limit_bytes``: the most this process may ever have; ``available_bytes``: what it can still get now
    without swapping or being killed; ``source``: whose limit that is; ``rss_bytes``, ``peak_rss_bytes``: what
    it has, and the most it had.
    """

    limit_bytes: int
    available_bytes: int
    source: MemorySource
    rss_bytes: int
    peak_rss_bytes: int


class Memory(Protocol):
    """The board's memory."""

    def info(self) -> MemoryInfo:
        """Read the accounts anew (tens of microseconds: not for inner loops).

        Raises :class:`MemoryInfoError`.
        """
        ...


def require_memory(memory: Memory, requested: int, purpose: str) -> MemoryInfo:
    """Raise :class:`MemoryLimitError` unless ``requested`` bytes are available; ``purpose`` says what for."""
    info = memory.info()
    if requested > info.available_bytes:
        raise MemoryLimitError(purpose, requested, info.available_bytes, info.source)
    return info


class LinuxMemory:
    """Memory accounts of cgroup v2, cgroup v1 or /proc/meminfo, read below ``root``."""

    __slots__ = ("_files",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def info(self) -> MemoryInfo:
        """Read all accounts and return the smallest limit. Raises :class:`MemoryInfoError`."""
        meminfo = self._kib_table("/proc/meminfo")
        limit, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
        if limit is None or available is None:
            raise MemoryInfoError(
                f"{self._files.path('/proc/meminfo')} has no MemTotal or no MemAvailable: is /proc mounted?"
            )
        source: MemorySource = "meminfo"
        for group_source, group_limit, group_free in self._groups():
            # An unlimited group says "max" (v2) or a number near 2**63 (v1): both are no smaller than the
            # machine.
            if group_limit < limit:
                limit, source = group_limit, group_source
            available = min(available, group_free)
        rss, peak = self._resident()
        return MemoryInfo(limit, max(available, 0), source, rss, peak)

    def _resident(self) -> tuple[int, int]:
        status = self._kib_table("/proc/self/status")
        rss = status.get("VmRSS")
        if rss is None:
            raise MemoryInfoError(f"{self._files.path('/proc/self/status')} has no VmRSS: is /proc mounted?")
        peak = status.get("VmHWM")
        if peak is None:  # some sandboxes leave it out
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return rss, max(rss, peak)

    def _kib_table(self, name: str) -> dict[str, int]:
        """Return the lines ``Key:   123 kB`` of a /proc file, in bytes."""
        table: dict[str, int] = {}
        for line in (self._files.text(name) or "").splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
                table[key] = int(words[0]) * 1024
        return table

    def _groups(self) -> list[tuple[MemorySource, int, int]]:
        """Return (source, limit, free) of every limited cgroup around this process."""
        limits: list[tuple[MemorySource, int, int]] = []
        for line in (self._files.text("/proc/self/cgroup") or "").splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0" and not controllers:
                for folder in self._upwards("/sys/fs/cgroup", path, "memory.max"):
                    self._group2(folder, limits)
            elif "memory" in controllers.split(","):
                for folder in self._upwards("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"):
                    self._group1(folder, limits)
        return limits

    def _upwards(self, mount: str, path: str, marker: str) -> list[str]:
        """Return the group's folder and its ancestors, as far as this process can see them.

        In a container the path may be the host's while the mount shows the container's own group as its root:
        then only the mount itself remains.
        """
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            parts = []
        folders = ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
        return [f for f in folders[:MAX_CGROUP_DEPTH] if self._files.path(f"{f}/{marker}").exists()]

    def _group2(self, folder: str, limits: list[tuple[MemorySource, int, int]]) -> None:
        used = self._files.number(f"{folder}/memory.current")
        # Above memory.high the kernel throttles a process to a crawl, so that is a limit too.
        for name in ("memory.max", "memory.high"):
            limit = self._files.number(f"{folder}/{name}")
            if limit is not None:
                limits.append(("cgroup2", limit, limit - (used or 0) + self._cached(folder, "inactive_file")))

    def _group1(self, folder: str, limits: list[tuple[MemorySource, int, int]]) -> None:
        limit = self._files.number(f"{folder}/memory.limit_in_bytes")
        used = self._files.number(f"{folder}/memory.usage_in_bytes")
        if limit is not None:
            limits.append(
                ("cgroup1", limit, limit - (used or 0) + self._cached(folder, "total_inactive_file"))
            )

    def _cached(self, folder: str, key: str) -> int:
        """Return the page cache that the kernel gives back when asked: counted as used, yet available."""
        for line in (self._files.text(f"{folder}/memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == key and value.isdigit():
                return int(value)
        return 0
