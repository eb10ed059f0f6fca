"""Stores on fake disks: opened, with a past, and damaged."""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.state import (
    Recovered,
    StateStore,
    StoreLimits,
)
from bb_shims.testing import CrashMode, FakeDisk

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


def opened(make: Opened, disk: FakeDisk, limits: StoreLimits | None = None) -> StateStore:
    store = make(disk, limits)
    store.open()
    return store


def rewrite(disk: FakeDisk, name: str, data: bytes) -> None:
    session = disk.open()
    handle = session.create(name)
    session.write(handle, data)
    session.sync(handle)
    session.sync_folder()
    session.close()


def unlink(disk: FakeDisk, *names: str) -> None:
    disk.crash(CrashMode.KEEP)
    session = disk.open()
    for name in names:
        session.unlink(name)
    session.sync_folder()
    session.close()


def flip(disk: FakeDisk, name: str, at: int) -> None:
    data = bytearray(disk.files[name])
    data[at] ^= 1
    disk.crash(CrashMode.KEEP)
    rewrite(disk, name, bytes(data))


def three_generations(make: Opened, disk: FakeDisk) -> None:
    store = opened(make, disk)
    store.append_journal([b"j0"])
    store.append_outbox([(b"k0", b"o0"), (b"k1", b"o1")])
    store.write_snapshot(b"first")
    store.drop([b"k0"])
    store.append_journal([b"j1"])
    store.append_outbox([(b"k2", b"o2")])
    store.write_snapshot(b"second")
    store.drop([b"k1"])
    store.append_journal([b"j2", b"j3"])
    disk.crash(CrashMode.KEEP)
