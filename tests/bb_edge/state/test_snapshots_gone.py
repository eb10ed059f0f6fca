"""Folders whose snapshots are there and may not be read, or are gone: no node begins anew over them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from typing import Any

import pytest
from stores import opened, rewrite, unlink

from bb_edge.state import (
    Recovered,
    StateDamagedError,
    StateDeniedError,
    StateReadError,
    StateStore,
)
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


class Locked:
    """A disk of which some files may not be read."""

    def __init__(self, disk: FakeDisk, names: Collection[str], code: int = errno.EACCES) -> None:
        self._session, self._names, self._code = disk.open(), names, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def read(self, name: str) -> bytes:
        if name in self._names:
            raise OSError(self._code, "it is said so", name)
        return self._session.read(name)


def best_effort(make: Opened, snapshots: int, old: int = 0) -> FakeDisk:
    """A folder of a node that writes snapshots, and nothing else."""
    disk = FakeDisk()
    store = StateStore(AtomicStorage(disk.open()), (StorageError,), old_generations=old)
    store.open()
    for number in range(snapshots):
        store.write_snapshot(b"learned %d" % number)
        store.drop([])
    disk.crash(CrashMode.KEEP)
    return disk


@pytest.mark.parametrize("locked", [("snapshot-2", "snapshot-3"), ("snapshot-3",), ("journal-3",)])
def test_a_file_that_may_not_be_read_refuses_the_start(make_store: Opened, locked: tuple[str, ...]) -> None:
    disk = best_effort(make_store, 3)
    store = StateStore(AtomicStorage(Locked(disk, locked)), (StorageError,))
    with pytest.raises(StateDeniedError) as caught:
        store.open()
    assert caught.value.where == locked[-1]
    assert "chown -R USER FOLDER" in caught.value.hint and isinstance(caught.value, StateReadError)
    disk.crash(CrashMode.KEEP)
    assert opened(make_store, disk).generation == 3, "nothing was changed"


def test_a_snapshot_that_the_disk_cannot_read_is_passed_over(make_store: Opened) -> None:
    disk = best_effort(make_store, 3)
    found = StateStore(AtomicStorage(Locked(disk, ["snapshot-3"], errno.EIO)), (StorageError,)).open()
    assert (found.snapshot, found.generation) == (b"learned 1", 2)


@pytest.mark.parametrize("old", [0, 8], ids=["the last two generations", "all generations"])
@pytest.mark.parametrize("snapshots", [2, 3])
def test_snapshots_that_are_gone_beside_journals_refuse_the_start(
    make_store: Opened, snapshots: int, old: int
) -> None:
    disk = best_effort(make_store, snapshots, old)
    unlink(disk, *[name for name in disk.files if name.startswith("snapshot")])
    with pytest.raises(StateDamagedError, match=r"snapshots are missing .*outbox-0 may hold envelopes"):
        make_store(disk).open()


def test_snapshots_that_are_emptied_refuse_the_start_where_no_journal_stands_for_them(
    make_store: Opened,
) -> None:
    disk = best_effort(make_store, 1)
    rewrite(disk, "snapshot-1", b"")
    with pytest.raises(StateDamagedError, match="snapshot-1 cannot be used: it is empty"):
        make_store(disk).open()
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"taken"])
    store.write_snapshot(b"learned")
    disk.crash(CrashMode.KEEP)
    rewrite(disk, "snapshot-1", b"")
    assert opened_journal(make_store, disk) == (b"taken",)


def opened_journal(make: Opened, disk: FakeDisk) -> tuple[bytes, ...]:
    return make(disk).open().journal


def test_first_snapshots_that_power_cuts_prevented_are_no_loss(make_store: Opened) -> None:
    disk = FakeDisk()
    for _ in range(3):
        store = opened(make_store, disk)
        disk.inject(Fault(FaultKind.CUT_BEFORE, 1, "rename"))
        with pytest.raises(PowerCut):
            store.write_snapshot(b"learned")
        disk.disarm()
        disk.crash(CrashMode.KEEP)
        assert "snapshot-1" not in disk.files
    assert sorted(disk.files)[-3:] == ["journal-0", "journal-1", "outbox-0"]
    store = opened(make_store, disk)
    store.append_journal([b"taken"])
    disk.crash(CrashMode.KEEP)
    assert opened_journal(make_store, disk) == (b"taken",)
    store = opened(make_store, disk)
    store.write_snapshot(b"learned")
    disk.crash(CrashMode.KEEP)
    found = make_store(disk).open()
    assert (found.snapshot, found.journal, found.generation) == (b"learned", (), 1)
