"""The store with every system call failing in turn, and with the power cut around and inside each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from store_program import CRASHES, CUTS, PROGRAM, Model, journal, made, outbox, run_program, snapshot
from stores import opened

from bb_edge.state import Recovered, StateError, StateStore, record_framing, segments
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

FAULTS = (FaultKind.FAIL, FaultKind.FULL, FaultKind.TORN)

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


@pytest.fixture(autouse=True)
def compact_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 100)


def count_operations(old: int) -> tuple[int, set[str]]:
    disk = FakeDisk()
    store = made(disk, old)
    store.open()
    before = segments.COMPACTED_FROM_BYTES
    segments.COMPACTED_FROM_BYTES = 100  # type: ignore[misc]
    try:
        run_program(store, PROGRAM)
    finally:
        segments.COMPACTED_FROM_BYTES = before  # type: ignore[misc]
    return disk.operations, set(disk.counts)


OLD = (0, 2)
"""Generations of old files that may wait for others: none, and some."""
COUNTED = {old: count_operations(old) for old in OLD}


@pytest.mark.parametrize("old", OLD)
def test_the_program_touches_every_kind_of_operation(old: int, look: Look) -> None:
    operations, kinds = COUNTED[old]
    assert {"create", "open", "write", "sync", "rename", "unlink", "sync_folder", "read"} == kinds
    assert operations > 120
    disk = FakeDisk()
    store = made(disk, old)
    store.open()
    model = Model()
    for call in PROGRAM:
        call.run(store)
        model = replace(call.effect(model), hints=())
        assert model.matches(look(disk)), call.label


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_failing_operation_is_a_typed_error_changes_nothing_and_can_be_tried_again(
    kind: FaultKind, old: int, look: Look
) -> None:
    for at in range(1, COUNTED[old][0] + 1):
        disk = FakeDisk()
        session = disk.open()
        store = StateStore(AtomicStorage(session), (StorageError,), old_generations=old)
        store.open()
        disk.inject(Fault(kind, at))
        model, failures = Model(), 0
        for call in PROGRAM:
            before, model = model, call.effect(model)
            context = f"{kind.name} at {at}, {call.label}"
            try:
                call.run(store)
            except StateError as error:
                failures += 1
                undone = "power cut may undo it" in str(error)
                found = look(disk)
                if call.label.startswith("drop"):  # a part of it may be done
                    assert model.matches(found), context
                else:
                    is_old = replace(before, hints=()).matches(found)
                    assert is_old or (undone and replace(model, hints=()).matches(found)), context
                call.run(store)
            drops_may_wait = failures and call.label.startswith("drop")
            assert replace(model, hints=model.hints if drops_may_wait else ()).matches(look(disk)), context
            assert session.open_handles <= 8
        assert failures == (0 if disk.armed else 1)
        disk.crash(CrashMode.LOSE)
        assert model.matches(made(disk).open()), f"{kind.name} at {at}, at the end"


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("kind", CUTS)
def test_a_power_cut_leaves_the_old_state_or_the_new_one(kind: FaultKind, old: int) -> None:
    for at in range(1, COUNTED[old][0] + 1):
        for mode, seed in CRASHES:
            disk = FakeDisk()
            store = made(disk, old)
            store.open()
            disk.inject(Fault(kind, at))
            before = after = Model()
            index = -1
            with pytest.raises(PowerCut):
                for call in PROGRAM:
                    index += 1
                    before, after = after, call.effect(after)
                    call.run(store)
            call = PROGRAM[index]
            disk.crash(mode, seed)
            store = made(disk, old)
            found = store.open()
            context = f"{kind.name} at {at}, {mode.name} {seed}, in {call.label}: {found}"
            hinted = replace(before, hints=after.hints)
            is_old = hinted.matches(found) or call.begun(hinted).matches(found)
            is_new = after.matches(found, call.records, call.around)
            assert is_old or is_new, context
            assert all("torn" in note or "loses nothing" in note for note in found.notes), context
            # And on from there, with what the caller does who was not told that it went well.
            model = before if is_old else after
            for call in PROGRAM[index if is_old else index + 1 :]:
                model = call.effect(model)
                call.run(store)
            disk.crash(CrashMode.LOSE)
            assert model.matches(made(disk).open()), f"{context}, at the end"


def test_a_disk_that_fails_for_good_is_a_typed_error_each_time(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    run_program(store, PROGRAM)
    whole = look(disk)
    disk.inject(*(Fault(FaultKind.FAIL, n) for n in range(1, 400)))
    for _ in range(3):
        for call in (journal(b"x"), outbox(b"x"), snapshot(b"x")):
            with pytest.raises(StateError):
                call.run(store)
    disk.disarm()
    assert look(disk) == whole
    journal(b"x").run(store)
    assert look(disk).journal == (*whole.journal, b"x")


def test_a_full_disk_recovers_when_there_is_room(make_store: Opened, look: Look) -> None:
    disk = FakeDisk(capacity_bytes=3000)
    store = make_store(disk)
    store.open()
    count = 0
    with pytest.raises(StateError, match="No space left"):
        while True:
            store.append_journal([b"%d" % count + b"x" * 100])
            count += 1
    with pytest.raises(StateError, match="No space left"):
        store.write_snapshot(b"s" * 500)
    assert len(look(disk).journal) == count
    disk.capacity_bytes = 6000
    store.append_journal([b"there is room"])
    assert look(disk).journal[-1] == b"there is room"
    store.write_snapshot(b"s" * 500)
    store.drop([])
    store.write_snapshot(b"t" * 500)
    store.drop([])
    assert (look(disk).snapshot, look(disk).journal) == (b"t" * 500, ())
    assert sum(map(len, disk.files.values())) < 1500


def test_a_snapshot_of_which_nobody_knows_whether_it_is_there(make_store: Opened) -> None:
    for mode in (CrashMode.LOSE, CrashMode.KEEP):
        disk = FakeDisk()
        store = make_store(disk)
        store.open()
        store.append_journal([b"one"])
        disk.inject(Fault(FaultKind.FAIL, 1, "sync_folder"))
        with pytest.raises(StateError, match="a power cut may undo it"):
            store.write_snapshot(b"one is in it")
        store.append_journal([b"two"])
        disk.crash(mode)
        found = make_store(disk).open()
        # The journal's first record made the folder's names durable, so both ways end with the snapshot.
        assert (found.snapshot, found.journal) == (b"one is in it", (b"two",))
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    store.append_journal([b"one"])
    disk.inject(Fault(FaultKind.FAIL, 1, "sync_folder"))
    with pytest.raises(StateError):
        store.write_snapshot(b"one is in it")
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().journal == (b"one",)


def test_a_snapshot_whose_attempts_fail_does_not_pile_up_files(make_store: Opened) -> None:
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    for turn in range(10):
        store.append_journal([b"%d" % turn])
        disk.inject(Fault(FaultKind.FULL, 1, "create"))
        with pytest.raises(StateError):
            store.write_snapshot(b"s")
    assert sorted(disk.files) == ["journal-0"]


def test_a_failed_snapshot_in_a_folder_that_cannot_be_listed_counts_as_there(
    make_store: Opened, monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    disk = FakeDisk()
    session = disk.open()
    storage = AtomicStorage(session)
    store = StateStore(storage, (StorageError,))
    store.open()
    store.append_journal([b"one"])

    def broken() -> list[str]:
        raise OSError(5, "Input/output error")

    disk.inject(Fault(FaultKind.FULL, 1, "rename"))
    with monkeypatch.context() as patch:
        patch.setattr(session, "names", broken)
        with pytest.raises(StateError):
            store.write_snapshot(b"s")
    store.append_journal([b"two"])
    assert look(disk).journal == (b"one", b"two")
    assert len(disk.files["journal-1"]) > record_framing.HEADER_BYTES


def test_what_could_not_be_begun_and_left_bytes_behind_is_written_anew(
    make_store: Opened, look: Look
) -> None:
    for call in (journal(b"one"), outbox(b"one")):
        disk = FakeDisk()
        store = make_store(disk)
        store.open()
        disk.inject(
            Fault(FaultKind.TORN, 1, "write"),
            Fault(FaultKind.FAIL, 1, "truncate"),
            Fault(FaultKind.FAIL, 1, "unlink"),
        )
        with pytest.raises(StateError):
            call.run(store)
        assert [len(data) > 0 for data in disk.files.values()] == [True]
        call.run(store)
        assert call.effect(Model()).matches(look(disk))


def test_what_was_begun_for_a_snapshot_that_failed_is_used_by_the_next(
    make_store: Opened, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 10_000)
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    outbox(b"a").run(store)
    for _ in range(3):
        disk.inject(Fault(FaultKind.FULL, 1, "rename"))
        with pytest.raises(StateError):
            store.write_snapshot(b"s")
        outbox(b"b").run(store)
        assert sorted(disk.files) == ["journal-0", "journal-1", "outbox-0", "outbox-1"]
    store.write_snapshot(b"s")
    store.drop([b"a"])
    outbox(b"c").run(store)
    assert look(disk).outbox == (b"b" * 10, b"c" * 10)
    assert sorted(disk.files) == ["journal-0", "journal-1", "outbox-0", "outbox-1", "snapshot-1"]


def test_what_was_begun_for_a_snapshot_that_failed_goes_with_a_compaction(
    make_store: Opened, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    outbox(b"a", b"b").run(store)
    keys: list[bytes] = []
    for name in (b"s", b"t"):
        store.write_snapshot(name)
        store.drop(keys)
        keys.append(b"a")
    outbox(b"c").run(store)
    store.fall_back("no")  # the drop is not to be believed any more
    disk.inject(Fault(FaultKind.FULL, 2, "rename"))  # the first is the compaction's
    with pytest.raises(StateError):
        store.write_snapshot(b"u")
    with monkeypatch.context() as few:
        few.setattr(segments, "MAX_SEGMENTS", 0)
        store.drop([])
    for name in (b"v", b"w"):
        store.write_snapshot(name)
        store.drop([])
        outbox(name).run(store)
    assert set(look(disk).outbox) >= {b"b" * 10, b"c" * 10, b"v" * 10, b"w" * 10}


def test_a_snapshot_syncs_twice_and_the_first_records_after_it_once_each(
    make_store: Opened, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 10_000)
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    for turn in range(4):
        outbox(b"%d" % turn).run(store)
        disk.counts.clear()
        store.write_snapshot(b"s")
        store.drop([b"%d" % turn])
        assert (disk.counts["sync"], disk.counts["sync_folder"]) == (1, 1) or not turn
        disk.counts.clear()
        journal(b"x").run(store)
        outbox(b"y").run(store)
        assert (disk.counts["sync"], disk.counts["sync_folder"]) == (2, 0)


@pytest.mark.parametrize("ends", ["the node refuses the snapshot", "the process"])
def test_files_that_were_begun_by_an_earlier_life_and_never_synced_are_no_loss(
    make_store: Opened, ends: str
) -> None:
    disk = FakeDisk()
    storage = AtomicStorage(disk.open())
    store = StateStore(storage, (StorageError,))
    store.open()
    store.write_snapshot(b"first")
    store.write_snapshot(b"second")
    if ends == "the process":
        storage.close()
        store = opened(make_store, disk)  # it reads what was begun, and is on no medium yet
    else:
        store.fall_back("refused")
    store.write_snapshot(b"third")
    disk.crash(CrashMode.LOSE)
    found = make_store(disk).open()
    assert (found.snapshot, found.losses) == (b"third", ())
