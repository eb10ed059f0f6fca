"""The store: what is found again after a restart and after damage, and what its budgets refuse."""

from __future__ import annotations

import pytest
from stores import Look, Opened, flip, opened, rewrite, three_generations

from bb_edge.state import (
    Recovered,
    StateDamagedError,
    StateError,
    StateFullError,
    StateReadError,
    StateStore,
    StateVersionError,
    StateWriteError,
    StoreLimits,
    record_framing,
)
from bb_edge.state.segment_rows import drop_row
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind


def test_an_empty_folder(make_store: Opened) -> None:
    disk = FakeDisk()
    assert make_store(disk).open() == Recovered(None, (), (), 0, ())
    assert disk.files == {}


def test_what_was_written_is_found_in_its_order(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    assert make_store(disk).open() == Recovered(b"second", (b"j2", b"j3"), (b"o2",), 2, ())


def test_before_the_first_snapshot_the_journal_is_all_there_is(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"one", b"two"])
    store.append_journal([b"three"])
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().journal == (b"one", b"two", b"three")


def test_a_process_that_comes_back_goes_on_where_the_other_ended(make_store: Opened) -> None:
    disk = FakeDisk()
    for turn in range(6):
        store = make_store(disk)
        found = store.open()
        assert found.journal == tuple(b"j%d" % i for i in range(turn))
        assert found.outbox == tuple(b"o%d" % i for i in range(turn))
        store.append_journal([b"j%d" % turn])
        store.append_outbox([(b"k%d" % turn, b"o%d" % turn)])
        disk.crash(CrashMode.LOSE)
    assert sorted(disk.files) == ["journal-0", "outbox-0"]


def test_two_generations_are_kept_and_no_more(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    for turn in range(1, 8):
        store.append_journal([b"j%d" % turn])
        store.append_outbox([(b"k%d" % turn, b"o")])
        store.write_snapshot(b"s%d" % turn)
        store.drop([b"k%d" % turn])
    states = [name for name in sorted(disk.files) if not name.startswith("outbox")]
    assert states == ["journal-6", "journal-7", "snapshot-6", "snapshot-7"]
    assert len(disk.files) <= 7
    assert store.generation == 7


def snapshots_in(disk: FakeDisk) -> list[int]:
    return sorted(int(name.removeprefix("snapshot-")) for name in disk.files if name.startswith("snapshot-"))


def lazy(disk: FakeDisk) -> StateStore:
    """A store that lets three generations wait to be removed together."""
    store = StateStore(AtomicStorage(disk.open()), (StorageError,), old_generations=3)
    store.open()
    return store


def turn(store: StateStore, number: int, size: int = 10) -> None:
    store.append_journal([b"j%d" % number])
    store.append_outbox([(b"o%d" % number, b"o" * size)])
    store.write_snapshot(b"%d" % number * size)
    store.drop([b"o%d" % number])


def test_small_old_files_are_removed_together(look: Look) -> None:
    disk = FakeDisk()
    store = lazy(disk)
    present, unlinked = [], []
    for number in range(1, 11):
        before = disk.counts["unlink"]
        turn(store, number)
        present.append(len(snapshots_in(disk)))
        unlinked.append(disk.counts["unlink"] > before)
        found = look(disk)
        assert (found.snapshot, found.journal, found.outbox) == (b"%d" % number * 10, (), ())
    assert max(present) == 4 and present[-1] <= 4
    assert sum(unlinked) == 3, "of ten"
    assert len(disk.files) < 20


def test_large_old_files_are_removed_at_once() -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number, 600_000)
        assert len(snapshots_in(disk)) <= 3
    assert sum(map(len, disk.files.values())) < 8 * 600_000


@pytest.mark.parametrize("act", ["journal", "outbox"])
def test_a_full_disk_gets_rid_of_old_files(act: str, look: Look) -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number)
    assert len(snapshots_in(disk)) == 4
    disk.inject(Fault(FaultKind.FULL, 1, "write"))
    with pytest.raises(StateWriteError):
        if act == "journal":
            store.append_journal([b"x" * 50])
        else:
            store.append_outbox([(b"x", b"x" * 50)])
    assert snapshots_in(disk) == [5, 6]
    assert (look(disk).snapshot, look(disk).notes) == (b"6" * 10, ())


def test_the_last_snapshot_of_a_run_is_written_in_the_room_of_old_ones(look: Look) -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number)
    assert snapshots_in(disk) == [3, 4, 5, 6]
    disk.capacity_bytes = sum(map(len, disk.files.values())) + 100
    store.write_snapshot(b"last" * 10)
    assert snapshots_in(disk) == [5, 6, 7]
    assert (look(disk).snapshot, look(disk).notes) == (b"last" * 10, ())


def test_a_snapshot_for_which_nothing_can_go_is_refused_and_the_state_stays(look: Look) -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number)
    disk.capacity_bytes = sum(map(len, disk.files.values()))
    with pytest.raises(StateWriteError):
        store.write_snapshot(b"x" * 10_000)
    assert snapshots_in(disk) == [5, 6]
    assert (look(disk).snapshot, look(disk).notes) == (b"6" * 10, ())


def test_old_files_of_an_earlier_run_go_with_the_first_snapshot() -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number)
    assert snapshots_in(disk) == [3, 4, 5, 6]
    disk.crash(CrashMode.KEEP)
    turn(lazy(disk), 7)
    assert snapshots_in(disk) == [6, 7]


def test_while_old_files_wait_a_node_can_go_back_further(look: Look) -> None:
    disk = FakeDisk()
    store = lazy(disk)
    for number in range(1, 7):
        turn(store, number)
    for name in ("snapshot-5", "snapshot-6"):
        flip(disk, name, 50)
    found = look(disk)
    assert (found.snapshot, found.journal) == (b"4" * 10, (b"j5", b"j6"))
    assert set(found.outbox) >= {b"o" * 10}


def test_a_damaged_snapshot_falls_back_on_the_one_before(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "snapshot-2", 50)
    found = make_store(disk).open()
    assert (found.snapshot, found.generation) == (b"first", 1)
    assert found.journal == (b"j1", b"j2", b"j3")
    assert found.outbox == (b"o1", b"o2"), "what the second snapshot let go is needed again"
    assert found.notes == ("snapshot-2 cannot be used: its checksum is wrong",)


def test_after_a_fall_back_the_bad_file_stays_aside_and_the_old_drops_are_forgotten(
    make_store: Opened,
) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "snapshot-2", 50)
    bad = disk.files["snapshot-2"]
    store = opened(make_store, disk)
    store.append_journal([b"j4"])
    store.write_snapshot(b"third")
    store.drop([])
    assert disk.files["damaged-snapshot-2"] == bad
    assert "snapshot-2" not in disk.files
    assert "snapshot-1" in disk.files, "the generation before the third that can be read"
    disk.crash(CrashMode.LOSE)
    found = make_store(disk).open()
    assert (found.snapshot, found.journal, found.outbox, found.generation) == (
        *(b"third", (), (b"o1", b"o2")),
        3,
    )
    assert not found.losses
    disk.crash(CrashMode.LOSE)
    flip(disk, "snapshot-3", 50)
    found = make_store(disk).open()
    assert (found.snapshot, found.journal) == (b"first", (b"j1", b"j2", b"j3", b"j4"))


def test_a_snapshot_that_the_node_refuses_gives_way_to_the_one_before(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    store = make_store(disk)
    assert store.open().snapshot == b"second"
    found = store.fall_back("digest differs")
    assert (found.snapshot, found.journal, found.outbox) == (b"first", (b"j1", b"j2", b"j3"), (b"o1", b"o2"))
    assert found.notes == ("snapshot-2 cannot be used: digest differs",)
    with pytest.raises(StateDamagedError, match=r"snapshot-2 .*; snapshot-1 cannot be used: this too"):
        store.fall_back("this too")


def test_snapshots_that_are_refused_for_one_reason_are_told_with_it_once(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    store = make_store(disk)
    store.open()
    store.fall_back("it has version 1")
    with pytest.raises(StateDamagedError) as caught:
        store.fall_back("it has version 1")
    assert caught.value.what == "snapshot-2, snapshot-1 cannot be used: it has version 1"


def test_the_first_snapshot_gives_way_to_the_beginning(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"first")
    store.drop([])
    store.append_journal([b"j1"])
    assert store.fall_back("no") == Recovered(None, (b"j1",), (), 0, ("snapshot-1 cannot be used: no",))
    with pytest.raises(StateDamagedError, match="no snapshot to fall back from"):
        store.fall_back("no")


def test_without_any_snapshot_a_later_journal_is_refused(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "snapshot-2", 50)
    flip(disk, "snapshot-1", 50)
    with pytest.raises(StateDamagedError, match=r"snapshot-2, snapshot-1 cannot .*move the folder aside"):
        make_store(disk).open()
    disk = FakeDisk()
    rewrite(disk, "journal-3", b"")
    with pytest.raises(StateDamagedError, match="the snapshots are missing"):
        make_store(disk).open()


def test_a_torn_journal_is_cut_with_the_next_record_only(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    whole = disk.files["journal-2"]
    rewrite(disk, "journal-2", whole + b"torn record")
    store = make_store(disk)
    found = store.open()
    assert found.journal == (b"j2", b"j3")
    assert found.notes == (f"journal-2 is torn: 11 bytes after the first {len(whole)} are given up",)
    assert disk.files["journal-2"].endswith(b"torn record"), "reading writes nothing"
    store.append_journal([b"j4"])
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().journal == (b"j2", b"j3", b"j4")
    assert not [name for name in disk.files if name.startswith("damaged")]


def test_a_journal_damaged_in_the_middle_ends_there_and_is_kept_aside(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "journal-2", record_framing.HEADER_BYTES + record_framing.OVERHEAD_BYTES)
    bad = disk.files["journal-2"]
    store = make_store(disk)
    found = store.open()
    assert found.journal == ()
    lost = len(bad) - record_framing.HEADER_BYTES
    assert found.notes == found.losses
    assert found.losses[0].startswith(
        f"journal-2 is damaged: {lost} bytes after the first {record_framing.HEADER_BYTES} are given up; "
        "what peers sent and this node acknowledged is lost with it"
    )
    store.append_journal([b"j4"])
    assert disk.files["damaged-journal-2"] == bad
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().journal == (b"j4",)


def test_of_damaged_files_the_last_is_kept(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "journal-2", record_framing.HEADER_BYTES + record_framing.OVERHEAD_BYTES)
    store = opened(make_store, disk)
    store.append_journal([b"j4"])
    assert "damaged-journal-2" in disk.files
    disk.crash(CrashMode.LOSE)
    flip(disk, "snapshot-2", 50)
    store = opened(make_store, disk)
    store.write_snapshot(b"third")
    store.drop([])
    assert [name for name in disk.files if name.startswith("damaged")] == ["damaged-snapshot-2"]


def test_a_damaged_file_that_cannot_be_kept_aside_does_not_stop_the_journal(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    flip(disk, "journal-2", record_framing.HEADER_BYTES + record_framing.OVERHEAD_BYTES)
    store = opened(make_store, disk)
    disk.inject(Fault(FaultKind.FAIL, 1, "create"))
    store.append_journal([b"j4"])
    assert "damaged-journal-2" not in disk.files
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().journal == (b"j4",)


def test_a_snapshot_that_cannot_be_read_falls_back_too(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    disk.inject(Fault(FaultKind.FAIL, 1, "read"))
    found = make_store(disk).open()
    assert (found.snapshot, found.journal) == (b"first", (b"j1", b"j2", b"j3"))


def test_a_journal_that_cannot_be_read_is_an_error(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    disk.inject(Fault(FaultKind.FAIL, 2, "read"))
    with pytest.raises(StateReadError, match=r"journal-2: read .*look at the disk"):
        make_store(disk).open()


def test_files_of_a_newer_version_are_refused(make_store: Opened) -> None:
    disk = FakeDisk()
    three_generations(make_store, disk)
    rewrite(disk, "snapshot-2", record_framing.header(record_framing.SNAPSHOT, 2, version=4))
    with pytest.raises(StateVersionError, match="snapshot-2"):
        make_store(disk).open()


def test_foreign_files_are_left_alone(make_store: Opened) -> None:
    disk = FakeDisk()
    names = [
        "journal-",
        "journal-x",
        "journal-01",
        "snapshot-0",
        "notes.txt",
        "outbox-" + "9" * 30,
        "journal-²",
    ]
    for name in names:
        rewrite(disk, name, b"mine")
    store = make_store(disk)
    assert store.open().snapshot is None
    for turn in range(3):
        store.append_journal([b"one"])
        store.append_outbox([(b"k%d" % turn, b"o")])
        store.write_snapshot(b"s")
        store.drop([b"k%d" % turn])
    assert [disk.files[name] for name in names] == [b"mine"] * len(names)


# --- budgets ----------------------------------------------------------------------------------------------


def test_the_journal_asks_for_a_snapshot_and_refuses_at_twice_its_length(make_store: Opened) -> None:
    disk = FakeDisk()
    record = b"x" * (99 - record_framing.OVERHEAD_BYTES)  # and a byte that tells its kind
    store = opened(make_store, disk, StoreLimits(journal_bytes=200 + record_framing.HEADER_BYTES))
    store.append_journal([record])
    assert not store.wants_snapshot
    store.append_journal([record])
    assert store.wants_snapshot
    room = 2 * store.limits.journal_bytes - store.journal_bytes - record_framing.OVERHEAD_BYTES - 1
    with pytest.raises(
        StateFullError, match=r"journal: the journal holds 255 bytes, .*a snapshot frees space"
    ):
        store.append_journal([b"x" * (room + 1)])
    store.append_journal([b"x" * room])
    with pytest.raises(StateFullError):
        store.append_journal([b""])
    store.write_snapshot(b"s")
    assert not store.wants_snapshot
    store.append_journal([record])


def test_the_outbox_asks_for_a_snapshot_and_refuses_when_full(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk, StoreLimits(outbox_bytes=100))
    store.append_outbox([(b"k1", b"x" * 69)])
    assert not store.wants_snapshot
    store.append_outbox([(b"k2", b"")])
    assert store.wants_snapshot
    with pytest.raises(StateFullError, match=r"outbox: the outbox holds 79 of 100 bytes, 22 more"):
        store.append_outbox([(b"k3", b"x" * 17)])
    store.append_outbox([(b"k3", b"x" * 16)])
    store.write_snapshot(b"s")
    store.drop([b"k1"])
    assert not store.wants_snapshot
    store.append_outbox([(b"k4", b"x" * 60)])
    assert store.open().outbox == (b"", b"x" * 16, b"x" * 60)
    assert store.counters["state.outbox_records"] == 3


def test_a_full_outbox_that_a_snapshot_did_not_empty_asks_again_when_an_eighth_has_come(
    make_store: Opened,
) -> None:
    store = opened(make_store, FakeDisk(), StoreLimits(outbox_bytes=160))
    store.append_outbox([(b"k1", b"x" * 115)])
    assert store.wants_snapshot
    store.write_snapshot(b"s")
    store.drop([])
    assert not store.wants_snapshot  # it would keep as much
    store.append_outbox([(b"k2", b"x" * 14)])
    assert not store.wants_snapshot
    store.append_outbox([(b"k3", b"")])
    assert store.wants_snapshot


def test_a_snapshot_above_its_ceiling_is_refused(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk, StoreLimits(snapshot_bytes=10))
    with pytest.raises(StateFullError, match="snapshot: the snapshot has 11 bytes, 10 are allowed"):
        store.write_snapshot(b"x" * 11)
    assert disk.files == {}
    store.write_snapshot(b"x" * 10)


@pytest.mark.parametrize("name", ["journal_bytes", "outbox_bytes", "snapshot_bytes"])
def test_limits_have_to_be_something(name: str) -> None:
    with pytest.raises(StateError, match=f"{name}: a limit below 1 byte"):
        StoreLimits(**{name: 0})
    assert getattr(StoreLimits(**{name: 1}), name) == 1


def test_a_board_gets_smaller_budgets() -> None:
    edge, host = StoreLimits.edge(), StoreLimits()
    assert edge.journal_bytes < host.journal_bytes
    assert edge.outbox_bytes < host.outbox_bytes
    assert edge.snapshot_bytes < host.snapshot_bytes


def test_what_is_written_is_counted(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"x" * 1000])
    written = len(disk.files["journal-0"])
    assert store.counters["state.bytes_written"] == written
    assert store.counters["state.syncs"] == 1
    store.append_journal([b"a", b"b", b"c"])
    assert store.counters["state.syncs"] == 2, "one for all records of a call"
    store.write_snapshot(b"y" * 500)
    store.append_outbox([(b"k", b"o")])
    assert store.counters["state.bytes_written"] == sum(map(len, disk.files.values()))
    disk.capacity_bytes = 0
    with pytest.raises(StateWriteError):
        store.append_journal([b"z"])
    assert store.counters["state.failed_writes"] == 1
    assert store.counters["state.generation"] == 1


def test_a_journal_with_a_row_that_is_neither_an_input_nor_one_of_the_outbox_is_damaged(
    make_store: Opened,
) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"one"], [(b"key", b"row")])
    disk.crash(CrashMode.KEEP)
    more = record_framing.framed(record_framing.JOURNAL, 0, 3, [drop_row(0, [b"key"])])
    rewrite(disk, "journal-0", disk.files["journal-0"] + more)
    with pytest.raises(StateDamagedError) as caught:
        make_store(disk).open()
    assert str(caught.value) == "journal-0: a row of kind 2 (move the file aside)"
    disk.crash(CrashMode.KEEP)
    whole = record_framing.framed(record_framing.JOURNAL, 0, 1, [b"\x01"])
    rewrite(disk, "journal-0", record_framing.header(record_framing.JOURNAL, 0, version=3) + whole)
    with pytest.raises(StateDamagedError, match=r"journal-0: not a row: .*\(move the file aside\)"):
        make_store(disk).open()
