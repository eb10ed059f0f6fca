"""Reads a state folder without a lock and without changing it: of a node that runs, a copy, an old one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from bb_edge.engine.snapshot import Identity
    from bb_edge.state.store import Recovered

T = TypeVar("T")


class ReadOnly:
    """The files of a folder as a storage that refuses to write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[str]:
        """Returns the names of the files, sorted."""
        return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())

    def read(self, name: str) -> bytes:
        """Returns a file's bytes. OSError."""
        return (self._folder / name).read_bytes()

    def size(self, name: str) -> int:
        """Returns a file's length. OSError."""
        return (self._folder / name).stat().st_size

    def write_atomic(self, name: str, data: bytes) -> None:
        """Raises PermissionError."""
        raise PermissionError(f"{name}: opened for reading only")

    def append(self, name: str, data: bytes, sync: bool) -> None:
        """Raises PermissionError."""
        raise PermissionError(f"{name}: opened for reading only")

    def remove(self, name: str, sync: bool) -> None:
        """Raises PermissionError."""
        raise PermissionError(f"{name}: opened for reading only")


@dataclass(frozen=True, slots=True)
class Newest(Generic[T]):
    """The newest snapshot of a folder that can be read, the records since, and what `use` made of it."""

    identity: Identity
    body: dict[str, Any]
    opened: Recovered
    read: T


def newest(folder: Path, use: Callable[[dict[str, Any]], T]) -> Newest[T] | None:
    """Opens the newest snapshot whose body `use` takes; None if the folder holds no snapshot.

    Where `use` raises SnapshotDamagedError the one before is tried. Raises StateError, SnapshotError, and
    whatever else `use` raises.
    """
    from bb_edge.engine.snapshot import SnapshotDamagedError, look_into
    from bb_edge.state.store import StateStore

    store = StateStore(ReadOnly(folder), (OSError,))
    opened = store.open()
    while opened.snapshot is not None:
        try:
            identity, body = look_into(opened.snapshot)
            return Newest(identity, body, opened, use(body))
        except SnapshotDamagedError as error:
            opened = store.fall_back(str(error))
    return None
