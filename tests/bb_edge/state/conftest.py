"""A store over a disk in memory, and what a second look at that disk finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bb_edge.state import Owner, Recovered, StateStore, StoreLimits
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import FakeDisk

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


@pytest.fixture
def make_store() -> Opened:
    """A store over a FakeDisk, not opened yet."""

    def make(disk: FakeDisk, limits: StoreLimits | None = None, owner: Owner | None = None) -> StateStore:
        return StateStore(AtomicStorage(disk.open()), (StorageError,), limits, owner)

    return make


@pytest.fixture
def look() -> Look:
    """What a process that starts now would find, leaving the disk as it is."""

    def find(disk: FakeDisk) -> Recovered:
        copy = FakeDisk()
        session = copy.open()
        for name, data in disk.files.items():
            handle = session.create(name)
            if data:
                session.write(handle, data)
            session.close_file(handle)
        session.close()
        return StateStore(AtomicStorage(copy.open()), (StorageError,)).open()

    return find
