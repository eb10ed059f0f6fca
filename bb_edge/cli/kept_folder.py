"""Reads a state folder without a lock and without changing it: of a node that runs, a copy, an old one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from bb_edge.input_files import MAX_ARTIFACT, FileRefused, read_regular

if TYPE_CHECKING:
    from bb_edge.engine.snapshot import Identity
    from bb_edge.state.store import Recovered, StateStore
    from bb_edge.wire.cbor import Buffer

T = TypeVar("T")

MOST: Final = MAX_ARTIFACT
"""Bytes of the longest file that is read. The limits of the node that wrote it are not known here."""


class ReadOnly:
    """The files of a folder as a storage that refuses to write.

    As for the node itself, links and what is not a regular file are none of its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[str]:
        """Returns the names of the files, sorted."""
        return sorted(
            entry.name for entry in os.scandir(self._folder) if entry.is_file(follow_symlinks=False)
        )

    def read(self, name: str) -> bytes:
        """Returns a file's bytes. OSError, also for one that is longer than `MOST` or no regular file."""
        try:
            return read_regular(self._folder / name, MOST, follow=False)
        except FileRefused as error:
            raise OSError(errno.EINVAL, error.what, name) from error

    def size(self, name: str) -> int:
        """Returns a file's length. OSError."""
        return (self._folder / name).stat(follow_symlinks=False).st_size

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        """Raises PermissionError."""
        raise PermissionError(f"{name}: opened for reading only")

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
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
    from bb_edge.state.store import StateStore

    return newest_in(StateStore(ReadOnly(folder), (OSError,)), use)


def newest_in(store: StateStore, use: Callable[[dict[str, Any]], T]) -> Newest[T] | None:
    """The same of a store, which it opens."""
    from bb_edge.engine.snapshot import SnapshotDamagedError, look_into

    opened = store.open()
    while opened.snapshot is not None:
        try:
            identity, body = look_into(opened.snapshot)
            return Newest(identity, body, opened, use(body))
        except SnapshotDamagedError as error:
            opened = store.fall_back(str(error))
    return None
