"""Storage with every system call failing in turn, and with the power cut around and inside each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bb_shims import AtomicStorage, StorageError, StorageFullError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

FAULTS = (FaultKind.FAIL, FaultKind.FULL, FaultKind.TORN)
CUTS = (FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER)
CRASHES = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
CRASHES += [(CrashMode.SEEDED, seed) for seed in range(12)]

Files = dict[str, bytes]


@dataclass
class Call:
    """One call of the program below, and what it does to the files."""

    label: str
    run: Callable[[AtomicStorage], None]
    effect: Callable[[Files], None]
    whole: bool = field(default=True)
    """Whether the change is all or nothing; appended records may be cut short."""


def write(name: str, data: bytes) -> Call:
    return Call(
        f"write {name}", lambda s: s.write_atomic(name, data), lambda files: files.update({name: data})
    )


def append(name: str, data: bytes, sync: bool) -> Call:
    def effect(files: Files) -> None:
        files[name] = files.get(name, b"") + data

    return Call(f"append {name} {sync}", lambda s: s.append(name, data, sync), effect, whole=False)


def remove(name: str) -> Call:
    return Call(f"remove {name}", lambda s: s.remove(name), lambda files: void(files.pop(name)))


def void(_: object) -> None:
    return None


PROGRAM = [
    write("snapshot", b"first state " * 3),
    append("journal", b"[one]", True),
    append("journal", b"[two]", False),
    append("outbox", b"(a)", False),
    append("journal", b"[three]", True),
    write("snapshot", b"second state, longer " * 5),
    append("outbox", b"(b)", True),
    remove("journal"),
    append("journal", b"[four]", True),
    write("outbox", b"(b)"),
    append("outbox", b"(c)", True),
    write("snapshot", b""),
]


def contents(disk: FakeDisk) -> Files:
    return {name: data for name, data in disk.files.items() if not name.startswith(".")}


def count_operations() -> int:
    disk = FakeDisk()
    with AtomicStorage(disk.open()) as storage:
        for call in PROGRAM:
            call.run(storage)
    return disk.operations


OPERATIONS = count_operations()


def test_the_program_touches_every_kind_of_operation() -> None:
    disk = FakeDisk()
    with AtomicStorage(disk.open()) as storage:
        for call in PROGRAM:
            call.run(storage)
    assert set(disk.counts) == {"create", "open", "write", "sync", "rename", "unlink", "sync_folder"}
    assert OPERATIONS > 40


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("at", range(1, OPERATIONS + 1))
def test_a_failing_operation_is_reported_changes_nothing_and_can_be_tried_again(
    at: int, kind: FaultKind
) -> None:
    disk = FakeDisk()
    session = disk.open()
    storage = AtomicStorage(session)
    disk.inject(Fault(kind, at))
    files: Files = {}
    failures = 0
    for call in PROGRAM:
        before = dict(files)
        call.effect(files)
        try:
            call.run(storage)
        except StorageError as error:
            failures += 1
            assert isinstance(error, StorageFullError) == (kind is FaultKind.FULL)
            if "power cut may undo it" in str(error):
                assert contents(disk) == files
                if call.label.startswith("write"):
                    call.run(storage)
            else:
                assert contents(disk) == before, call.label
                call.run(storage)
        assert contents(disk) == files, call.label
        assert session.open_handles <= 2
    assert failures == 1
    disk.crash(CrashMode.LOSE)
    AtomicStorage(disk.open())
    assert disk.files == files, "the last call of each name was synced"


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("at", range(1, OPERATIONS + 1))
def test_a_power_cut_leaves_the_old_state_or_the_new_one(at: int, kind: FaultKind) -> None:
    for mode, seed in CRASHES:
        disk = FakeDisk()
        storage = AtomicStorage(disk.open())
        disk.inject(Fault(kind, at))
        files: Files = {}
        synced: Files = {}  # what must be there
        call = PROGRAM[0]
        before: Files = {}
        with pytest.raises(PowerCut):
            for call in PROGRAM:
                before = dict(files)
                call.effect(files)
                call.run(storage)
                if call.whole or call.label.endswith("True"):
                    name = call.label.split()[1]
                    synced.pop(name, None)
                    synced.update({name: files[name]} if name in files else {})
        disk.crash(mode, seed)
        reopened = AtomicStorage(disk.open())
        found = disk.files
        touched = call.label.split()[1]
        for name in {*before, *files, *found}:
            context = f"{kind.name} at {at}, {mode.name} {seed}, in {call.label}, file {name}"
            if name == touched and call.whole:
                options = [before.get(name), files.get(name)]
                if before.get(name) != synced.get(name):  # unsynced records may be lost, whole or in part
                    assert found.get(name) in options or (before[name].startswith(found.get(name, b""))), (
                        context
                    )
                else:
                    assert found.get(name) in options, context
            else:
                # A journal: all that was synced, then a part of what followed.
                assert found.get(name, b"").startswith(synced.get(name, b"")), context
                assert files.get(name, b"").startswith(found.get(name, b"")), context
                assert name in found or name not in synced, context
        assert not [name for name in found if name.startswith(".")], "leftovers"
        reopened.write_atomic("snapshot", b"on we go")
        assert reopened.read("snapshot") == b"on we go"


@pytest.mark.parametrize("mode", [CrashMode.LOSE, CrashMode.NAMES])
def test_a_record_whose_removal_failed_too_goes_before_the_next(mode: CrashMode) -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    storage.append("journal", b"[one]", sync=True)
    disk.inject(Fault(FaultKind.TORN, 1, "write"), Fault(FaultKind.FAIL, 1, "truncate"))
    with pytest.raises(StorageError):
        storage.append("journal", b"[torn]", sync=True)
    assert storage.read("journal") == b"[one][to"
    storage.append("journal", b"[two]", sync=True)
    assert storage.read("journal") == b"[one][two]"
    disk.crash(mode)
    assert AtomicStorage(disk.open()).read("journal") == b"[one][two]"


def test_after_a_failed_sync_the_file_is_written_anew() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    storage.append("journal", b"[one]", sync=True)
    storage.append("journal", b"[two]", sync=False)
    disk.inject(Fault(FaultKind.FAIL, 1, "sync"))
    with pytest.raises(StorageError, match="sync"):
        storage.append("journal", b"[three]", sync=True)
    renames = disk.counts["rename"]
    storage.append("journal", b"[three]", sync=True)
    assert disk.counts["rename"] == renames + 1
    storage.append("journal", b"[four]", sync=True)
    assert disk.counts["rename"] == renames + 1, "once is enough"
    disk.crash(CrashMode.LOSE)
    assert AtomicStorage(disk.open()).read("journal") == b"[one][two][three][four]"


def test_after_a_failed_sync_and_a_failed_cut_neither_record_is_doubled() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    storage.append("journal", b"[one]", sync=True)
    disk.inject(Fault(FaultKind.FAIL, 1, "sync"), Fault(FaultKind.FAIL, 1, "truncate"))
    with pytest.raises(StorageError):
        storage.append("journal", b"[two]", sync=True)
    storage.append("journal", b"[two]", sync=True)
    assert storage.read("journal") == b"[one][two]"


def test_an_unsynced_record_can_be_lost_and_a_synced_one_cannot() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    storage.append("journal", b"[kept]", sync=True)
    storage.append("journal", b"[lost]", sync=False)
    disk.crash(CrashMode.LOSE)
    assert AtomicStorage(disk.open()).read("journal") == b"[kept]"


def test_short_writes_are_continued() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    disk.inject(*(Fault(FaultKind.SHORT, n, "write") for n in (1, 2, 3)))
    storage.write_atomic("snapshot", bytes(range(100)))
    assert storage.read("snapshot") == bytes(range(100))
    assert disk.counts["write"] == 4


def test_a_full_disk_keeps_the_old_file_and_takes_a_smaller_one() -> None:
    disk = FakeDisk(capacity_bytes=100)
    storage = AtomicStorage(disk.open())
    storage.write_atomic("snapshot", b"x" * 60)
    with pytest.raises(StorageFullError, match="free some space"):
        storage.write_atomic("snapshot", b"y" * 60)
    assert storage.read("snapshot") == b"x" * 60
    assert storage.free_bytes() == 40
    with pytest.raises(StorageFullError):
        storage.append("snapshot", b"z" * 41, sync=True)
    assert storage.read("snapshot") == b"x" * 60
    storage.append("snapshot", b"z" * 40, sync=True)
    assert storage.free_bytes() == 0


def test_a_leftover_that_cannot_be_removed_is_an_error() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    disk.inject(Fault(FaultKind.CUT_BEFORE, 1, "rename"))
    with pytest.raises(PowerCut):
        storage.write_atomic("snapshot", b"x")
    disk.crash(CrashMode.KEEP)
    disk.inject(Fault(FaultKind.FAIL, 1, "unlink"))
    session = disk.open()
    assert session.names() == [".bb-new-snapshot"]
    with pytest.raises(StorageError, match="leftover"):
        AtomicStorage(session)


def test_a_removal_without_a_sync_comes_back_with_a_power_cut_unless_the_folder_was_synced() -> None:
    for synced in (False, True):
        disk = FakeDisk()
        storage = AtomicStorage(disk.open())
        storage.write_atomic("old", b"x")
        storage.remove("old", sync=False)
        assert storage.list() == []
        if synced:
            storage.write_atomic("new", b"y")
        disk.crash(CrashMode.LOSE)
        assert AtomicStorage(disk.open()).list() == (["new"] if synced else ["old"])


def test_a_folder_synced_for_one_file_is_not_synced_again_for_another() -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    storage.append("journal", b"[one]", sync=False)
    storage.write_atomic("snapshot", b"x")
    disk.counts.clear()
    storage.append("journal", b"[two]", sync=True)
    assert (disk.counts["sync"], disk.counts["sync_folder"]) == (1, 0)
    disk.crash(CrashMode.LOSE)
    assert AtomicStorage(disk.open()).read("journal") == b"[one][two]"
