"""Which files a store leaves, and what it makes of one that is damaged, missing or too long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from stores import Look, Opened, flip, opened, rewrite, three_generations, unlink

from bb_edge.state import (
    StateDamagedError,
    StateReadError,
    StateStore,
    StateWriteError,
    StoreLimits,
    record_framing,
)
from bb_edge.state.inventory import Listed, pack
from bb_edge.state.record_framing import JOURNAL, OUTBOX, SNAPSHOT
from bb_edge.state.segment_rows import add_rows
from bb_edge.state.store import OLD_BYTES
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind


def patient(disk: FakeDisk) -> StateStore:
    """A store that lets up to five old generations wait to be removed together."""
    store = StateStore(AtomicStorage(disk.open()), (StorageError,), old_generations=5)
    store.open()
    return store


def generation(store: StateStore, snapshot: bytes = b"s") -> None:
    store.write_snapshot(snapshot)
    store.drop([])
    store.append_journal([b"j"])


@pytest.mark.parametrize("missing", [0, 1])
def test_old_files_wait_until_they_are_a_mebibyte(missing: int) -> None:
    disk = FakeDisk()
    store = patient(disk)
    generation(store, bytes(1000))
    before = len(disk.files["snapshot-1"]) + 2 * len(disk.files["journal-1"])
    around = len(disk.files["snapshot-1"]) - 1000
    generation(store, bytes(OLD_BYTES - missing - before - around))
    lengths = [len(disk.files[name]) for name in ("snapshot-1", "journal-1", "snapshot-2", "journal-2")]
    assert sum(lengths) == OLD_BYTES - missing and "journal-0" in disk.files
    generation(store)
    assert ("journal-0" in disk.files) is bool(missing)


def test_a_restart_that_finds_no_older_files_has_none_to_remove() -> None:
    disk = FakeDisk()
    generation(patient(disk))
    disk.crash(CrashMode.KEEP)
    generation(patient(disk))
    assert "journal-0" in disk.files, "the first of five that may wait"


def test_a_file_is_removed_once(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    for _ in range(4):
        generation(store)
    removed = disk.counts["unlink"]
    assert removed == len(["journal-0", "snapshot-1", "journal-1", "snapshot-2", "journal-2"])
    generation(store)
    assert disk.counts["unlink"] == removed + 2


def test_a_disk_that_neither_takes_nor_removes_anything_says_what_it_did_not_take() -> None:
    class Worn(AtomicStorage):
        worn = False

        def append(self, name: str, data: Sequence[record_framing.Buffer], sync: bool) -> None:  # type: ignore[override]
            if self.worn:
                raise StorageError("append", name, OSError("worn out"))
            super().append(name, data, sync)

        def remove(self, name: str, sync: bool) -> None:
            if self.worn:
                raise StorageError("remove", name, OSError("worn out"))
            super().remove(name, sync)

    storage = Worn(FakeDisk().open())
    store = StateStore(storage, (StorageError,), old_generations=5)
    store.open()
    for _ in range(3):
        generation(store)
    storage.worn = True
    with pytest.raises(StateWriteError) as caught:
        store.append_journal([b"more"])
    assert caught.value.where == "journal-3"
    storage.worn = False
    store.append_journal([b"more"])
    assert store.open().journal == (b"j", b"more")


def test_after_a_journal_went_missing_the_next_snapshot_makes_all_whole(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    unlink(disk, "journal-2")
    store = make_store(disk)
    assert store.open().losses[0].startswith("journal-2 is missing: ")
    store.write_snapshot(b"third")
    store.drop([])
    store.append_journal([b"j4"])
    disk.crash(CrashMode.LOSE)
    found = make_store(disk).open()
    assert (found.snapshot, found.journal, found.losses) == (b"third", (b"j4",), ())


def test_a_snapshot_that_fails_and_is_there_loses_nothing_of_what_follows(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"a"])
    disk.inject(Fault(FaultKind.FAIL, 1, "sync_folder"))
    with pytest.raises(StateWriteError):
        store.write_snapshot(b"first")
    assert "snapshot-1" in disk.files
    store.append_journal([b"b"])
    disk.crash(CrashMode.KEEP)
    found = make_store(disk).open()
    assert (found.snapshot, found.journal) == (b"first", (b"b",))


def test_a_snapshot_that_fails_and_is_there_goes_when_it_is_old(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    generation(store)
    disk.inject(Fault(FaultKind.FAIL, 1, "sync_folder"))
    with pytest.raises(StateWriteError):
        store.write_snapshot(b"second")
    assert "snapshot-2" in disk.files
    for _ in range(2):
        generation(store)
    assert [name for name in sorted(disk.files) if not name.startswith("outbox")] == [
        *("journal-3", "journal-4", "snapshot-3", "snapshot-4"),
    ]


def test_a_snapshot_without_the_rows_that_it_enclosed_is_none(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    rows = {b"k": b"row"}
    store.write_snapshot(b"second", rows)
    behind = record_framing.framed_bytes(add_rows([*rows.items()]))
    whole = disk.files["snapshot-2"]
    disk.crash(CrashMode.KEEP)
    rewrite(disk, "snapshot-2", whole[:-behind])
    found = make_store(disk).open()
    assert (found.snapshot, found.outbox) == (b"first", ())
    assert found.notes == ("snapshot-2 cannot be used: its checksum is wrong",)


@pytest.mark.parametrize(
    "behind", [[b"no list", b"\x01\x00\x01kr"], [pack([Listed(0, 0, 2)]), b"\x01"]], ids=["list", "row"]
)
def test_a_snapshot_with_a_wrong_list_or_row_is_named(make_store: Opened, behind: list[bytes]) -> None:
    disk = FakeDisk()
    head = record_framing.header(SNAPSHOT, 1, version=record_framing.ENCLOSING)
    rewrite(disk, "snapshot-1", head + record_framing.framed(SNAPSHOT, 1, 1, [b"s", *behind]))
    with pytest.raises(StateDamagedError) as caught:
        make_store(disk).open()
    assert (caught.value.where, caught.value.hint) == ("snapshot-1", "move the file aside")


@pytest.mark.parametrize(
    ("kind", "name"), [(SNAPSHOT, "snapshot-1"), (JOURNAL, "journal-0"), (OUTBOX, "outbox-0")]
)
def test_how_long_a_file_may_be_that_is_read(make_store: Opened, kind: int, name: str) -> None:
    limits = StoreLimits(1000, 1000, 1000)
    most = 8 * 1000 + (1 << 20)
    for length, refused in ((most, False), (most + 1, True)):
        disk = FakeDisk()
        rewrite(disk, name, bytes(length))
        store = make_store(disk, limits)
        if kind == SNAPSHOT or refused:
            with pytest.raises(StateDamagedError) as caught:
                store.open()
            why = f"it has {length} bytes, and with its limits this node writes {most} at most"
            assert (why in str(caught.value)) is refused
            if kind != SNAPSHOT:
                hint = (
                    "put the node's own file back; or, where the limits of the disk were lowered, raise them"
                )
                assert (caught.value.where, caught.value.hint) == (name, hint)
        else:
            assert store.open().snapshot is None


def test_without_snapshots_the_segments_that_wait_are_named(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    for number in range(3):
        store.append_outbox([(b"k%d" % number, b"row")])
        store.write_snapshot(b"s")
        store.drop([])
    segments = sorted(name for name in disk.files if name.startswith("outbox"))
    assert len(segments) == 4
    unlink(disk, "snapshot-2", "snapshot-3")
    with pytest.raises(StateDamagedError) as caught:
        make_store(disk).open()
    assert str(caught.value) == (
        f"state: the snapshots are missing ({' and '.join(segments)} may hold envelopes that nobody has yet:"
        " a snapshot from a copy of this folder, put beside them, sends them; move the folder aside to start"
        " anew without them)"
    )


def test_what_was_discarded_stays_away_when_the_snapshot_after_it_is_damaged(
    make_store: Opened, look: Look
) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    store.write_snapshot(b"second", {b"k": b"discarded"})
    store.drop([])
    assert look(disk).outbox == (b"discarded",)
    store.discard([b"k"])
    before = {name for name in disk.files if name.startswith("outbox")}
    store.append_outbox([(b"large", bytes(100_000))])
    store.write_snapshot(b"third")
    store.drop([b"large"])
    store.append_outbox([(b"l", b"needed")])
    while before & disk.files.keys():  # until what is left is written into one new segment
        store.append_outbox([(b"large", bytes(100_000))])
        store.append_outbox([(b"large", bytes(1))])
        store.drop([])
    flip(disk, "snapshot-3", 60)
    found = make_store(disk).open()
    assert found.snapshot == b"second" and b"discarded" not in found.outbox and b"needed" in found.outbox


def test_what_was_discarded_stays_away_after_a_restart_too(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    store.write_snapshot(b"second", {b"k": b"discarded"})
    store.discard([b"k"])
    disk.crash(CrashMode.LOSE)
    store = make_store(disk)
    assert store.open().discarded == (b"discarded",)
    store.write_snapshot(b"third")
    store.drop([])
    assert look(disk).outbox == ()
    flip(disk, "snapshot-3", 60)
    found = make_store(disk).open()
    assert (found.snapshot, found.outbox) == (b"second", ())


def test_a_journal_that_is_cut_short_after_a_restart_is_told(make_store: Opened) -> None:
    """The one behind it says how long it was, also where an earlier process has written it."""
    disk = FakeDisk()
    opened(make_store, disk).append_journal([b"a", b"b"])
    disk.crash(CrashMode.LOSE)
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    whole = disk.files["journal-0"]
    disk.crash(CrashMode.KEEP)
    rewrite(disk, "journal-0", whole[:-14])
    flip(disk, "snapshot-1", 50)
    found = make_store(disk).open()
    assert found.journal == (b"a",)
    had = f"{len(whole) - 14} of its bytes can be read, and journal-1 says that it had {len(whole)}"
    assert found.losses[0].startswith(f"journal-0 is cut short: {had}; ")


def test_a_journal_that_held_no_record_and_is_empty_after_a_power_cut_is_no_loss(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    disk.crash(CrashMode.KEEP)
    opened(make_store, disk).write_snapshot(b"second")
    disk.crash(CrashMode.KEEP)
    rewrite(disk, "journal-1", b"")
    flip(disk, "snapshot-2", 50)
    found = make_store(disk).open()
    assert (found.snapshot, found.losses) == (b"first", ())
    (note,) = [note for note in found.notes if note.startswith("journal-1")]
    assert note.startswith("journal-1 is empty, and no other file says that it held a record")


def test_a_disk_that_does_not_tell_how_long_a_file_is_names_the_file() -> None:
    class Worn(AtomicStorage):
        def size(self, name: str) -> int:
            raise StorageError("size", name, OSError("worn out"))

    disk = FakeDisk()
    opened(lambda *_: StateStore(AtomicStorage(disk.open()), (StorageError,)), disk).append_journal([b"a"])
    disk.crash(CrashMode.KEEP)
    store = StateStore(Worn(disk.open()), (StorageError,), StoreLimits())
    with pytest.raises(StateReadError) as caught:
        store.open()
    assert caught.value.where == "journal-0"


def test_what_comes_again_after_it_was_discarded_is_there_though_segments_were_joined(
    make_store: Opened,
) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first", {b"k": b"row"})
    store.discard([b"k"])
    store.write_snapshot(b"second", {b"k": b"row"})
    store.drop([])
    before = {name for name in disk.files if name.startswith("outbox")}
    for _ in range(3):
        store.append_outbox([(b"large", bytes(100_000))])
        store.append_outbox([(b"large", b"small")])
        store.drop([])
    assert not before & disk.files.keys()
    disk.crash(CrashMode.LOSE)
    assert set(make_store(disk).open().outbox) == {b"row", b"small"}


def test_garbage_goes_though_old_generations_may_wait() -> None:
    disk = FakeDisk()
    store = patient(disk)
    generation(store)
    store.append_outbox([(b"large", bytes(100_000))])
    store.append_outbox([(b"large", b"small")])
    generation(store)
    assert sum(len(data) for name, data in disk.files.items() if name.startswith("outbox")) < 1000


def test_what_was_discarded_before_a_snapshot_is_told_by_no_start_behind_it(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"discarded"), (b"l", b"kept")])
    store.discard([b"k"])
    store.write_snapshot(b"first")
    disk.crash(CrashMode.LOSE)
    found = make_store(disk).open()
    assert (found.outbox, found.discarded) == ((b"kept",), ())


def test_segments_are_of_the_version_that_older_nodes_read(make_store: Opened) -> None:
    disk = FakeDisk()
    opened(make_store, disk).append_outbox([(b"k", b"row")])
    header = record_framing.parse(disk.files["outbox-0"], OUTBOX, 0, "outbox-0").header
    assert header is not None and header.version == record_framing.VERSION
