"""The outbox's files: what is kept, written out anew, let go and removed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from stores import Look, Opened, opened, rewrite

from bb_edge.state import (
    StateDamagedError,
    StateFullError,
    StateStore,
    StateWriteError,
    StoreLimits,
    record_framing,
    segment_rows,
    segments,
)
from bb_edge.wire.cbor import Buffer
from bb_shims import StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind


def test_a_record_comes_back_once_however_often_it_was_added(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"first"), (b"l", b"other")])
    store.append_outbox([(b"k", b"first")])
    assert store.counters["state.outbox_records"] == 2
    assert store.open().outbox == (b"first", b"other")


def test_garbage_is_written_out_when_it_is_more_than_what_is_kept(
    make_store: Opened, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 200)
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"old", b"x" * 50)])
    kept = [b"x" * 50]
    for turn in range(40):
        store.append_outbox([(b"k%d" % turn, b"y" * 100), (b"l%d" % turn, b"z" * 30)])
        store.write_snapshot(b"s%d" % turn)
        store.drop([b"k%d" % turn])
        kept.append(b"z" * 30)
        if turn >= 5:
            store.append_outbox([])
            store.write_snapshot(b"t%d" % turn)
            store.drop([b"l%d" % (turn - 5)])
            kept.remove(b"z" * 30)
        assert list(look(disk).outbox) == kept
        files = [data for name, data in disk.files.items() if name.startswith("outbox")]
        assert sum(map(len, files)) < 2500, "the oldest record pins its file, not the others"
        assert len(files) <= segments.MAX_SEGMENTS + 1


def test_many_small_segments_are_made_into_one(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    for turn in range(3 * segments.MAX_SEGMENTS):
        store.append_outbox([(b"k%d" % turn, b"o%d" % turn)])
        store.write_snapshot(b"s")
        store.drop([])
        assert len([name for name in disk.files if name.startswith("outbox")]) <= segments.MAX_SEGMENTS
    assert look(disk).outbox == tuple(b"o%d" % i for i in range(3 * segments.MAX_SEGMENTS))


def test_a_quiet_outbox_takes_no_room(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"o")])
    for _ in range(3):
        store.write_snapshot(b"s")
        store.drop([b"k", b"unknown"])
    segments = [len(data) for name, data in disk.files.items() if name.startswith("outbox")]
    assert segments == [79, record_framing.HEADER_BYTES], "the drop stays for the snapshot before"
    store.append_outbox([(b"l", b"p")])
    assert store.open().outbox == (b"p",)


def test_a_drop_outlives_the_record_it_was_for(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"o")])
    store.write_snapshot(b"s")
    store.drop([b"k"])
    store.append_outbox([(b"l", b"p")])
    for data in (b"t", b"u"):
        store.write_snapshot(data)
        store.drop([])
    assert "outbox-0" not in disk.files
    assert store.open().outbox == (b"p",)


def test_drops_that_found_no_room_ride_with_the_next_record(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"o"), (b"l", b"p")])
    store.write_snapshot(b"s")
    disk.inject(Fault(FaultKind.FULL, 1, "write"))
    with pytest.raises(StateWriteError, match="outbox-1"):
        store.drop([b"k"])
    assert look(disk).outbox == (b"o", b"p")
    store.append_outbox([(b"m", b"q")])
    assert look(disk).outbox == (b"p", b"q")


def test_what_a_compaction_could_not_remove_is_ignored_and_removed_later(
    make_store: Opened, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 10)
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"x" * 500), (b"l", b"p")])
    store.write_snapshot(b"s")
    store.drop([b"k"])
    store.write_snapshot(b"t")
    disk.inject(Fault(FaultKind.FAIL, 2, "unlink"))
    with pytest.raises(StateWriteError, match="outbox-0"):
        store.drop([])
    assert {"outbox-0", "outbox-2"} <= set(disk.files)
    disk.crash(CrashMode.LOSE)
    store = make_store(disk)
    assert store.open().outbox == (b"p",)
    store.write_snapshot(b"u")
    store.drop([])
    assert not {"outbox-0", "outbox-1"} & set(disk.files)
    assert store.open().outbox == (b"p",)


def test_rows_with_a_right_checksum_that_are_none_are_a_typed_error(make_store: Opened) -> None:
    for row in (
        b"",
        bytes([segment_rows.ADD]),
        bytes([segment_rows.DROP, 0]),
        bytes([segment_rows.DROP]) + bytes(8) + b"x",
    ):
        disk = FakeDisk()
        rewrite(
            disk,
            "outbox-0",
            record_framing.header(record_framing.OUTBOX, 0)
            + record_framing.framed(record_framing.OUTBOX, 0, 1, [row]),
        )
        with pytest.raises(StateDamagedError, match="outbox-0: not a row"):
            make_store(disk).open()


def test_a_storage_of_another_make_serves_too() -> None:
    class Memory:
        def __init__(self) -> None:
            self.files: dict[str, bytes] = {}

        def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
            self.files[name] = data if isinstance(data, bytes) else b"".join(data)

        def read(self, name: str) -> bytes:
            return self.files[name]

        def size(self, name: str) -> int:
            return len(self.files[name])

        def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
            self.files[name] = self.files.get(name, b"") + (
                data if isinstance(data, bytes) else b"".join(data)
            )

        def list(self) -> list[str]:
            return sorted(self.files)

        def remove(self, name: str, sync: bool) -> None:
            if name not in self.files:
                raise FileNotFoundError(name)
            del self.files[name]

    memory = Memory()
    store = StateStore(memory, (OSError,))
    store.open()
    store.append_journal([b"j"])
    for _ in range(2):
        store.write_snapshot(b"s")
    del memory.files["journal-0"]
    store.drop([])
    assert store.open().snapshot == b"s"


def test_the_storages_error_is_the_cause(make_store: Opened) -> None:
    disk = FakeDisk(capacity_bytes=20)
    store = opened(make_store, disk)
    with pytest.raises(StateWriteError, match="free some space") as caught:
        store.append_journal([b"x" * 100])
    assert isinstance(caught.value.__cause__, StorageError) and "limits.outbox_bytes" in caught.value.hint
    disk.capacity_bytes = 1000
    store.append_journal([b"x" * 100])
    assert store.open().journal == (b"x" * 100,)


def test_what_a_snapshot_let_go_is_let_go_though_older_files_cannot_be_removed(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k1", b"a"), (b"k2", b"b")])
    for data in (b"one", b"two"):
        store.write_snapshot(data)
        store.drop([])
    store.write_snapshot(b"three")
    disk.inject(Fault(FaultKind.FAIL, 1, "unlink"))
    with pytest.raises(StateWriteError):
        store.drop([b"k1"])
    assert store.counters["state.outbox_records"] == 1
    store.write_snapshot(b"four")
    store.drop([])
    assert store.open().outbox == (b"b",)


def test_what_is_discarded_is_gone_from_the_snapshot_before_too(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"o"), (b"l", b"p"), (b"m", b"q")])
    store.write_snapshot(b"first")
    store.write_snapshot(b"second")
    store.drop([b"m"])
    held = store.counters["state.outbox_records"]
    store.discard([b"k", b"m", b"nobody's"])
    assert store.counters["state.outbox_records"] == held - 1 == 1
    written = store.counters["state.bytes_written"]
    store.discard([b"k"])
    assert store.counters["state.bytes_written"] == written, "nothing is left to write"
    disk.crash(CrashMode.LOSE)
    store = make_store(disk)
    assert store.open().outbox == (b"p",)
    assert store.fall_back("its tables are wrong").outbox == (b"p", b"q"), (
        "what the snapshots dropped is back"
    )


def test_a_full_outbox_takes_what_stands_for_the_discarded(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk, StoreLimits(outbox_bytes=64))
    store.append_outbox([(b"k", b"x" * 40)])
    with pytest.raises(StateFullError):
        store.append_outbox([(b"l", b"y" * 20)])
    store.discard([b"k"], [(b"l", b"y" * 20)])
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().outbox == (b"y" * 20,)
    store = opened(make_store, disk)
    store.discard([b"nobody's"], [(b"m", b"z")])
    assert store.counters["state.outbox_records"] == 2


def test_what_stands_for_the_discarded_is_a_record_like_any_other(make_store: Opened, look: Look) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk, StoreLimits(outbox_bytes=200_000))
    store.append_outbox([(b"k", bytes(96)), (b"m", b"kept")])
    store.discard([b"k", b"nobody's"], [(b"l", bytes(46))])
    store.discard([b"nobody's"], [(b"n", b"instead of nothing")])
    assert store.has_outbox(b"l") and not store.has_outbox(b"k")
    for _ in range(3):  # until all that is needed is written into one new segment
        store.append_outbox([(b"large", bytes(100_000))])
        store.append_outbox([(b"large", b"small")])
        store.write_snapshot(b"s")
        store.drop([])
    assert sum(len(data) for name, data in disk.files.items() if name.startswith("outbox")) < 1000
    assert set(look(disk).outbox) == {b"kept", bytes(46), b"instead of nothing", b"small"}
    store.write_snapshot(b"t")
    store.drop([b"l"])
    assert bytes(46) not in look(disk).outbox


def test_what_was_discarded_takes_no_room(make_store: Opened) -> None:
    store = opened(make_store, FakeDisk(), StoreLimits(outbox_bytes=100))
    store.append_outbox([(b"k", bytes(16)), (b"l", bytes(26))])  # a row has four bytes more: 20 and 30
    store.discard([b"k"])
    with pytest.raises(StateFullError, match="the outbox holds 30 of 100 bytes, 71 more"):
        store.append_outbox([(b"m", bytes(67))])
    store.append_outbox([(b"m", bytes(66))])


def test_no_record_comes_back_without_what_was_dropped_after_it(make_store: Opened) -> None:
    """Rows of the outbox speak of each other: numbers of records are rows of their own."""
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"first", b"record"), (b"second", b"numbers"), (b"kept", b"kept")])
    store.write_snapshot(b"1")
    store.append_outbox([(b"other", b"other")])
    store.drop([b"first"])
    store.write_snapshot(b"2")
    store.drop([b"second"])
    store.append_outbox([(b"third", b"third")])
    disk.crash(CrashMode.LOSE)
    assert make_store(disk).open().outbox == (b"kept", b"other", b"third")


def test_rows_that_a_snapshot_encloses_come_before_those_of_the_segments(
    make_store: Opened, look: Look
) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"first")])
    store.write_snapshot(b"one", {b"e": b"enclosed", b"f": b"too"})
    store.drop([])
    assert look(disk).outbox == (b"enclosed", b"too", b"first")
    assert store.counters["state.outbox_records"] == 3 and not store.has_outbox(b"e")
    assert store.open().outbox == (b"enclosed", b"too", b"first")
    assert store.enclosed == {b"e": b"enclosed", b"f": b"too"}
    store.append_outbox([(b"e", b"enclosed")])
    assert look(disk).outbox == (b"too", b"first", b"enclosed"), "once, though it is there twice"
    store.write_snapshot(b"two", {b"f": b"too"})
    store.write_snapshot(b"three")
    assert look(disk).outbox == (b"first", b"enclosed"), "the rows went with their snapshot"
    assert store.enclosed == {}


def test_a_snapshot_that_falls_back_has_what_it_enclosed(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"one", {b"e": b"of one"})
    store.write_snapshot(b"two", {b"f": b"of two"})
    assert store.open().outbox == (b"of two",)
    found = store.fall_back("refused")
    assert (found.snapshot, found.outbox, store.enclosed) == (b"one", (b"of one",), {b"e": b"of one"})
    disk.crash(CrashMode.KEEP)
    rewrite(disk, "snapshot-2", disk.files["snapshot-2"][:-1])
    found = make_store(disk).open()
    assert (found.snapshot, found.outbox) == (b"one", (b"of one",)), "all of it, or nothing"


def test_a_row_that_was_discarded_is_named_though_a_snapshot_encloses_it(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"one", {b"e": b"enclosed", b"f": b"too"})
    store.discard([b"e", b"nobody's"])
    found = store.open()
    assert (found.outbox, found.discarded) == ((b"too",), (b"enclosed",))
    store.write_snapshot(b"two", {b"e": b"enclosed"})
    found = store.open()
    assert (found.outbox, found.discarded) == ((b"enclosed",), ()), "it was given again since"


def test_only_a_snapshot_that_encloses_rows_is_of_the_newer_version(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.write_snapshot(b"one")
    store.write_snapshot(b"two", {b"e": b"enclosed"})
    versions = [
        record_framing.parse(disk.files[name], record_framing.SNAPSHOT, number, name).header
        for number, name in ((1, "snapshot-1"), (2, "snapshot-2"))
    ]
    assert [header and header.version for header in versions] == [2, 3], "older runtimes read the first"
